"""A session's tokens by position, its way through the phases, and what it says of itself at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from uma_core.session.scoring import Scoring
from uma_core.session.session import TRANSITIONS, Grant, Session
from uma_core.types import Phase, Priority, Request, SamplingParams, Slo

MS = 1_000_000
PROMPT = [10, 11, 12]


def session(n_max: int = 9, tokens: list[int] = PROMPT, **fields: Any) -> Session:
    return Session(1, 1, Request("a", **fields), tokens, Grant(Priority.INTERACTIVE, n_max, 5 * MS))


def answered(*tokens: int, **fields: Any) -> Session:
    """Return a session whose prompt is read and which generated these tokens, one in each ms from 10 ms on."""
    it = session(**fields)
    it.become(Phase.PREFILL)
    it.t_admitted_ns = 6 * MS
    it.progress(len(PROMPT), 9 * MS)
    it.become(Phase.DECODE)
    for i, token in enumerate(tokens):
        it.add_token(token, (10 + i) * MS)
        if i:
            it.progress(1, (10 + i) * MS)
    return it


class TestPhases:
    @pytest.mark.parametrize("phase", Phase)
    def test_no_session_goes_where_its_phase_does_not_lead(self, phase):
        for other in Phase:
            it = session()
            it.phase = phase
            if other in TRANSITIONS[phase]:
                it.become(other)
                assert it.view().phase is other
            else:
                with pytest.raises(AssertionError, match=f"{phase.name} -> {other.name}"):
                    it.become(other)

    def test_every_phase_but_the_last_can_end(self):
        assert all((Phase.DONE in TRANSITIONS[phase]) == (phase is not Phase.DONE) for phase in Phase)


class TestTokens:
    def test_positions_count_from_the_prompts_first_token_to_the_answers_last(self):
        it = answered(20, 21, 22)
        assert it.next_token == 22 and it.n_content == 6
        assert it.content(2).tolist() == [10, 11] and it.content(5).tolist() == [10, 11, 12, 20, 21]
        assert it.token_at(1, 3).tolist() == [11, 12] and it.token_at(2, 5).tolist() == [12, 20, 21]
        assert session().next_token == 12

    def test_what_was_generated_can_become_part_of_the_prompt_and_no_position_changes(self):
        it = answered(20, 21, 22)
        before = it.content(6).tolist()
        it.fold()
        assert it.prompt.tolist() == [10, 11, 12, 20, 21] and it.next_token == 22
        assert it.content(6).tolist() == before and it.n_content == 6
        it.add_token(23, 20 * MS)
        assert it.content(7).tolist() == [*before, 23] and it.usage()["prompt_tokens"] == 3
        it.fold()
        assert it.prompt.tolist() == before and it.n_folded == 3
        plain = session()
        plain.fold()
        assert plain.n_rereads == 0, "there is nothing to fold"

    def test_tokens_that_are_taken_back_are_gone(self):
        it = answered(20, 21, 22)
        it.take_back(2, it.text_without(2))
        assert it.generated == [20] and it.prompt.tolist() == PROMPT and it.next_token == 20
        it.take_back(1, it.text_without(1))
        assert it.generated == [] and it.prompt.tolist() == PROMPT and it.next_token == 12

    def test_the_text_is_whole_whatever_the_context_dropped(self):
        it = answered(20, 21, 22)
        it.reread(np.array([10, 21], np.int32))
        assert it.text_without(1).tolist() == [10, 11, 12, 20, 21]

    def test_a_prompts_last_token_may_be_a_row_of_a_decode_call(self):
        it = session()
        assert not it.can_decode
        it.progress(2, 6 * MS)
        assert it.can_decode
        assert answered(20).can_decode

    def test_a_scored_prompt_grows_by_one_token_at_a_time(self):
        it = session()
        it.score(Scoring(it.prompt, lambda: None, 0))  # type: ignore[arg-type,return-value]
        assert it.prompt.tolist() == [10]
        assert not it.read_on(7 * MS) and it.prompt.tolist() == [10, 11]
        assert it.read_on(8 * MS) and it.view().n_prompt == 3 and it.view().t_progress_ns == 8 * MS


class TestDrafts:
    @pytest.mark.parametrize(("n_max", "n"), [(9, 7), (3, 1), (2, 0), (1, 0)])
    def test_as_many_as_may_follow_less_the_one_that_is_drawn_anyway(self, n_max, n):
        it = answered(20, n_max=n_max)
        assert it.n_draft_most == n and it.is_at_its_last == (n_max <= 2)

    def test_cells_bound_them_too(self):
        it = answered(20)
        it.n_cells = it.n_past + 3
        assert it.n_draft_most == 2
        it.n_cells = it.n_past
        assert it.n_draft_most == 0


class TestView:
    def test_every_change_shows(self):
        it = session(slo=Slo(7, 8))
        assert (it.view().slo_ttft_ns, it.view().slo_tbt_ns) == (7, 8) and it.view() is it.view()
        assert it.view().is_ready
        it.hold(True, 9)
        assert not it.view().is_ready and it.is_held and it.view().t_held_ns == 9
        it.hold(True, 11)
        assert it.view().t_held_ns == 9, "since when it is held"
        it.hold(False, 12)
        assert it.view().is_ready and not it.is_held
        it.n_chunk, it.chunk_fraction = 64, 0.5
        it.drop_chunk()
        assert (it.view().n_chunk, it.view().chunk_fraction) == (0, 0.0)
        it.progress(2, 13)
        assert (it.view().n_past, it.view().t_progress_ns) == (2, 13)
        it.add_token(20, 14)
        assert (it.view().n_generated, it.view().t_first_ns, it.view().t_last_ns) == (1, 14, 14)


class TestAtTheEnd:
    def test_times_are_counted_from_the_request_and_gaps_between_its_tokens(self):
        it = answered(20, 21, 22)
        it.gaps_ns = [3 * MS, MS, 2 * MS]
        assert it.timing(30 * MS) == {
            "queue_ms": 1.0, "ttft_ms": 5.0, "total_ms": 25.0, "itl_p50_ms": 2.0, "itl_max_ms": 3.0,
        }  # fmt: skip

    def test_who_never_got_a_sequence_waited_to_the_end(self):
        timing = session().timing(30 * MS)
        assert timing["queue_ms"] == timing["total_ms"] == 25.0 and timing["ttft_ms"] == timing["itl_max_ms"] == 0.0

    def test_gaps_are_those_between_tokens(self):
        assert answered(20, 21, 22).gaps_ns == [MS, MS]

    def test_usage_names_only_what_there_was(self):
        it = answered(20, 21)
        assert it.usage() == {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 2}
        it.n_drafted, it.n_accepted, it.n_dropped = 5, 3, 7
        more = {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2, "dropped_tokens": 7}
        assert it.usage().items() >= more.items()

    def test_the_likelihood_is_the_mean_of_an_answer_and_nothing_is_least_likely(self):
        it = answered(20, 21)
        it.logprob_sum = -3.0
        assert it.likelihood == -1.5 > session().likelihood


@pytest.mark.parametrize(
    ("fields", "is_watched"),
    [
        ({}, False),
        ({"stop": ("x",)}, False),
        ({"max_tokens": 0}, True),
        ({"echo": True}, True),
        ({"banned_strings": ("x",)}, True),
        ({"n": 2, "best_of": 2}, False),
        ({"n": 2, "best_of": 3}, True),
        ({"sampling": SamplingParams(logprobs=0)}, True),
        ({"sampling": SamplingParams(min_tokens=1)}, True),
    ],
)
def test_tokens_are_looked_at_one_by_one_only_where_they_matter(fields, is_watched):
    it = session(**fields)
    assert (it.answer is not None) is is_watched is it.draws_one_by_one
    assert (it.bans is not None) is ("banned_strings" in fields) is it.may_redraw


def test_a_request_without_a_seed_gets_one_of_its_own():
    assert session(sampling=SamplingParams(seed=7)).seed == 7
    assert len({session().seed for _ in range(4)}) > 1


def test_a_deadline_is_counted_from_acceptance():
    assert session(timeout_ns=3 * MS).deadline_ns == 8 * MS and session().deadline_ns == 0
