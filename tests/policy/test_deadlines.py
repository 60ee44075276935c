"""When first tokens are due: chats begin together, and late prompts get long gaps."""

from __future__ import annotations

from tests.policy.build import CPU, MS, NOW, S, guarded, reading, sids, state_of, talking
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.deadlines import STEPS, TOGETHER, left_to_read_ns
from uma_core.policy.pipeline import compose
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
OWN = CPU.prompt_ns(100, 0)
SOLO = CPU.solo_step_ns(110)


def begun(sid, **more):
    """Return a chat whose prompt is read, but whose first token has not been sent."""
    return talking(
        sid, **{"n_generated": 0, "n_past": 100, "t_queued_ns": NOW - OWN, "t_first_ns": 0, "t_last_ns": 0, **more}
    )


def streaming(*views):
    """Return the sessions that decode in the next tick."""
    return sids(compose(SchedulerConfig().stages)(state_of(*views)), Phase.DECODE)


class TestBeginningTogether:
    def test_a_chat_waits_for_a_prompt_that_can_be_read_before_it_is_due(self):
        assert streaming(begun(0), reading(1, n_prompt=50)) == []
        assert streaming(begun(0, is_ready=False, is_transferring=True), reading(1, n_prompt=50)) == []
        assert streaming(begun(0), begun(1), reading(2, n_prompt=50)) == []
        assert streaming(begun(0), reading(1, n_prompt=2000, n_past=1900, n_chunk=100, chunk_fraction=0.9)) == []

    def test_a_note_says_who_waits(self):
        state = state_of(begun(0), begun(1), reading(2, n_prompt=50))
        assert "deadlines: wait to begin with the next chat: 0, 1" in compose(SchedulerConfig().stages)(state).notes
        assert not compose(SchedulerConfig().stages)(state_of(begun(0), talking(1))).notes

    def test_it_does_not_wait_for_long(self):
        assert streaming(begun(0), reading(1, n_prompt=3000)) == [0]
        assert streaming(begun(0, t_queued_ns=NOW - int(TOGETHER * STEPS) * SOLO), reading(1, n_prompt=50)) == [0]
        assert streaming(begun(0, slo_ttft_ns=OWN), reading(1, n_prompt=50)) == [0]

    def test_nobody_waits_for_background_prompts_or_for_those_that_cannot_go_on(self):
        assert streaming(begun(0), reading(1, BACK, n_prompt=50)) == [0]
        assert streaming(begun(0), reading(1, n_prompt=50, is_ready=False)) == [0]
        again = reading(1, n_prompt=50, n_generated=3, t_first_ns=NOW - S)
        assert streaming(begun(0), again) == [0], "it reads its own answer again"

    def test_where_somebody_streams_nobody_waits(self):
        assert streaming(begun(0), talking(1), reading(2, n_prompt=50)) == [0, 1]
        arriving = talking(1, is_ready=False, is_transferring=True)
        assert streaming(begun(0), arriving, reading(2, n_prompt=50)) == [0]

    def test_background_streams_do_not_count(self):
        due = talking(1, BACK, t_last_ns=NOW - 10 * S)
        assert streaming(begun(0), due, reading(2, n_prompt=50)) == [1]


class TestTheNextGap:
    """The gap of another chat while a chat's prompt is read beside it, as planned."""

    def gap(self, view, **more):
        state = state_of(talking(0), view, memory=guarded(error=0.0), **more)
        plan = compose(SchedulerConfig().stages)(state)
        return plan.guard.kind, (plan.guard.round_ns + plan.run_ns + plan.transfer_ns) / SOLO

    def test_everyday_gaps_do_while_its_deadline_is_far(self):
        relaxed = reading(1, n_prompt=100, slo_ttft_ns=20 * OWN)
        assert self.gap(relaxed)[1] <= 1.21
        assert self.gap(relaxed._replace(t_queued_ns=NOW - 15 * OWN))[0] == "urgent", "not for long"
        default = SchedulerConfig(slo_ttft_ns=20 * OWN)
        assert self.gap(reading(1, n_prompt=100), config=default)[1] <= 1.21, "the default target counts too"

    def test_it_gets_few_long_gaps_instead_of_many_of_middling_length(self):
        fresh = reading(1, n_prompt=100)
        kind, steps = self.gap(fresh)
        assert kind == "urgent" and 1.6 < steps <= 2.0
        nearly = fresh._replace(n_chunk=100, chunk_fraction=0.98)
        assert self.gap(nearly)[1] <= 1.21, "the rest fits everyday gaps"

    def test_a_long_wait_makes_no_gap_longer_than_the_long_limit(self):
        assert 1.9 < self.gap(reading(1, n_prompt=200, t_queued_ns=NOW - 60 * S))[1] <= 2.01

    def test_where_chunks_cannot_pause_it_gets_gaps_that_hold_one(self):
        kind, steps = self.gap(reading(1, n_prompt=200, t_queued_ns=NOW - 60 * S), n_prefill_slots=0)
        assert kind == "urgent" and steps <= 3.0


def test_what_is_left_counts_what_a_chunk_has_done():
    whole = reading(1, n_prompt=300)
    half = whole._replace(n_chunk=300, chunk_fraction=0.5)
    state = state_of(whole)
    assert left_to_read_ns(state, half) == left_to_read_ns(state, whole) - int(0.5 * CPU.prefill_ns(300, 0))
    assert left_to_read_ns(state, whole._replace(phase=Phase.DECODE, n_past=300)) == 0 < MS
