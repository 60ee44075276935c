"""How much of a prompt is read at once: as rows of the streams' own call, as chunks for their gaps, or as chunks
without streams.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from perf.simulator import Job, Sim, percentile
from tests.policy.build import (
    CPU,
    MIX_ROWS,
    MIXING,
    MS,
    NOW,
    S,
    planned,
    prefill_item,
    reading,
    sids,
    state_of,
    talking,
)
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeModel
from uma_core.policy.chunks import mixed_rows
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.model import MAX_ROWS
from uma_core.policy.index import index_of
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import PrefillMode
from uma_core.policy.tbt.limits import tbt_limits
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
FOREVER = 2**60
STAGES = ("decode_first", "prefill_order", "prefill_budget", "latency_guard")


def together(*views, **more):
    return state_of(*views, **{"cost": MIXING, "mixed_rows": MIX_ROWS, "can_mix_rows": True, **more})


def n_mixed(state, view, limit_ns=FOREVER):
    rows = mixed_rows(state, view, limit_ns)
    return rows[0] if rows else 0


run = functools.partial(planned, STAGES)


class TestHowMany:
    def test_as_many_as_fit(self):
        view = reading(1, n_prompt=1200)
        state = together(talking(0), view)
        for n in (1, 3, 7, 15):
            limit = MIXING.mixed_ns(1, n, 0)
            assert n_mixed(state, view, limit) == n
            assert n_mixed(state, view, limit - 1) < n

    def test_streams_and_the_prompt_together_make_a_size_that_the_engine_is_prepared_for(self):
        view = reading(5, n_prompt=1200)
        for n_streams in (1, 2, 3):
            state = together(*[talking(i) for i in range(n_streams)], view, cost=one_call_each(MIXING))
            for limit in (MS // 2, 2 * MS, 5 * MS, 20 * MS):
                n = n_mixed(state, view, limit)
                assert not n or n + n_streams in MIX_ROWS

    @pytest.mark.parametrize(
        ("n_left", "n_generated", "n"), [(8, 0, 7), (3, 0, 1), (2, 0, 1), (1, 0, 1), (2, 5, 1), (1, 5, 1), (8, 5, 7)]
    )
    def test_the_last_token_of_a_new_prompt_stays_for_the_step_that_answers(self, n_left, n_generated, n):
        view = reading(1, n_prompt=100, n_past=100 - n_left, n_generated=n_generated)
        assert n_mixed(together(talking(0), view), view) == n

    def test_a_rest_that_no_size_has_room_for_is_read_all_the_same(self):
        view = reading(5, n_prompt=3)
        state = together(talking(0), talking(1), view, mixed_rows=(8,), cost=one_call_each(MIXING))
        assert n_mixed(state, view) == 2

    def test_none_where_nothing_was_measured_or_streams_or_a_chunk_is_under_way(self):
        view = reading(1, n_prompt=1200)
        assert n_mixed(together(talking(0), view), view)
        assert not n_mixed(together(talking(0), view, cost=CPU), view)
        assert not n_mixed(together(view), view)
        assert not n_mixed(together(talking(0, BACK), view), view), "nobody's gap is in question"
        assert not n_mixed(together(talking(0), view, mixed_rows=()), view)
        busy = view._replace(n_chunk=64, chunk_fraction=0.5)
        assert not n_mixed(together(talking(0), busy), busy)
        crowd = [talking(10 + i) for i in range(MAX_ROWS + 1)]
        assert not n_mixed(together(*crowd, view), view)

    def test_streams_that_take_several_calls_have_none_to_share(self):
        view = reading(5, n_prompt=1200)
        assert len(MIXING.splits[2]) == 2
        assert not n_mixed(together(talking(0), talking(1), view), view)

    def test_deep_in_a_context_where_a_row_reads_it_all_chunks_read_more(self):
        dear = MIXING._replace(mixed=MIXING.mixed._replace(slope=(500.0, 40000.0, 80000.0)))
        shallow, deep = reading(1, n_prompt=3000), reading(1, n_prompt=3000, n_past=2000)
        state = together(talking(0), shallow, deep._replace(sid=2, seq_id=2), cost=dear)
        assert n_mixed(state, shallow, 10 * MS) and not n_mixed(state, deep, 10 * MS)


class TestInAPlan:
    def test_a_prompt_is_read_in_the_streams_own_call_and_the_gap_stays_an_everyday_one(self):
        for priority in Priority:
            state = together(talking(0), reading(1, priority, n_prompt=1200))
            plan = run(state)
            item = prefill_item(plan)
            assert item.mode is PrefillMode.MIXED and item.call == plan.items[0].call and not item.want_logits
            assert sids(plan, Phase.DECODE) == [0] and plan.run_ns == MIXING.mixed_ns(1, item.n_tokens, 0)
            assert index_of(state).round_ns + plan.run_ns <= tbt_limits(state, index_of(state)).everyday_ns

    def test_a_short_chats_prompt_needs_no_long_gap(self):
        """In chunks it would need one: before its deadline, everyday gaps have no room for chunks."""
        new = reading(1, n_prompt=32)
        t_late = NOW - 300 * MS
        for cost, is_long in ((CPU, True), (MIXING, False)):
            plan = run(together(talking(0), new._replace(t_queued_ns=t_late), cost=cost))
            assert (plan.run_ns > 0.5 * CPU.solo_step_ns(110)) is is_long

    def test_what_comes_back_after_parking_ends_with_its_logits(self):
        back = reading(1, n_prompt=100, n_past=99, n_generated=5, t_first_ns=NOW - S)
        assert prefill_item(run(together(talking(0), back))).want_logits

    def test_without_the_guard_batches_are_not_mixed(self):
        state = together(talking(0), reading(1, n_prompt=1200), config=SchedulerConfig(stages=STAGES[:-1]))
        item = prefill_item(compose(state.config.stages)(state))
        assert item.mode is PrefillMode.SLICED


def one_call_each(cost):
    """Let one call be best for any number of rows, as with kernels for few rows."""
    return cost._replace(splits=tuple((n,) if n else () for n in range(len(cost.splits))))


FEW_ROWS = replace(CPU_SHAPE, decode=((1, 16.2 * MS), (8, 17.5 * MS), (16, 28.0 * MS)))
MODEL = FakeModel(is_unified=True, ride_rows=MIX_ROWS)


class TestOnVirtualTime:
    def storm(self, model):
        sim = Sim(FEW_ROWS, model, None, noise=0.02)
        chat = sim.submit(Job(32, 1500))
        prompts = [sim.submit(Job(600, 1, BACK, 2, at_ns=(500 + 200 * i) * MS)) for i in range(4)]
        sim.run()
        return chat, prompts

    def test_a_storm_is_read_sooner_and_felt_less(self):
        alone = self.solo()
        rides, chunks = self.storm(MODEL), self.storm(replace(MODEL, ride_rows=()))
        done = [sum(p.ttft for p in prompts) for _, prompts in (rides, chunks)]
        assert done[0] < 0.85 * done[1]
        base = percentile(alone.gaps, 0.5)
        assert percentile(rides[0].gaps, 0.95) <= 1.2 * base and max(rides[0].gaps) <= 2 * base

    def solo(self):
        sim = Sim(FEW_ROWS, MODEL, None, noise=0.02)
        chat = sim.submit(Job(32, 1500))
        sim.run()
        return chat

    def test_a_second_chat_is_answered_within_a_few_steps(self):
        sim = Sim(FEW_ROWS, MODEL, None)
        first, second = sim.submit(Job(32, 100)), sim.submit(Job(32, 20, at_ns=500 * MS))
        sim.run()
        base = percentile(first.gaps, 0.5)
        assert second.ttft <= 8 * base and max(first.gaps) <= 1.2 * base
