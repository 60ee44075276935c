"""What the guard lets into a stream's gap, and what it learns from gaps."""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, GPU, MS, NOW, S, prefill_item, reading, report, sids, state_of, talking
from uma_core.policy.gaps import OVERDUE_CAP, gap_limits, urgent_cap
from uma_core.policy.guard_memory import CREDIT_MIN, GuardMemory, Kind, earn, learn
from uma_core.policy.knobs import Knobs
from uma_core.policy.parts import parts_of
from uma_core.policy.patience import TTFT_STEPS, TTFT_STRETCH
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import check_plan
from uma_core.policy.stages.latency_guard import BACKGROUND_SHARE
from uma_core.types import Lane, Phase

BACK = Lane.BACKGROUND
STAGES = ("decode_first", "prefill_order", "prefill_budget", "latency_guard")
SOLO = CPU.solo_step_ns(110)
STARVED = 64 * SOLO


def run(state):
    plan = compose(STAGES)(state)
    assert check_plan(state, plan) == []
    return plan


def memory(**fields):
    return {"latency_guard": GuardMemory(**fields)}


class TestLimits:
    @pytest.mark.parametrize(
        ("knobs", "slo", "cap", "pause"),
        [
            (Knobs(), 0, 1.2, 2.0),
            (Knobs(guard_cap=1.5), 0, 1.5, 2.0),
            (Knobs(guard_floor_ns=5 * SOLO), 0, 5.0, 5.0),  # the floor lifts the pause limit with it
            (Knobs(), int(1.7 * SOLO), 1.7, 2.0),  # a request's own target replaces the cap
            (Knobs(slo_tbt_ns=3 * SOLO), 0, 3.0, 3.0),
            (Knobs(), SOLO // 2, 1.0, 2.0),  # faster than the device: no everyday room at all
        ],
    )
    def test_cap_and_pause(self, knobs, slo, cap, pause):
        state = state_of(talking(0, slo_tbt_ns=slo), knobs=knobs)
        limits = gap_limits(state, parts_of(state))
        assert limits.solo_ns == SOLO
        assert limits.cap_ns / SOLO == pytest.approx(cap, rel=1e-3)
        assert limits.pause_ns / SOLO == pytest.approx(pause, rel=1e-3)

    def test_the_strictest_stream_decides(self):
        state = state_of(talking(0, slo_tbt_ns=S), talking(1))
        assert gap_limits(state, parts_of(state)).cap_ns < S

    def test_solo_of_several_streams_is_their_own_round(self):
        state = state_of(*[talking(i) for i in range(4)])
        assert gap_limits(state, parts_of(state)).solo_ns == CPU.rows_ns(4, 440)

    @pytest.mark.parametrize("n", [2, 8])
    def test_several_streams_have_less_than_that_many_rounds(self, n):
        state = state_of(*[talking(i) for i in range(n)], cost=GPU)
        limits, alone = gap_limits(state, parts_of(state)), GPU.solo_step_ns(talking(0).n_past)
        assert int(2 * alone) <= limits.pause_ns < 2 * limits.solo_ns and int(1.2 * alone) <= limits.cap_ns < 1.2 * limits.solo_ns

    # 1.15: little is left of one stream's cap, and no more is taken; from 1.3 on the round alone is beyond it.
    @pytest.mark.parametrize(("round_x", "cap", "pause"), [(1, 1.2, 2), (1.1, 1.2, 2), (1.15, 1.2, 2), (1.3, 1.3975, 2), (2, 2.2, 2.75), (4, 4.4, 7)])
    def test_each_of_several_streams_has_the_limits_that_it_would_have_alone_as_long_as_their_round_leaves_room(self, round_x, cap, pause):
        state = state_of(talking(0))
        limits = gap_limits(state, parts_of(state)._replace(talk_ns=int(round_x * SOLO)))
        assert limits.cap_ns / SOLO == pytest.approx(min(cap, 1.2 * round_x), rel=1e-3)
        assert limits.pause_ns / SOLO == pytest.approx(pause, rel=1e-3)


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
        plan = run(state_of(talking(0), paused, carry=memory(credit=1.0)))
        assert 1.2 * SOLO < SOLO + plan.run_ns <= 2.0 * SOLO
        assert plan.carry["latency_guard"].credit < 0.1, "one long gap is spent"

    def test_a_lane_fills_with_a_restored_beginning_while_no_piece_fits(self):
        restored = reading(1, BACK, n_prompt=1200, n_past=900, n_cached=900, n_chunk=256)
        plan = run(state_of(talking(0), restored))
        assert prefill_item(plan).sid == 1 and plan.min_pieces == 0
        assert plan.run_ns <= 0.2 * SOLO < plan.quantum_ns, "copies in slices, no piece of the chunk"
        assert run(state_of(talking(0), restored._replace(t_progress_ns=NOW - 2 * STARVED))).min_pieces == 1

    def test_a_starved_prompt_is_forced_one_piece(self):
        paused = reading(1, BACK, n_prompt=1200, n_chunk=256, chunk_fraction=0.2, t_progress_ns=NOW - STARVED)
        plan = run(state_of(talking(0), paused))
        assert (prefill_item(plan).sid, plan.min_pieces) == (1, 1)

    def test_a_piece_beyond_the_pause_limit_is_forced_more_rarely(self):
        coarse = reading(1, BACK, n_prompt=1200, n_chunk=512, chunk_fraction=0.2)
        assert CPU.piece_ns(512, 0) > SOLO
        assert prefill_item(run(state_of(talking(0), coarse._replace(t_progress_ns=NOW - STARVED)))) is None
        assert run(state_of(talking(0), coarse._replace(t_progress_ns=NOW - 4 * STARVED))).min_pieces == 1

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
        assert prefill_item(run(state_of(talking(0), slow, n_prefill_lanes=0))) is None
        plan = run(state_of(talking(0), slow._replace(t_progress_ns=NOW - 4 * STARVED), n_prefill_lanes=0))
        assert prefill_item(plan).n_tokens == min(CPU.chunks)


class TestInteractivePromptBesideAChat:
    def cap(self, view, knobs=None):
        state = state_of(talking(0), view, knobs=knobs)
        return urgent_cap(state, view, gap_limits(state, parts_of(state)), usual_ns=SOLO // 10) / SOLO

    def test_everyday_gaps_do_while_its_deadline_is_far(self):
        relaxed = reading(1, n_prompt=100, slo_ttft_ns=12 * CPU.prompt_ns(100, 0))
        assert self.cap(relaxed) == pytest.approx(1.2, rel=0.01)
        assert self.cap(relaxed._replace(t_queued_ns=NOW - 2 * CPU.prompt_ns(100, 0))) == pytest.approx(2.0, rel=0.01), "not for long"

    def test_it_gets_few_long_gaps_instead_of_many_of_middling_length(self):
        fresh = reading(1, n_prompt=100)
        assert self.cap(fresh) == pytest.approx(2.0, rel=0.01)
        nearly = fresh._replace(n_chunk=100, chunk_fraction=0.98)
        assert self.cap(nearly) == pytest.approx(1.2, rel=0.01), "the rest fits everyday gaps"

    def test_a_long_gap_of_its_uses_up_the_allowance_of_background_work(self):
        plan = run(state_of(talking(0), reading(1, n_prompt=100), carry=memory(credit=0.5)))
        assert plan.run_ns > 0.5 * SOLO
        assert plan.carry["latency_guard"].credit == pytest.approx(Knobs().long_tick_share - 0.5)

    def test_a_short_one_waits_a_little_longer_and_is_hardly_felt(self):
        own = CPU.prompt_ns(8, 0)
        assert TTFT_STRETCH * own < TTFT_STEPS * SOLO
        late = reading(1, n_prompt=8, t_queued_ns=int(NOW - 1.5 * TTFT_STRETCH * own))
        assert self.cap(late) <= 2.0, "not overdue yet"

    def test_overdue_it_grows_with_the_wait_up_to_a_limit(self):
        target = TTFT_STRETCH * CPU.prompt_ns(200, 0)
        caps = [self.cap(reading(1, n_prompt=200, t_queued_ns=int(NOW - k * target))) for k in (1, 2, 3, 50)]
        assert caps == sorted(caps)
        assert caps[0] == pytest.approx(2.0, rel=0.01) and caps[1] == pytest.approx(4.0, rel=0.01)
        assert caps[-1] == pytest.approx(OVERDUE_CAP, rel=0.01)

    def test_its_last_token_becomes_a_row_of_the_chats_step_where_rows_are_cheap(self):
        new = reading(1, n_prompt=16)
        item = prefill_item(run(state_of(talking(0), new, cost=GPU)))
        assert (item.n_tokens, item.want_logits) == (15, False)
        assert CPU.rows_ns(2, 200) - CPU.rows_ns(1, 100) > 0.2 * SOLO
        item = prefill_item(run(state_of(talking(0), new)))
        assert (item.n_tokens, item.want_logits) == (16, True)
        again = new._replace(n_generated=5, t_first_ns=NOW - S)
        assert prefill_item(run(state_of(talking(0), again, cost=GPU))).n_tokens == 16, "what comes next is known already"

    @pytest.mark.parametrize("noise", [0.0, 0.05, 0.15, 0.25])
    def test_a_long_gap_stays_below_the_pause_limit_with_the_noise_that_stretches_it(self, noise):
        coarse = reading(1, BACK, n_prompt=3000, n_chunk=128, chunk_fraction=0.3)
        plan = run(state_of(talking(0), coarse, carry=memory(credit=1.0, noise=noise)))
        gap = SOLO + plan.run_ns
        assert plan.carry["latency_guard"].last_kind == Kind.LONG
        assert max(gap * (1.0 + noise), gap + 0.3 * SOLO) <= 2.0 * SOLO
        assert gap >= 1.5 * SOLO, "it is used all the same"

    def test_noise_is_left_free_by_background_prompts_and_used_by_those_of_chats(self):
        def everyday(view, noise):
            return run(state_of(talking(0), view, carry=memory(noise=noise))).run_ns

        background = reading(1, BACK, n_prompt=1200)
        mine = reading(1, n_prompt=16, slo_ttft_ns=600 * CPU.prompt_ns(16, 0))
        assert everyday(background, 0.05) < everyday(background, 0.0) == everyday(mine, 0.0) < everyday(mine, 0.05)
        assert everyday(background, 0.05) == pytest.approx(everyday(background, 0.0) - 0.05 * 1.2 * SOLO, rel=0.01)
        least = BACKGROUND_SHARE * 0.2 * SOLO
        assert everyday(background, 0.25) == pytest.approx(least, rel=0.01), "noise alone does not stop it"

    def test_background_prompts_have_no_such_right(self):
        late = reading(1, BACK, n_prompt=1200, t_queued_ns=NOW - 60 * S, t_progress_ns=NOW - MS)
        assert run(state_of(talking(0), late)).run_ns + SOLO <= 1.2 * SOLO

    def test_it_goes_before_background_streams(self):
        plan = run(state_of(talking(0), talking(1, BACK), reading(2, n_prompt=300), cost=GPU))
        assert sids(plan, Phase.DECODE) == [0] and prefill_item(plan).sid == 2


class TestBackgroundStreams:
    def test_on_the_cpu_a_second_row_does_not_fit_and_is_forced_at_the_bound(self):
        worker = talking(1, BACK, n_past=100)
        assert sids(run(state_of(talking(0), worker)), Phase.DECODE) == [0]
        assert sids(run(state_of(talking(0), worker, carry=memory(credit=1.0))), Phase.DECODE) == [0], "nor into a long gap"
        starved = worker._replace(t_last_ns=NOW - STARVED)
        assert sorted(sids(run(state_of(talking(0), starved)), Phase.DECODE)) == [0, 1]

    def test_what_is_forced_uses_up_the_allowance_of_long_gaps(self):
        starved = talking(1, BACK, n_past=100, t_last_ns=NOW - STARVED)
        share = Knobs().long_tick_share
        assert [run(state_of(talking(0), starved, carry=memory(credit=c))).carry["latency_guard"].credit for c in (0.5, CREDIT_MIN)] == [
            pytest.approx(share - 0.5),
            pytest.approx(CREDIT_MIN),
        ]

    def test_forced_rows_keep_their_distance(self):
        starved = [talking(i, BACK, n_past=100, t_last_ns=NOW - 2 * STARVED) for i in (1, 2)]
        state = state_of(talking(0), *starved, carry=memory(forced_tick=1000 - 63))
        assert sids(run(state), Phase.DECODE) == [0]
        assert len(sids(run(state._replace(tick=1001)), Phase.DECODE)) == 2

    def test_on_the_gpu_a_neighbour_rides_along(self):
        plan = run(state_of(talking(0), talking(1, BACK), cost=GPU))
        assert {i.call for i in plan.items} == {0} and len(plan.items) == 2

    def test_as_many_as_fit(self):
        views = [talking(i, BACK) for i in range(1, 7)]
        everyday = run(state_of(talking(0), *views, cost=GPU))
        long = run(state_of(talking(0), *views, cost=GPU, carry=memory(credit=1.0)))
        assert 2 <= len(everyday.items) < len(long.items)

    def test_the_floor_relaxes_it(self):
        plan = run(state_of(talking(0), talking(1, BACK), knobs=Knobs(guard_floor_ns=40 * MS)))
        assert sorted(sids(plan, Phase.DECODE)) == [0, 1]

    def test_background_rows_and_prompts_take_turns(self):
        views = (talking(0), talking(1, BACK), reading(2, BACK, n_prompt=5000))
        carry, turns = {}, []
        for tick in range(20):
            plan = run(state_of(*views, cost=GPU, tick=tick, carry=carry))
            carry = dict(plan.carry)
            turns.append((len(sids(plan, Phase.DECODE)) - 1, prefill_item(plan) is not None))
        assert sum(rows for rows, _ in turns) >= 5 and sum(read for _, read in turns) >= 5


class TestTransfers:
    def test_they_come_first_and_leave_the_rest(self):
        moving = reading(2, is_ready=False, is_transferring=True)
        plan = run(state_of(talking(0), reading(1, BACK, n_prompt=1200), moving))
        assert plan.transfer_ns > 0
        assert SOLO + plan.run_ns + plan.transfer_ns <= 1.2 * SOLO

    def test_what_one_slice_takes_is_not_left_for_prompts(self):
        moving = reading(2, BACK, is_ready=False, is_transferring=True)
        fat = {"kv_bytes_per_cell": 1 << 20, "cost": GPU}
        one = GPU.transfer_ns(64 << 20)
        coarse = reading(1, BACK, n_prompt=5000, n_chunk=512)
        plan = run(state_of(talking(0), coarse, moving, carry=memory(credit=1.0), **fat))
        step = GPU.solo_step_ns(110)
        assert plan.run_ns > 0 and step + one + plan.run_ns <= 2.0 * step

    def test_a_background_copy_takes_half_of_the_room_at_most(self):
        big = {"kv_bytes_per_cell": 10_000_000}
        chat = run(state_of(talking(0), reading(2, is_ready=False, is_transferring=True), **big)).transfer_ns
        back = run(state_of(talking(0), reading(2, BACK, is_ready=False, is_transferring=True), **big)).transfer_ns
        assert back == pytest.approx(chat / 2, rel=0.01)

    def test_a_restored_document_gets_more_than_a_chunk_that_is_handed_over(self):
        known = {"is_ready": False, "is_transferring": True, "n_prompt": 8000}
        chunk, document = (
            run(state_of(talking(0), reading(2, BACK, n_past=n_past, **known), kv_bytes_per_cell=10_000)).transfer_ns for n_past in (4000, 0)
        )
        assert chunk < document <= 0.1 * SOLO


class TestLearning:
    def after(self, start, gaps, kind):
        """The memory after a stream had these gaps, in units of solo."""
        known, t_last, n = start._replace(watch_sid=0, watch_ns=NOW, watch_n=10, watch_kind=int(kind), last_kind=int(kind)), NOW, 10
        for gap in gaps:
            t_last, n = t_last + int(gap * SOLO), n + 1
            state = state_of(talking(0, t_last_ns=t_last, n_generated=n))
            parts = parts_of(state)
            known = learn(known, state, parts, gap_limits(state, parts))
        return known

    def test_margin_grows_when_everyday_gaps_exceed_the_cap_and_shrinks_slowly(self):
        grown = self.after(GuardMemory(), [1.3] * 3, Kind.NORMAL)
        assert grown.margin > 0.1
        shrunk = self.after(grown, [1.1] * 10, Kind.NORMAL)
        assert grown.margin - 0.02 < shrunk.margin < grown.margin

    def test_margin_settles_where_few_gaps_exceed(self):
        """3 of 100 gaps over the cap keep the margin where it is."""
        start = GuardMemory(margin=0.1)
        assert self.after(start, ([1.1] * 32 + [1.25]) * 10, Kind.NORMAL).margin == pytest.approx(0.1, abs=0.06)

    def test_gaps_of_the_chat_alone_move_no_margin_but_use_up_credit(self):
        noisy = self.after(GuardMemory(credit=1.0), [1.4], Kind.NOTHING)
        assert noisy.margin == GuardMemory().margin and noisy.credit == 0.0

    def test_noise_is_the_p95_of_decode_calls_over_their_prediction(self):
        def noise(slow, phase=Phase.DECODE):
            calls = [report(phase, 1, SOLO, int(x * SOLO)) for x in [1.0] * 9 + [slow]] * 30
            state = state_of(talking(0), reports=tuple(calls))
            return learn(GuardMemory(), state, parts_of(state), gap_limits(state, parts_of(state))).noise

        assert noise(1.0) == 0.0
        assert noise(1.15) == pytest.approx(0.15, abs=0.05)
        assert noise(9.0) <= 0.25, "a machine that busy is no excuse"
        assert noise(1.15, phase=Phase.PREFILL) == 0.0

    def test_a_gap_that_noise_explains_moves_no_margin(self):
        quiet, noisy = (self.after(GuardMemory(noise=noise), [1.25] * 3, Kind.NORMAL) for noise in (0.0, 0.1))
        assert quiet.margin > 0.1 and noisy.margin == GuardMemory().margin
        assert quiet.credit < noisy.credit

    def test_a_gap_beyond_the_pause_limit_backs_off_and_recovers(self):
        hit = self.after(GuardMemory(), [2.5], Kind.LONG)
        assert hit.throttle == 0.5 and hit.hard_margin > GuardMemory().hard_margin
        assert self.after(hit, [1.0] * 6, Kind.NORMAL).throttle == 1.0

    def after_repeats(self, start, *calls):
        """The memory after a plan was repeated: these decode calls, in units of solo."""
        t_last, reports = NOW + int(sum(calls) * SOLO), tuple(report(Phase.DECODE, 1, SOLO, int(x * SOLO)) for x in calls)
        state = state_of(talking(0, t_last_ns=t_last, n_generated=10 + len(calls)), reports=reports)
        known = start._replace(watch_sid=0, watch_ns=NOW, watch_n=10)
        return learn(known, state, parts_of(state), gap_limits(state, parts_of(state)))

    def test_repeated_plans_are_judged_by_their_calls(self):
        start = GuardMemory(credit=1.0, margin=0.15, throttle=0.5, noise=0.25)  # no call below is beyond the noise
        quiet, noisy = self.after_repeats(start, *[1.0] * 10), self.after_repeats(start, *[1.0] * 8, 1.6, 1.7)
        assert quiet.margin < noisy.margin < start.margin
        assert quiet.credit == 1.0 and noisy.credit == -1.0
        assert quiet.throttle == 1.0 and self.after_repeats(start, 1.0, 1.0).throttle == pytest.approx(0.7)

    def test_every_round_of_a_repeated_plan_earns_credit(self):
        state = state_of(talking(0, t_last_ns=NOW, n_generated=20), carry=memory(watch_sid=0, watch_ns=NOW - 10 * SOLO, watch_n=10))
        assert run(state).carry["latency_guard"].credit == pytest.approx(10 * Knobs().long_tick_share)

    def test_a_stream_that_begins_spends_no_long_gap_of_others(self):
        coarse = reading(1, BACK, n_prompt=3000, n_chunk=128, chunk_fraction=0.3)

        def credit(*views, earned=1.0):
            return run(state_of(*views, coarse, carry=memory(credit=earned))).carry["latency_guard"].credit

        share = Knobs().long_tick_share
        assert credit(talking(0, n_generated=9)) == 0.0, "spent"
        assert credit(talking(0, n_generated=1)) == pytest.approx(share)
        assert credit(talking(0, n_generated=9), talking(2, n_generated=1)) == pytest.approx(share)
        assert credit(talking(0, n_generated=1), earned=-2.0) == pytest.approx(share - 2.0), "what is owed is owed by all"

    def test_credit_never_exceeds_one_gap(self):
        known = GuardMemory()
        for _ in range(100):
            known = earn(known, 0.04)
        assert known.credit == 1.0


class TestNeighbours:
    """Sequences with streams of their own share a call only with neighbours."""

    def test_all_ride_along_where_they_reach_the_chat_together(self):
        views = [talking(i, BACK) for i in range(3)]
        plan = run(state_of(*views, talking(3), cost=GPU, carry=memory(credit=1.0, cursor=2)))
        assert len(plan.items) == 4 and {i.call for i in plan.items} == {0}

    def test_a_neighbour_rides_along_when_it_is_not_its_turn(self):
        views = [talking(0, BACK), talking(2, BACK)]
        plan = run(state_of(*views, talking(3), cost=GPU))
        assert sorted(sids(plan, Phase.DECODE)) == [2, 3]

    def test_new_chunks_leave_room_for_margins_to_grow(self):
        state = state_of(talking(0), reading(1, BACK, n_prompt=1200))
        n = prefill_item(run(state)).n_tokens
        tight = run(state._replace(carry=memory(margin=0.06)))
        assert CPU.piece_ns(n, 0) <= tight.run_ns


def test_a_chats_arriving_cells_make_a_long_gap_where_a_worker_waits():
    """However the rest of the gap is shared out, the next long one has to wait for its credit."""
    arriving = talking(2, is_ready=False, is_transferring=True)
    prompt = reading(3, Lane.INTERACTIVE, n_prompt=1, t_queued_ns=NOW, t_progress_ns=NOW, slo_ttft_ns=50 * MS)
    views = (talking(0, slo_tbt_ns=SOLO // 2), talking(1, BACK), arriving, prompt)  # so fast that there is no everyday room
    plan = run(state_of(*views, carry=memory(credit=-1.0), n_prefill_lanes=0))
    assert sids(plan, Phase.DECODE) == [0] and plan.transfer_ns > 0
    assert plan.carry["latency_guard"].last_kind >= Kind.LONG
    assert plan.carry["latency_guard"].credit <= -1.9


@pytest.mark.parametrize(("lane", "fraction", "is_granted"), [(Lane.INTERACTIVE, 0.95, True), (Lane.INTERACTIVE, 0.0, False), (BACK, 0.95, False)])
def test_a_chat_whose_prompt_ends_now_gets_its_cells_in_the_same_gap(lane, fraction, is_granted):
    """Otherwise its second token waits for one more tick of the others."""
    prompt = reading(1, lane, n_prompt=64, n_chunk=64, chunk_fraction=fraction)
    cost = CPU._replace(transfer_fixed_ns=200_000.0)
    plan = run(state_of(talking(0), prompt, cost=cost))
    assert (plan.transfer_ns > cost.transfer_ns(64 * state_of().device.kv_bytes_per_cell)) is is_granted
