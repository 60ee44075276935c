"""How much of a prompt a tick reads if there is no chat to protect."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from tests.policy.build import (
    CPU,
    GPU,
    MS,
    NOW,
    S,
    cost_of,
    planned,
    prefill_item,
    reading,
    report,
    sids,
    state_of,
    talking,
)
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.memory import PolicyMemory
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
STAGES = ("decode_first", "prefill_order", "prefill_budget")


run = functools.partial(planned, STAGES)


@pytest.mark.parametrize("cost", [CPU, GPU], ids=["cpu", "gpu"])
def test_alone_a_prompt_gets_a_long_run_in_large_chunks_and_short_pieces(cost):
    plan = run(state_of(reading(1, BACK, n_prompt=3000), cost=cost))
    assert prefill_item(plan).n_tokens >= 256
    assert plan.run_ns == pytest.approx(9 * SchedulerConfig().tick_budget_ns, rel=0.01)
    assert 0 < plan.quantum_ns <= 8 * MS
    assert plan.quantum_ns <= cost.prefill_ns(32, 0), "a new chat waits for less than its own prompt takes"


@pytest.mark.parametrize("moving", [True, False], ids=["under-way", "to-begin"])
def test_a_chat_whose_beginning_is_restored_waits_for_one_tick_of_a_background_prompt(moving):
    """The KV moves after the run, so a run as long as a chunk would delay the chat by seconds."""
    chat = {"n_prompt": 900, "cached_hint": 800, "restore_ns": MS}
    chat |= {"is_transferring": True, "is_ready": False} if moving else {}
    state = state_of(reading(1, BACK, n_prompt=3000, n_chunk=512), reading(2, **chat))
    plan = planned(("prefix_reuse", *STAGES), state)
    assert plan.restore == (() if moving else (2,))
    assert prefill_item(plan).sid == 1
    assert plan.run_ns <= SchedulerConfig().tick_budget_ns


def test_the_end_of_a_prompt_is_read_in_one_chunk_where_that_is_fastest():
    assert prefill_item(run(state_of(reading(1, n_prompt=70), cost=GPU))).n_tokens == 70
    assert prefill_item(run(state_of(reading(1, n_prompt=64)))).n_tokens == 64


def test_configuration_and_device_bound_the_chunk():
    assert (
        prefill_item(run(state_of(reading(1, n_prompt=3000), config=SchedulerConfig(prefill_burst=100)))).n_tokens
        <= 100
    )
    assert prefill_item(run(state_of(reading(1, n_prompt=3000), n_ubatch=64))).n_tokens == 64


def test_with_one_slot_background_chunks_are_short_for_a_chat_must_wait_for_their_end():
    plan = run(state_of(reading(1, BACK, n_prompt=3000), n_prefill_slots=1))
    assert CPU.prefill_ns(prefill_item(plan).n_tokens, 0) <= 4 * SchedulerConfig().tick_budget_ns


def test_background_streams_and_background_prompts_share_every_tick():
    plan = run(state_of(talking(0, BACK), talking(1, BACK), reading(2, BACK, n_prompt=900)))
    decode_ns = CPU.rows_ns(2, 220)
    assert sorted(sids(plan, Phase.DECODE)) == [0, 1]
    assert plan.run_ns == pytest.approx(9 * decode_ns, rel=0.01)


def test_a_piece_that_no_run_would_hold_is_computed_all_the_same():
    deep = reading(1, BACK, n_prompt=300_000, n_past=200_000, n_chunk=512)
    plan = run(state_of(deep))
    assert CPU.piece_ns(512, 200_000) > plan.run_ns
    assert plan.min_pieces == 1
    assert run(state_of(reading(1, BACK, n_prompt=3000))).min_pieces == 0


class TestInteractivePromptBesideBackgroundStreams:
    VIEWS = (talking(0, BACK), talking(1, BACK))

    def test_it_goes_first_and_they_wait_until_their_trickle_is_due(self):
        plan = run(state_of(*self.VIEWS, reading(2, n_prompt=900)))
        assert sids(plan, Phase.DECODE) == []
        period = 9 * CPU.rows_ns(2, 220)
        assert plan.run_ns == pytest.approx(period - 16 * MS, rel=0.01), "just until their next round"

    def test_they_are_served_when_due(self):
        due = [v._replace(t_last_ns=NOW - 10 * CPU.rows_ns(2, 220)) for v in self.VIEWS]
        assert sorted(sids(run(state_of(*due, reading(2, n_prompt=900))), Phase.DECODE)) == [0, 1]

    @pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8, 0.9, 0.99])
    def test_the_interactive_share_is_what_it_says(self, share):
        """It is a share of the time between two rounds of the streams. Whatever the share, the prompt goes on."""
        due = [v._replace(t_last_ns=NOW - 200 * CPU.rows_ns(2, 220)) for v in self.VIEWS]
        plan = run(state_of(*due, reading(2, n_prompt=900), config=SchedulerConfig(interactive_share=share)))
        round_ns = CPU.rows_ns(2, 220)
        assert sorted(sids(plan, Phase.DECODE)) == [0, 1] and sids(plan, Phase.PREFILL) == [2]
        assert plan.run_ns / (plan.run_ns + round_ns) == pytest.approx(share, rel=0.01)
        assert plan.run_ns >= plan.quantum_ns or plan.min_pieces


class TestWithoutResumablePrefill:
    def test_the_first_prompt_always_gets_a_chunk_and_the_rest_while_tokens_last(self):
        state = state_of(
            talking(0, BACK),
            reading(1, n_prompt=30),
            reading(2, n_prompt=300),
            reading(3, n_prompt=300),
            n_prefill_slots=0,
        )
        plan = run(state)
        assert sids(plan, Phase.PREFILL)[0] == 1
        assert sum(i.n_tokens for i in plan.items if i.phase is Phase.PREFILL) <= SchedulerConfig().start_target_tokens

    def test_with_nobody_decoding_the_batch_is_the_limit(self):
        plan = run(state_of(reading(1, n_prompt=3000), reading(2, n_prompt=3000), n_prefill_slots=0, n_batch=600))
        assert 512 <= sum(i.n_tokens for i in plan.items) <= 600

    def test_a_note_says_what_left_prompts_out(self):
        several = [reading(sid, n_prompt=3000) for sid in (1, 2, 3)]
        assert "1 of 3 prompts fit 512 tokens" in run(state_of(*several, n_prefill_slots=0, n_batch=512)).notes[-1]
        plan = run(state_of(reading(1, n_prompt=20), reading(2, BACK), reading(3, BACK), n_prefill_slots=0))
        assert "1 of 3 prompts: background ones wait for a chat's" in plan.notes[-1]

    @pytest.mark.parametrize(("spent", "grows"), [(20 * MS, True), (45 * MS, None), (90 * MS, False)])
    def test_the_token_budget_follows_measured_time(self, spent, grows):
        reports = (report(Phase.PREFILL, 32, spent, spent),)
        memory = PolicyMemory(prefill_budget=100)
        state = state_of(talking(0, BACK), reading(1, n_prompt=900), n_prefill_slots=0, reports=reports, memory=memory)
        n = run(state).memory.prefill_budget
        assert n == 100 if grows is None else (n > 100) is grows

    def test_where_a_step_exceeds_the_ticks_time_as_much_is_read_as_takes_hardly_longer(self):
        slow = ((1, 300 * MS), (64, 400 * MS), (512, 3000 * MS))
        cost = cost_of(replace(CPU_SHAPE, decode=((1, 300 * MS), (8, 320 * MS)), prefill=slow))
        memory, n = PolicyMemory(prefill_budget=100), 0
        for _ in range(30):
            reports = (report(Phase.PREFILL, 1, 300 * MS, 300 * MS),)
            views = talking(0, BACK), reading(1, BACK, n_prompt=900)
            plan = run(state_of(*views, n_prefill_slots=0, reports=reports, memory=memory, cost=cost))
            memory, n = plan.memory, prefill_item(plan).n_tokens
        assert n >= 32 and cost.prefill_ns(n, 0) <= 2 * cost.solo_step_ns(0)


def test_transfers_get_time_when_nothing_is_read():
    moving = talking(1, is_ready=False, is_transferring=True)
    assert run(state_of(moving)).transfer_ns >= SchedulerConfig().tick_budget_ns
    assert run(state_of(talking(0, t_queued_ns=NOW - S))).transfer_ns == 0
