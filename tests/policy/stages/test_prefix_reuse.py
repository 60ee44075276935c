"""When a cached prefix is restored, and which sequences newcomers get."""

from __future__ import annotations

from tests.policy.build import CPU, GPU, planned, reading, state_of, talking, waiting
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Admission, Plan, check_plan
from uma_core.policy.stages import prefix_reuse
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase, Priority

MS = 1_000_000


def placed(state: SchedulerState, *sids: int) -> Plan:
    """Run the stage after an admission that took the lowest sequences."""
    admit = tuple(Admission(sid, seq) for sid, seq in zip(sids, state.device.free_seqs, strict=False))
    return prefix_reuse.run(state, Plan(admit=admit))


def seqs(plan: Plan) -> dict[int, int]:
    return {a.sid: a.seq_id for a in plan.admit}


def hit(sid: int, **more: object) -> SessionView:
    """1000 of 1100 tokens are in sequence 2."""
    known = {"n_prompt": 1100, "cached_hint": 1000, "restore_ns": 5 * MS, "cached_seq": 2, "cached_own": 1000}
    return waiting(sid, **{**known, **more})  # type: ignore[arg-type]


FREE = {"free_seqs": (0, 1, 2), "seq_held": (0, 300, 1000), "seq_loss_ns": (0, 2 * MS, 8 * MS)}


def test_a_hit_goes_where_it_is_held() -> None:
    plan = placed(state_of(hit(9), **FREE), 9)
    assert seqs(plan) == {9: 2} and plan.restore == (9,)


def test_what_is_dearer_to_bring_than_to_compute_is_not_restored() -> None:
    view = hit(9, restore_ns=CPU.prompt_ns(1000, 0), cached_seq=-1, cached_own=0)
    plan = placed(state_of(view, **FREE), 9)
    assert plan.restore == () and seqs(plan) == {9: 0}


def test_cold_requests_take_the_least_valuable_and_of_equals_the_lowest() -> None:
    assert seqs(placed(state_of(waiting(9), **FREE), 9)) == {9: 0}
    full = {**FREE, "seq_held": (700, 300, 1000), "seq_loss_ns": (5 * MS, 2 * MS, 8 * MS)}
    assert seqs(placed(state_of(waiting(9), **full), 9)) == {9: 1}
    assert seqs(placed(state_of(waiting(9), **{**full, "seq_loss_ns": (MS, MS, MS)}), 9)) == {9: 0}


def test_hits_choose_before_cold_requests_that_come_in_with_them() -> None:
    only = {"free_seqs": (2, 5), "seq_held": (1000, 400), "seq_loss_ns": (8 * MS, 3 * MS)}
    assert seqs(placed(state_of(waiting(8), hit(9), **only), 8, 9)) == {8: 5, 9: 2}


def test_a_short_common_beginning_does_not_displace_a_long_chat() -> None:
    view = hit(9, cached_hint=100, cached_own=100, restore_ns=MS, n_prompt=400)
    plan = placed(state_of(view, **{**FREE, "seq_held": (0, 300, 4000), "seq_loss_ns": (0, 2 * MS, 30 * MS)}), 9)
    assert seqs(plan) == {9: 0} and plan.restore == (9,)


def test_neighbours_of_running_sequences_where_rows_share_a_pass() -> None:
    running = talking(1, seq_id=4)
    free = {"free_seqs": (0, 5), "seq_held": (0, 200), "seq_loss_ns": (0, 2 * MS)}
    assert seqs(placed(state_of(running, waiting(9), cost=GPU, **free), 9)) == {9: 5}
    assert seqs(placed(state_of(running, waiting(9), cost=CPU, **free), 9)) == {
        9: 0
    }  # two rows of one call cost more than two calls here
    assert seqs(placed(state_of(running, waiting(9), cost=GPU, can_mix_rows=True, **free), 9)) == {9: 0}


def test_where_kv_cannot_be_copied_a_hit_is_worth_its_own_sequence_alone() -> None:
    view = hit(9, restore_ns=0)
    assert seqs(placed(state_of(view, can_copy_prefix=False, **FREE), 9)) == {9: 2}


def test_a_prompt_between_two_chunks_takes_what_others_have_read() -> None:
    ahead = reading(1, n_prompt=1100, n_past=256, cached_hint=900, restore_ns=4 * MS)
    plan = prefix_reuse.run(state_of(ahead), Plan())
    assert plan.restore == (1,)
    assert prefix_reuse.run(state_of(ahead._replace(n_chunk=256)), Plan()).restore == ()
    assert prefix_reuse.run(state_of(ahead._replace(is_ready=False)), Plan()).restore == ()
    assert prefix_reuse.run(state_of(ahead._replace(n_past=900)), Plan()).restore == ()


def test_a_restored_session_has_no_item_in_the_same_tick() -> None:
    state = state_of(
        reading(1, n_prompt=1100, n_past=256, cached_hint=900, restore_ns=4 * MS), hit(9), reading(3), **FREE
    )
    plan = planned(state.config.stages, state)
    assert set(plan.restore) == {1, 9}
    assert [i.sid for i in plan.items] == [3]


def test_a_parked_session_is_restored_whole() -> None:
    parked = hit(9, phase=Phase.PARKED, priority=Priority.BACKGROUND, n_prompt=1000, n_generated=5)
    plan = placed(state_of(parked, **FREE), 9)
    assert seqs(plan) == {9: 2} and plan.restore == (9,)


def test_the_plan_is_checked() -> None:
    state = state_of(reading(1), talking(2))
    for sid in (2, 7):
        assert check_plan(state, Plan(restore=(sid,)))
    assert not check_plan(state, Plan(restore=(1,)))


def test_without_the_stage_nothing_is_restored() -> None:
    state = state_of(hit(9), **FREE)
    stages = tuple(name for name in state.config.stages if name != "prefix_reuse")
    plan = compose(stages)(state)
    assert plan.restore == () and seqs(plan) == {9: 0}
