"""How the room beside a chat is shared among prompts, background streams and transfers."""

from __future__ import annotations

import functools
import re

import pytest

from tests.policy.build import CPU, GPU, MS, NOW, S, guarded, planned, prefill_item, reading, sids, state_of, talking
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.pipeline import compose
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
STAGES = ("decode_first", "prefill_order", "prefill_budget", "latency_guard")
SOLO = CPU.solo_step_ns(110)
STARVED = 64 * SOLO


run = functools.partial(planned, STAGES)


class TestPromptBesideAChat:
    def test_everyday_pieces_fit_the_cap(self):
        plan = run(state_of(talking(0), reading(1, BACK, n_prompt=1200)))
        item = prefill_item(plan)
        assert sids(plan, Phase.DECODE) == [0]
        assert SOLO + plan.run_ns <= 1.2 * SOLO
        assert CPU.piece_ns(item.n_tokens, 0) <= plan.quantum_ns <= plan.run_ns
        assert plan.min_pieces == 0

    def test_the_gpu_uses_whole_chunks_in_half_layer_pieces(self):
        assert prefill_item(run(state_of(talking(0), reading(1, BACK, n_prompt=5000), cost=GPU))).n_tokens >= 256

    def test_a_paused_chunk_that_is_too_coarse_waits_for_credit(self):
        paused = reading(1, BACK, n_prompt=1200, n_chunk=256, chunk_fraction=0.2)
        assert prefill_item(run(state_of(talking(0), paused))) is None
        plan = run(state_of(talking(0), paused, memory=guarded(credit=1.0)))
        assert 1.2 * SOLO < SOLO + plan.run_ns <= 2.0 * SOLO
        assert plan.memory.latency_guard.credit == 0.0, "one long gap is spent"

    def test_a_prefill_slot_fills_with_a_restored_beginning_while_no_piece_fits(self):
        restored = reading(1, BACK, n_prompt=1200, n_past=900, n_cached=900, n_chunk=256)
        plan = run(state_of(talking(0), restored))
        assert prefill_item(plan).sid == 1 and plan.min_pieces == 0
        assert plan.run_ns <= 0.2 * SOLO < plan.quantum_ns, "copies in slices, no piece of the chunk"
        assert run(state_of(talking(0), restored._replace(t_progress_ns=NOW - 2 * STARVED))).min_pieces == 1

    def test_a_note_names_the_prompts_for_which_a_gap_has_no_place(self):
        prompts = [reading(sid, BACK, n_prompt=20) for sid in (1, 2, 3)]
        plan = run(state_of(talking(0), *prompts, n_prefill_slots=0))
        assert "latency_guard: wait, since a gap reads one prompt: 2, 3" in plan.notes

    def test_a_starved_prompt_is_forced_one_piece(self):
        paused = reading(1, BACK, n_prompt=1200, n_chunk=256, chunk_fraction=0.2, t_progress_ns=NOW - STARVED)
        plan = run(state_of(talking(0), paused))
        assert (prefill_item(plan).sid, plan.min_pieces) == (1, 1)

    def test_a_piece_beyond_the_pause_limit_is_forced_more_rarely(self):
        coarse = reading(1, BACK, n_prompt=1200, n_chunk=512, chunk_fraction=0.2)
        assert CPU.piece_ns(512, 0) > SOLO
        assert prefill_item(run(state_of(talking(0), coarse._replace(t_progress_ns=NOW - STARVED)))) is None
        assert run(state_of(talking(0), coarse._replace(t_progress_ns=NOW - 4 * STARVED))).min_pieces == 1

    def test_until_a_coarse_piece_is_forced_it_keeps_no_chats_prompt_waiting(self):
        coarse = reading(1, BACK, n_prompt=1200, n_chunk=512, chunk_fraction=0.2, t_progress_ns=NOW - 2 * STARVED)
        late = reading(2, n_prompt=9, t_queued_ns=NOW - S)
        assert prefill_item(run(state_of(talking(0), coarse, late))).sid == 2
        plan = run(state_of(talking(0), coarse._replace(t_progress_ns=NOW - 4 * STARVED), late))
        assert (prefill_item(plan).sid, plan.min_pieces) == (1, 1)

    def test_nothing_is_limited_with_nobody_streaming(self):
        guarded, free = (compose(s)(state_of(talking(0, BACK), reading(1, BACK))) for s in (STAGES, STAGES[:-1]))
        assert guarded.items == free.items and guarded.run_ns == free.run_ns

    def test_a_chat_whose_kv_is_still_on_its_way_is_protected_already(self):
        arriving = talking(0, is_ready=False, is_transferring=True)
        plan = run(state_of(arriving, talking(1, BACK), reading(2, BACK, n_prompt=1200)))
        assert sids(plan, Phase.DECODE) == []
        assert plan.run_ns <= SOLO and plan.transfer_ns > 0

    def test_without_resumable_prefill_the_smallest_chunk_is_forced_at_the_bound_only(self):
        slow = reading(1, BACK, n_prompt=900)
        assert prefill_item(run(state_of(talking(0), slow, n_prefill_slots=0))) is None
        plan = run(state_of(talking(0), slow._replace(t_progress_ns=NOW - 4 * STARVED), n_prefill_slots=0))
        assert prefill_item(plan).n_tokens == min(CPU.chunks)

    def test_without_resumable_prefill_an_overdue_prompt_is_read_in_chunks_that_its_gaps_hold(self):
        late = reading(1, n_prompt=20, t_queued_ns=NOW - 10 * S, t_progress_ns=NOW)
        plan = run(state_of(talking(0), late, n_prefill_slots=0))
        n = prefill_item(plan).n_tokens
        assert 0 < n < min(CPU.chunks) and plan.guard.kind == "urgent"
        assert SOLO + CPU.prefill_ns(n, 0) <= 3 * SOLO < SOLO + CPU.prefill_ns(min(CPU.chunks), 0)

    @pytest.mark.parametrize("is_forced", [False, True])
    def test_a_chunk_in_a_call_of_its_own_is_time_that_prompts_got(self, is_forced):
        """It counts once: in the tick by which the next one is judged, and against background streams."""
        view = reading(1, BACK, n_prompt=600, n_past=8, t_progress_ns=NOW - 4 * STARVED)
        room = guarded(credit=0.0) if is_forced else guarded(credit=1.0)
        config = SchedulerConfig(pause_cap=2.0 if is_forced else 20.0)
        plan = run(state_of(talking(0), view, memory=room, config=config, n_prefill_slots=0))
        assert prefill_item(plan) and plan.guard.kind == ("forced" if is_forced else "long")
        memory = plan.memory.latency_guard
        assert memory.debt_ns == -plan.guard.need_ns
        assert memory.planned_ns == plan.guard.round_ns + plan.guard.need_ns + plan.transfer_ns


class TestBackgroundStreams:
    def test_on_the_cpu_a_second_row_does_not_fit_and_is_forced_at_the_bound(self):
        worker = talking(1, BACK, n_past=100)
        assert sids(run(state_of(talking(0), worker)), Phase.DECODE) == [0]
        assert sids(run(state_of(talking(0), worker, memory=guarded(credit=1.0))), Phase.DECODE) == [0], (
            "nor into a long gap"
        )
        starved = worker._replace(t_last_ns=NOW - STARVED)
        assert sorted(sids(run(state_of(talking(0), starved)), Phase.DECODE)) == [0, 1]

    def test_rows_that_seem_to_save_time_leave_a_chats_prompt_its_gap(self):
        """Calls of one row slowed down, those of two were not seen since: a further row seems to shorten the round."""
        slowed = GPU._replace(factors=(1.5, *GPU.factors[1:]))
        assert slowed.rows_ns(2, 210) < slowed.rows_ns(1, 110)
        late = reading(2, n_prompt=9, t_queued_ns=NOW - 10 * S)
        plan = run(state_of(talking(0), talking(1, BACK, n_past=100), late, cost=slowed))
        assert prefill_item(plan).sid == 2 and sids(plan, Phase.DECODE) == [0]

    def test_what_is_forced_uses_up_the_allowance_of_long_gaps(self):
        starved = talking(1, BACK, n_past=100, t_last_ns=NOW - STARVED)
        share = SchedulerConfig().long_tick_share
        left = [
            run(state_of(talking(0), starved, memory=guarded(credit=n))).memory.latency_guard.credit for n in (0.5, 1.0)
        ]
        assert left == [0.0, pytest.approx(0.0)] and share < 0.5

    def test_forced_rows_keep_their_distance(self):
        starved = [talking(i, BACK, n_past=100, t_last_ns=NOW - 2 * STARVED) for i in (1, 2)]
        state = state_of(talking(0), *starved, memory=guarded(forced_tick=1000 - 63))
        assert sids(run(state), Phase.DECODE) == [0]
        assert len(sids(run(state._replace(tick=1001)), Phase.DECODE)) == 2

    def test_streams_that_may_starve_in_each_round_leave_prompts_every_other_one(self):
        config = SchedulerConfig(starvation_ticks=1)
        worker = talking(1, BACK, n_past=100, t_last_ns=NOW - 8 * SOLO)
        prompt = reading(2, BACK, n_prompt=1200, n_chunk=256, chunk_fraction=0.2, t_progress_ns=NOW - 8 * SOLO)
        for n_rounds, served in ((1, [2]), (2, [1])):
            memory = guarded(forced_tick=1000 - n_rounds)
            plan = run(state_of(talking(0), worker, prompt, memory=memory, config=config))
            assert [i.sid for i in plan.items if i.sid] == served

    def test_on_the_gpu_a_neighbour_rides_along(self):
        plan = run(state_of(talking(0), talking(1, BACK), cost=GPU))
        assert {i.call for i in plan.items} == {0} and len(plan.items) == 2

    def test_as_many_as_fit(self):
        views = [talking(i, BACK) for i in range(1, 7)]
        everyday = run(state_of(talking(0), *views, cost=GPU))
        long = run(state_of(talking(0), *views, cost=GPU, memory=guarded(credit=1.0)))
        assert 2 <= len(everyday.items) < len(long.items)

    def test_the_floor_relaxes_it(self):
        plan = run(state_of(talking(0), talking(1, BACK), config=SchedulerConfig(guard_floor_ns=40 * MS)))
        assert sorted(sids(plan, Phase.DECODE)) == [0, 1]

    def test_background_rows_and_prompts_take_turns(self):
        views = (talking(0), talking(1, BACK), reading(2, BACK, n_prompt=5000))
        memory, turns = guarded(), []
        for tick in range(20):
            plan = run(state_of(*views, cost=GPU, tick=tick, memory=memory))
            memory = plan.memory
            turns.append((len(sids(plan, Phase.DECODE)) - 1, prefill_item(plan) is not None))
        assert sum(rows for rows, _ in turns) >= 5 and sum(read for _, read in turns) >= 5


class TestTransfers:
    def test_they_come_first_and_leave_the_rest(self):
        moving = reading(2, is_ready=False, is_transferring=True)
        plan = run(state_of(talking(0), reading(1, BACK, n_prompt=1200), moving))
        assert plan.transfer_ns > 0
        assert SOLO + plan.run_ns + plan.transfer_ns <= 1.2 * SOLO

    def test_a_chats_prompt_has_what_they_leave_of_the_limit(self):
        moving = reading(2, is_ready=False, is_transferring=True)
        big = {"kv_bytes_per_cell": 100_000}
        plan = run(state_of(talking(0), reading(1, n_prompt=10, slo_ttft_ns=10**10), moving, **big))
        assert plan.guard.kind == "normal" and plan.transfer_ns > 0.02 * SOLO and plan.run_ns > 0
        assert SOLO + plan.run_ns + plan.transfer_ns <= 1.2 * SOLO
        late = reading(1, n_prompt=1200, t_queued_ns=NOW - 10**12)
        plan = run(state_of(talking(0), late, moving, **big))
        assert plan.guard.kind == "urgent" and plan.run_ns > 0.7 * SOLO
        assert SOLO + plan.run_ns + plan.transfer_ns <= 2.7 * SOLO  # 0.3 of a step stays free for the machine's error

    def test_a_restored_document_gets_more_than_a_chunk_that_is_handed_over(self):
        known = {"is_ready": False, "is_transferring": True, "n_prompt": 8000}
        chunk, document = (
            run(state_of(talking(0), reading(2, BACK, n_past=n_past, **known), kv_bytes_per_cell=10_000)).transfer_ns
            for n_past in (4000, 0)
        )
        assert chunk < document <= 0.2 * SOLO


def test_a_chats_arriving_cells_make_a_long_gap_where_a_worker_waits():
    """However the rest of the gap is shared, the next long gap has to wait for its credit."""
    arriving = talking(2, is_ready=False, is_transferring=True)
    prompt = reading(3, Priority.INTERACTIVE, n_prompt=1, t_queued_ns=NOW, t_progress_ns=NOW, slo_ttft_ns=50 * MS)
    views = (
        talking(0, slo_tbt_ns=SOLO // 2),
        talking(1, BACK),
        arriving,
        prompt,
    )  # a target so short that there is no everyday room
    plan = run(state_of(*views, memory=guarded(credit=0.9), n_prefill_slots=0))
    assert sids(plan, Phase.DECODE) == [0] and plan.transfer_ns > 0
    assert plan.guard.kind in ("long", "urgent")
    assert plan.memory.latency_guard.credit == 0.0


def test_a_chats_prompt_may_fill_a_gap_that_a_background_prompt_leaves_room_in():
    """Background prompts take part in most gaps, so they leave room for the machine's error. Prompts of chats take part
    in few.
    """

    def everyday(view, error):
        return run(state_of(talking(0), view, memory=guarded(error=error))).run_ns

    background = reading(1, BACK, n_prompt=1200)
    mine = reading(1, n_prompt=16, slo_ttft_ns=600 * CPU.prompt_ns(16, 0))
    assert everyday(background, 0.05) < everyday(background, 0.0) == everyday(mine, 0.05)


def test_background_prompts_have_no_deadline():
    late = reading(1, BACK, n_prompt=1200, t_queued_ns=NOW - 60 * S, t_progress_ns=NOW - MS)
    assert run(state_of(talking(0), late)).run_ns + SOLO <= 1.2 * SOLO


def test_a_prompt_that_is_awaited_goes_before_background_streams():
    plan = run(state_of(talking(0), talking(1, BACK), reading(2, n_prompt=300), cost=GPU))
    assert sids(plan, Phase.DECODE) == [0] and prefill_item(plan).sid == 2


@pytest.mark.parametrize(
    "view", [reading(1, BACK, n_prompt=1200, n_chunk=256), talking(1, BACK, n_past=100)], ids=["piece", "row"]
)
def test_a_refusal_says_its_numbers(view):
    plan = run(state_of(talking(0), view))
    (note,) = [note for note in plan.notes if note.startswith("latency_guard")]
    need, room, long = plan.guard.need_ns / 1e6, plan.guard.room_ns / 1e6, plan.guard.long_room_ns / 1e6
    assert f"{need:.3f} ms > room {room:.3f} (long {long:.3f}), credit 0.02" in note


@pytest.mark.parametrize(("n_chunk", "times"), [(256, 1), (512, 4)])
def test_a_waiting_prompt_is_forced_when_its_note_says(n_chunk, times):
    def plan_after(ns):
        view = reading(1, BACK, n_prompt=1200, n_chunk=n_chunk, chunk_fraction=0.2, t_progress_ns=NOW - int(ns))
        return run(state_of(talking(0), view))

    (note,) = plan_after(3 * MS).notes
    why = ", since with the round it exceeds the long limit" if times > 1 else ""
    ms = int(re.search(rf"3 ms without progress, forced after (\d+) ms \({64 * times} rounds{why}\)$", note)[1])
    assert ms == pytest.approx(times * STARVED / MS, abs=1)
    assert plan_after((ms - 1) * MS).guard.kind == "nothing"
    assert plan_after((ms + 1) * MS).guard.kind == "forced"


def test_a_waiting_stream_is_forced_when_its_note_says():
    def plan_after(n_rounds):
        state = state_of(talking(0), talking(1, BACK, t_last_ns=NOW - 2 * S))
        return run(state._replace(memory=guarded(forced_tick=state.tick - n_rounds)))

    (note,) = plan_after(3).notes
    n_most = int(re.search(r", 3 rounds without a token, forced after (\d+)$", note)[1])
    assert plan_after(n_most - 1).guard.kind == "nothing"
    forced = plan_after(n_most)
    assert forced.guard.kind == "forced" and forced.notes[0].endswith(f", {n_most} rounds without a token")


def test_a_note_speaks_of_credit_only_if_a_long_gap_has_more_room():
    config = SchedulerConfig(pause_cap=1.0)
    (note,) = run(state_of(talking(0), reading(1, BACK, n_prompt=1200, n_chunk=512), config=config)).notes
    assert "(a long gap has no more)" in note and "credit" not in note


def test_a_starved_prompt_is_not_passed_over_for_background_rows():
    """It is first in the order of prompts: while it waits, a chat's prompt behind it waits too."""
    starved = reading(2, BACK, n_prompt=900, t_progress_ns=NOW - 2 * 64 * GPU.solo_step_ns(110))
    views = talking(0), talking(1, BACK), starved, reading(3, n_prompt=300, t_queued_ns=NOW)
    rows_had_less = guarded(debt_ns=-100 * MS)
    assert prefill_item(run(state_of(*views, cost=GPU, memory=rows_had_less))).sid == 2


FRESH = {"n_prompt": 900, "t_progress_ns": NOW, "t_queued_ns": NOW}


@pytest.mark.parametrize(
    ("prompt", "stream", "memory", "why"),
    [
        (reading(2, BACK, **FRESH), {}, {"debt_ns": 2 * MS}, "prompt 2 goes first: prompts had 2.000 ms less than"),
        (reading(2, BACK, **FRESH), {}, {"debt_ns": -2 * MS}, "streams go first: they had 2.000 ms less than prompts"),
        (reading(2, **FRESH), {}, {}, "prompt 2 goes first: its first token is awaited"),
        (
            reading(2, BACK, **FRESH | {"t_progress_ns": NOW - S}),
            {},
            {},
            "2 goes first: it made no progress for 1000 ms",
        ),
        (
            reading(2, BACK, **FRESH),
            {"t_last_ns": NOW - S},
            {"forced_tick": 900},
            "prompt 2 waits: background streams go first: one of them got no token for 100 rounds",
        ),
    ],
)
def test_a_note_says_whether_prompts_or_streams_go_first(prompt, stream, memory, why):
    state = state_of(talking(0), talking(1, BACK, **{"t_last_ns": NOW} | stream), prompt, cost=GPU)
    assert why in " ".join(run(state._replace(memory=guarded(**memory))).notes)


def test_a_note_names_as_many_streams_as_do_not_fit():
    """Corrections of row counts may make three rows seem faster than two: then one stream more does fit."""
    cost = GPU._replace(factors=(1.0, 3.0, 1.0, 3.0, *GPU.factors[4:]))
    streams = [talking(i, BACK, t_last_ns=NOW - S) for i in range(1, 6)]
    plan = run(state_of(talking(0), *streams, cost=cost, memory=guarded(forced_tick=0)))
    assert plan.guard.kind == "forced"
    (note,) = plan.notes
    assert f"1 of 5 background streams, against starvation: 1 of them {plan.guard.need_ns / 1e6:.3f} ms > room" in note


@pytest.mark.parametrize(("waited", "due"), [(9 * S, "overdue by"), (0, "due in")])
def test_a_note_says_why_a_prompt_is_urgent(waited, due):
    plan = run(state_of(talking(0), reading(1, n_prompt=1200, t_queued_ns=NOW - waited)))
    assert plan.guard.kind == "urgent"
    (note,) = plan.notes
    room = rf"room {plan.run_ns / 1e6:.3f} instead of \d+\.\d{{3}}"
    assert re.search(rf"prompt 1 is urgent, {due} \d+ ms, \d+ ms are left to read: {room}$", note)
