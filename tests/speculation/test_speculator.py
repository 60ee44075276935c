"""Who may draft, from which sources, and what a stream may be ahead."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from uma_core.session.draft import NO_DRAFT, Draft
from uma_core.session.session import Grant, Session
from uma_core.speculation.settings import Settings
from uma_core.speculation.speculator import AHEAD_FIRST, AHEAD_MOST, Speculator
from uma_core.types import Phase, Priority, Request, TokenId

SIDS = itertools.count(1)


class Source:
    """Drafts 7, 8, 9, ... and notes what it was asked."""

    def __init__(self, survival: float = 0.9) -> None:
        self.survival = survival
        self.n_fed = 0
        self.asked: list[tuple[list[TokenId], int, tuple[TokenId, ...]]] = []

    def feed(self) -> bool:
        self.n_fed += 1
        return True

    def propose(self, generated: Sequence[TokenId], n_most: int, forced: Sequence[TokenId] = ()) -> Draft:
        self.asked.append((list(generated), n_most, tuple(forced)))
        tokens = tuple(range(7, 7 + n_most))
        return Draft(tokens, tuple(self.survival**i for i in range(1, n_most + 1)), "lookup", 4)


class Model:
    """A draft model that has always drafted 50 and 51."""

    reads_states = False

    def __init__(self, survival: float = 0.5) -> None:
        self.survival = survival
        self.n_open = 0
        self.is_over = False

    def open(self, given: Any, rates: Any) -> Model:
        self.n_open += 1
        return self

    def close(self) -> None:
        self.n_open -= 1

    def draft(self, new: Sequence[TokenId]) -> Draft:
        return Draft((50, 51), (self.survival, self.survival**2), "draft", 1)

    def rates(self, n: int) -> tuple[float, ...]:
        return (self.survival,) * n


class Forcing:
    """A grammar that leaves no choice for these tokens."""

    mask = None

    def __init__(self, *tokens: TokenId) -> None:
        self.forced = deque(tokens)


def session(n_max: int = 100, client: int = 3, **fields: Any) -> Session:
    it = Session(next(SIDS), 1, Request("a", **fields), [10, 11, 12], Grant(Priority.INTERACTIVE, n_max, 0))
    it.client = client
    return it


def talks(it: Session, *tokens: TokenId) -> None:
    if it.phase is Phase.QUEUED:
        it.become(Phase.PREFILL)
        it.progress(3, 1)
        it.become(Phase.DECODE)
    for token in tokens:
        it.add_token(token, 2)


def speculator(source: Source | None = None, model: Any = None, is_exact: bool = True, **settings: Any) -> Speculator:
    return Speculator(Settings(**settings), is_exact, source and (lambda _: source), model)


@pytest.mark.parametrize(
    ("mode", "fields", "is_exact", "looks_up", "asks_model"),
    [
        ("off", {}, True, False, False),
        ("off", {"speculate": "lookup"}, True, True, False),
        ("lookup", {}, False, True, False),
        ("lookup", {"speculate": "off"}, True, False, False),
        ("draft", {}, True, False, True),
        ("auto", {}, True, True, True),
        ("auto", {}, False, False, False),
        ("off", {"prediction": (1, 2)}, True, True, True),
        ("off", {"prediction": (1, 2)}, False, False, False),
        ("lookup", {"prediction": (1, 2)}, False, True, False),
        ("off", {"prediction": (1, 2), "speculate": "off"}, True, False, False),
    ],
)
def test_a_request_decides_and_else_the_configuration(mode, fields, is_exact, looks_up, asks_model):
    it = session(**fields)
    speculator(model=Model(), mode=mode, is_exact=is_exact).begin(it)
    assert (it.looks_up, it.asks_model) == (looks_up, asks_model)
    other = session(**fields)
    speculator(mode=mode, is_exact=is_exact).begin(other)
    assert not other.asks_model, "there is no draft model"


def test_answers_that_may_take_tokens_back_do_not_draft():
    source, it = Source(), session(banned_strings=("x",))
    mine = speculator(source, mode="lookup")
    mine.begin(it)
    talks(it, 20)
    assert mine.propose() == 0.0 and not it.speculates and not source.asked and it.draft == NO_DRAFT


def test_a_prompt_is_fed_while_it_is_read_and_an_answer_drafts():
    source, it = Source(0.8), session()
    mine = speculator(source, mode="lookup", n_most=4)
    mine.begin(it)
    assert mine.propose() == 0.0 and not source.n_fed, "it waits"
    it.become(Phase.PREFILL)
    mine.propose()
    assert source.n_fed == 1 and not source.asked
    talks(it)
    it.become(Phase.DECODE)
    talks(it, 20)
    assert mine.propose() == 0.8
    assert source.asked == [([20], 4, ())] and it.draft.tokens == (7, 8, 9, 10) and it.view().survival[0] == 0.8


def test_a_first_token_that_waits_for_the_second_one_counts_as_said():
    source, it = Source(), session()
    mine = speculator(source, mode="lookup")
    mine.begin(it)
    talks(it)
    it.first_token = 30
    mine.propose()
    assert source.asked[0][0] == [30]


@pytest.mark.parametrize(("n_max", "n"), [(100, 8), (5, 3), (2, 0)])
def test_no_more_is_drafted_than_has_room(n_max, n):
    source, it = Source(), session(n_max)
    mine = speculator(source, mode="lookup")
    mine.begin(it)
    talks(it, 20)
    mine.propose()
    assert len(it.draft.tokens) == n


class TestForcedTokens:
    def drafted(self, *forced: TokenId, mode: str = "lookup") -> tuple[Draft, Source]:
        source, it = Source(), session(speculate=mode)
        mine = speculator(source, model=Model(), n_most=4)
        mine.begin(it)
        talks(it, 20)
        it.matcher, it.is_forced = Forcing(*forced), True  # type: ignore[assignment]
        mine.propose()
        return it.draft, source

    def test_they_come_first_and_a_lookup_continues_them(self):
        draft, source = self.drafted(40, 41)
        assert draft.tokens == (40, 41, 7, 8) and draft.n_forced == 2 and draft.source == "lookup"
        assert draft.survival[:2] == (1.0, 1.0) and source.asked == [([20], 2, (40, 41))]

    def test_they_fill_the_draft_alone_where_they_are_enough(self):
        draft, source = self.drafted(*range(40, 50))
        assert draft.tokens == (40, 41, 42, 43) and draft.source == "forced" and not source.asked

    def test_nothing_else_continues_them(self):
        draft, source = self.drafted(40, mode="draft")
        assert draft.tokens == (40,) and not source.asked


class TestBothSources:
    def drafted(self, lookup: float, model: float) -> Session:
        it = session()
        mine = speculator(Source(lookup), Model(model), mode="auto")
        mine.begin(it)
        talks(it, 20)
        mine.propose()
        return it

    def test_the_likelier_draft_is_taken_and_the_model_is_asked_only_if_it_may_be_better(self):
        first = self.drafted(lookup=0.9, model=0.5)
        assert first.draft.source == "lookup" and first.view().draft_rates == ()
        second = self.drafted(lookup=0.4, model=0.5)
        assert second.draft.source == "draft" and second.view().draft_rates == (0.5,) * 7

    def test_a_model_that_is_done_with_a_text_leaves_its_sequence_to_others(self):
        model, it = Model(), session()
        mine = speculator(Source(0.1), model, mode="auto")
        mine.begin(it)
        talks(it, 20)
        mine.propose()
        assert model.n_open == 1
        model.is_over = True
        mine.propose()
        assert model.n_open == 0 and it.draft.tokens == (50, 51), "what is drafted is still good"

    def test_a_parked_session_gives_its_sequence_back_and_one_that_ends_too(self):
        model, it = Model(), session()
        mine = speculator(Source(), model, mode="draft")
        mine.begin(it)
        talks(it, 20)
        mine.propose()
        it.become(Phase.PARKED)
        mine.propose()
        assert model.n_open == 0
        it.become(Phase.DECODE)
        mine.propose()
        assert model.n_open == 1
        mine.end(it)
        assert model.n_open == 0


class TestAhead:
    def after(self, *steps: tuple[int, float]) -> float:
        it = session()
        mine = speculator(Source(), mode="lookup")
        mine.begin(it)
        talks(it)
        for n_tokens, stretch in steps:
            talks(it, *range(20, 20 + n_tokens))
            mine.propose(stretch)
        return it.ahead

    def test_a_step_of_several_tokens_earns_what_longer_steps_spend(self):
        assert self.after((1, 0.0)) == AHEAD_FIRST
        assert self.after((4, 0.0)) == AHEAD_FIRST + 3
        assert self.after((4, 0.5), (1, 0.25)) == AHEAD_FIRST + 2.25

    def test_it_has_bounds_and_a_tick_without_tokens_costs_nothing(self):
        assert self.after((1, 5.0)) == 0.0
        assert self.after(*[(8, 0.0)] * 9) == AHEAD_MOST
        assert self.after((1, 0.0), (0, 0.9)) == AHEAD_FIRST


class TestEarlierAnswers:
    def ask(self, mine: Speculator, client: int, **fields: Any) -> Session:
        it = session(client=client, **fields)
        mine.begin(it)
        talks(it, *range(100, 130))
        mine.propose()
        return it

    def test_an_account_finds_its_own_again_and_nobody_elses(self):
        mine = speculator(mode="lookup")
        mine.end(self.ask(mine, 3))
        assert mine.propose() == 0.0, "it has ended"
        again, other = session(client=3), session(client=4)
        for it in (again, other):
            mine.begin(it)
            talks(it, *range(100, 110))
        mine.propose()
        assert again.draft.source == "history" and again.draft.tokens[:2] == (110, 111)
        assert other.draft == NO_DRAFT

    def test_none_is_kept_of_requests_that_do_not_look_up(self):
        mine = speculator(mode="lookup")
        mine.end(self.ask(mine, 3, speculate="off"))
        assert self.ask(mine, 3).draft.source != "history"

    def test_another_size_forgets_them_and_the_same_size_does_not(self):
        mine = speculator(mode="lookup")
        mine.end(self.ask(mine, 3))
        mine.apply(Settings("auto"))
        assert mine.mode == "auto" and mine._history.texts(3)
        mine.apply(Settings("auto", n_history=100))
        assert not mine._history.texts(3)
