"""Virtual time counters."""

from __future__ import annotations

from tests.policy.build import MIX_ROWS, MIXING, MS, S, reading, report, sids, state_of, talking, waiting
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.memory import Ledger, PolicyMemory
from uma_core.policy.order import FAIR_QUANTUM_NS
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.policy.stages import fairness
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND


def counters(state):
    plan = fairness.learn(state, Plan(memory=state.memory))
    ledger = plan.memory.fairness
    assert plan.charged == ({} if ledger is None else ledger.counters)
    return None if ledger is None else dict(ledger.counters)


def test_one_client_alone_keeps_nothing():
    assert counters(state_of(talking(0), talking(1))) is None
    assert counters(state_of(talking(0), memory=PolicyMemory(fairness=Ledger({1: 5, 2: 7})))) is None


def test_measured_time_is_shared_out_by_rows_and_chunks():
    ledger = Ledger({1: 0, 2: 0}, decoded=((1, 3), (2, 1)), prefilled=((2, 64),))
    reports = (report(Phase.DECODE, 4, 1, 40 * MS), report(Phase.PREFILL, 64, 1, 100 * MS))
    state = state_of(talking(0, client=1), talking(1, client=2), memory=PolicyMemory(fairness=ledger), reports=reports)
    assert counters(state) == {1: 30 * MS, 2: 110 * MS}


def test_repeats_of_a_steady_plan_are_charged_too():
    ledger = Ledger({1: 0, 2: 0}, decoded=((1, 1), (2, 1)))
    reports = (report(Phase.DECODE, 2, 1, 40 * MS),) * 10
    state = state_of(talking(0, client=1), talking(1, client=2), memory=PolicyMemory(fairness=ledger), reports=reports)
    assert counters(state) == {1: 200 * MS, 2: 200 * MS}


def test_who_comes_back_is_lifted_and_who_left_is_forgotten():
    ledger = Ledger({1: 7 * S, 2: 9 * S})
    state = state_of(talking(0, client=1), talking(1, client=3), memory=PolicyMemory(fairness=ledger))
    assert counters(state) == {1: 0, 3: 0}, "relative to the least of those present"


def test_the_finished_plan_is_what_is_charged():
    views = (talking(0, client=1), talking(1, BACK, client=2))
    plan = compose(("decode_first", "fairness"))(state_of(*views))
    assert sorted(plan.memory.fairness.decoded) == [(1, 1), (2, 1)]
    trimmed = compose(("decode_first", "fairness", "latency_guard"))(state_of(*views))
    assert trimmed.memory.fairness.decoded == ((1, 1),), "the guard dropped the background row"


def test_prompts_of_one_tick_are_charged_by_their_tokens():
    views = (reading(0, BACK, client=1, n_prompt=600), reading(1, BACK, client=2, n_prompt=600))
    items = tuple(
        PlanItem(sid, sid, Phase.PREFILL, n, True, sid, "", PrefillMode.OWN_CALL) for sid, n in enumerate((60, 20))
    )
    memory = PolicyMemory(fairness=Ledger({1: 0, 2: 0}))
    sealed = fairness.seal(state_of(*views, memory=memory), Plan(items=items, memory=memory))
    reports = (report(Phase.PREFILL, 80, 1, 80 * MS),)
    assert counters(state_of(*views, memory=sealed.memory, reports=reports)) == {1: 60 * MS, 2: 20 * MS}


def test_what_is_mixed_in_has_an_equal_share_of_the_call():
    """Its rows cost next to nothing: seven of eight rows do not take seven eighths of the time."""
    chat, prompt = talking(0, client=1), reading(1, BACK, client=2, n_prompt=1200)
    plan = compose(("decode_first", "fairness", "prefill_order", "prefill_budget", "latency_guard"))(
        state_of(chat, prompt, cost=MIXING, mixed_rows=MIX_ROWS, can_mix_rows=True)
    )
    assert plan.items[-1].mode is PrefillMode.MIXED
    assert sorted(plan.memory.fairness.decoded) == [(1, 1), (2, 1)] and not plan.memory.fairness.prefilled


def test_two_backlogged_clients_get_equal_time_within_the_bound():
    """Client 1 asks for four long streams and client 2 for one. One row per tick is served."""
    last = dict.fromkeys(range(5), 0)
    spent, memory, reports = {1: 0, 2: 0}, PolicyMemory(), ()
    config = SchedulerConfig(stages=("decode_first", "fairness"), max_background_decoders=1)
    policy = compose(config.stages)
    worst = 0
    for tick in range(2000):
        views = [talking(i, BACK, client=2 if i == 4 else 1, t_last_ns=last[i]) for i in range(5)]
        plan = policy(state_of(*views, config=config, tick=tick, memory=memory, reports=reports))
        (sid,) = sids(plan, Phase.DECODE)
        memory, reports = plan.memory, (report(Phase.DECODE, 1, 16 * MS, 16 * MS),)
        spent[2 if sid == 4 else 1] += 16 * MS
        last[sid] = tick
        worst = max(worst, abs(spent[1] - spent[2]))
    assert worst <= FAIR_QUANTUM_NS + 2 * 16 * MS


def test_admission_alternates_between_clients_not_requests():
    memory = PolicyMemory(fairness=Ledger({1: 2 * S, 2: 0}))
    views = [waiting(i, client=1, n_prompt=20) for i in range(4)] + [waiting(9, client=2, n_prompt=800)]
    plan = compose(("admission", "fairness"))(state_of(*views, free_seqs=(0,), memory=memory))
    assert [a.sid for a in plan.admit] == [9]
