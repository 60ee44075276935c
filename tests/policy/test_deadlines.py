"""When first tokens are due: chats begin together, prompts get long gaps in time, and overdue prompts get longer
gaps.
"""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, MS, NOW, S, reading, sids, state_of, talking
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.deadlines import OVERDUE, STEPS, STRETCH, left_to_read_ns, next_limit_ns
from uma_core.policy.index import index_of
from uma_core.policy.pipeline import compose
from uma_core.policy.tbt.limits import tbt_limits
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

    def test_it_does_not_wait_for_long(self):
        assert streaming(begun(0), reading(1, n_prompt=3000)) == [0]
        assert streaming(begun(0, t_queued_ns=NOW - int(STRETCH * STEPS) * SOLO), reading(1, n_prompt=50)) == [0]
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
    """The gap's limit while a chat's prompt waits beside another chat, in steps of the other chat."""

    def limit(self, view, slo_ns=0):
        state = state_of(talking(0), view, config=SchedulerConfig(slo_ttft_ns=slo_ns))
        limits = tbt_limits(state, index_of(state))
        usual = (SOLO // 10, SOLO // 10)
        return next_limit_ns(state, view, limits, usual) / SOLO

    def test_everyday_gaps_do_while_its_deadline_is_far(self):
        relaxed = reading(1, n_prompt=100, slo_ttft_ns=12 * OWN)
        assert self.limit(relaxed) == pytest.approx(1.2, rel=0.01)
        assert self.limit(relaxed._replace(t_queued_ns=NOW - 2 * OWN)) == pytest.approx(2.0, rel=0.01), "not for long"
        assert self.limit(reading(1, n_prompt=100), slo_ns=12 * OWN) == pytest.approx(1.2, rel=0.01), (
            "the default target counts too"
        )

    def test_it_gets_few_long_gaps_instead_of_many_of_middling_length(self):
        fresh = reading(1, n_prompt=100)
        assert self.limit(fresh) == pytest.approx(2.0, rel=0.01)
        nearly = fresh._replace(n_chunk=100, chunk_fraction=0.98)
        assert self.limit(nearly) == pytest.approx(1.2, rel=0.01), "the rest fits everyday gaps"

    def test_a_short_one_waits_a_little_longer_and_is_hardly_felt(self):
        own = CPU.prompt_ns(8, 0)
        assert STRETCH * own < STEPS * SOLO
        late = reading(1, n_prompt=8, t_queued_ns=int(NOW - 1.5 * STRETCH * own))
        assert self.limit(late) <= 2.0, "not overdue yet"

    def test_overdue_it_grows_with_the_wait_up_to_a_limit(self):
        target = STRETCH * CPU.prompt_ns(200, 0)
        limits = [self.limit(reading(1, n_prompt=200, t_queued_ns=int(NOW - k * target))) for k in (1, 1.25, 1.5, 50)]
        assert limits == sorted(limits) and len(set(limits)) == 4 - (limits[-2] == limits[-1])
        assert limits[0] == pytest.approx(2.0, rel=0.01) and limits[-1] == pytest.approx(OVERDUE, rel=0.01)


def test_what_is_left_counts_what_a_chunk_has_done():
    whole = reading(1, n_prompt=300)
    half = whole._replace(n_chunk=300, chunk_fraction=0.5)
    state = state_of(whole)
    assert left_to_read_ns(state, half) == left_to_read_ns(state, whole) - int(0.5 * CPU.prefill_ns(300, 0))
    assert left_to_read_ns(state, whole._replace(phase=Phase.DECODE, n_past=300)) == 0 < MS
