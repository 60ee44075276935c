"""A draft model drafts the tokens that it would generate, reads only as much as its time allows, and forgets drafts
that were not accepted.
"""

from __future__ import annotations

import numpy as np
import pytest

from uma_core.clock import ManualClock
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.model import DOUBTED_AFTER, N_READ, DraftModel, ModelSource
from uma_core.types import TokenId

PROMPT = np.arange(40, 90, dtype=np.int32)
LONG = 1 << 60


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(FakeModel(n_seq_max=2, n_ctx=512, n_batch=64, eog_every=0), clock=ManualClock(1))


@pytest.fixture
def model(engine: FakeEngine) -> DraftModel:
    return DraftModel(engine, engine.info.n_vocab, ManualClock(1))


def opened(model: DraftModel, prompt: np.ndarray = PROMPT) -> ModelSource:
    source = model.open(prompt, Acceptance())
    assert source is not None
    return source


def says(n: int) -> list[TokenId]:
    """Return the model's answer to PROMPT."""
    fresh = FakeEngine(FakeModel(n_seq_max=2, n_ctx=512, n_batch=64, eog_every=0), clock=ManualClock(1))
    model = DraftModel(fresh, fresh.info.n_vocab, ManualClock(1))
    source = opened(model)
    source.run([], n, LONG)
    return list(source.draft([]).tokens)


def test_it_drafts_what_it_would_say(model: DraftModel) -> None:
    source, answer = opened(model), says(12)
    assert not source.draft([]).tokens
    source.run([], 4, LONG)
    assert source.draft([]).tokens == tuple(answer[:4])
    source.run(answer[:5], 4, LONG)
    assert source.draft(answer[:5]).tokens == tuple(answer[5:9]), "all held, and one more was drawn"


@pytest.mark.parametrize("n_right", [0, 1, 2, 3, 4])
def test_what_was_drafted_wrongly_is_forgotten(model: DraftModel, n_right: int) -> None:
    source, answer = opened(model), says(5)
    source.run([], 4, LONG)
    said = [*answer[:n_right], 7]
    assert not source.draft(said).tokens
    source.run(said, 3, LONG)
    fresh = opened(model, np.concatenate([PROMPT, np.array(said, np.int32)]))
    fresh.run([], 3, LONG)
    assert source.draft(said).tokens == fresh.draft([]).tokens


def test_drafts_that_got_no_row_are_still_good(model: DraftModel) -> None:
    source, answer = opened(model), says(8)
    source.run([], 6, LONG)
    assert source.draft(answer[:2]).tokens == tuple(answer[2:6])
    source.run(answer[:2], 3, LONG)
    assert source.draft(answer[:2]).tokens == tuple(answer[2:5])


def test_right_drafts_are_trusted_more(model: DraftModel) -> None:
    source, answer = opened(model), says(60)
    before = source.rates(1)[0]
    for n in range(0, 30, 2):
        source.run(answer[:n], 1, LONG)
    assert source.rates(1)[0] > before


def test_a_long_prompt_is_read_in_the_time_that_there_is(engine: FakeEngine) -> None:
    clock = ManualClock(1)
    model = DraftModel(engine, engine.info.n_vocab, clock)
    model.token_ns, model.read_ns = 10, 10
    real, sizes = engine.decode, []

    def decode(batch, samplers):  # type: ignore[no-untyped-def]
        sizes.append(batch.n)
        clock.advance(10 * batch.n)
        return real(batch, samplers)

    engine.decode = decode  # type: ignore[method-assign]
    source = opened(model, np.arange(200, dtype=np.int32))
    for _ in range(9):
        source.run([], 1, 300)
        assert sum(sizes) <= 31 and max(sizes) <= N_READ
        sizes.clear()
        model.token_ns, model.read_ns = 10, 10
    assert source.draft([]).tokens


def test_it_serves_as_many_texts_as_it_has_sequences(model: DraftModel) -> None:
    first, second = opened(model), opened(model)
    assert model.open(PROMPT, Acceptance()) is None
    first.run([], 2, LONG)
    first.close()
    third = opened(model)
    third.run([], 2, LONG)
    second.run([], 2, LONG)
    assert third.draft([]).tokens == second.draft([]).tokens == tuple(says(2))


def test_tokens_that_it_does_not_know_and_texts_too_long_for_it_end_its_drafts(model: DraftModel) -> None:
    strange, long = opened(model), opened(model, np.zeros(250, np.int32))
    strange.run([100_000], 2, LONG)
    long.run([65] * 4, 3, LONG)
    assert not strange.rates(2) and not long.rates(2)
    assert not strange.draft([100_000]).tokens and not long.draft([65] * 4).tokens


class Slowed:
    """An engine whose calls take a given time."""

    def __init__(self, engine: FakeEngine, clock: ManualClock) -> None:
        self.ns, self.n_calls = 100, 0
        real = engine.decode

        def decode(batch, samplers):  # type: ignore[no-untyped-def]
            clock.advance(self.ns)
            self.n_calls += 1
            return real(batch, samplers)

        engine.decode = decode  # type: ignore[method-assign]


def test_a_price_that_was_taken_beside_other_work_is_doubted_when_nobody_pays_it(engine: FakeEngine) -> None:
    clock = ManualClock(1)
    slowed = Slowed(engine, clock)
    slowed.ns = 5_000
    model = DraftModel(engine, engine.info.n_vocab, clock)
    slowed.ns, slowed.n_calls = 100, 0
    opened(model).close()
    assert model.token_ns == 5_000 and not slowed.n_calls, "a new price is believed"
    clock.advance(DOUBTED_AFTER * 5_000 + 1)
    source = opened(model)
    assert model.token_ns == 100
    source.run([], 4, LONG)
    assert source.draft([]).tokens == tuple(says(4)), "the sequence is as empty as any"


def test_a_right_price_is_asked_for_seldom_and_stays(engine: FakeEngine) -> None:
    clock = ManualClock(1)
    slowed = Slowed(engine, clock)
    model = DraftModel(engine, engine.info.n_vocab, clock)
    slowed.ns, slowed.n_calls = 900, 0  # other work slows the probes down
    t0 = clock.now_ns()
    for _ in range(3_000):
        opened(model).close()
        clock.advance(50)
    assert model.token_ns == 100
    assert 1 < slowed.n_calls <= (clock.now_ns() - t0) / (DOUBTED_AFTER * 100)


def test_reading_that_was_thought_slow_is_not_done_token_by_token_for_ever(engine: FakeEngine) -> None:
    clock = ManualClock(1)
    slowed = Slowed(engine, clock)
    model = DraftModel(engine, engine.info.n_vocab, clock)
    model.read_ns = 1 << 40
    source = opened(model, np.arange(200, dtype=np.int32))
    slowed.n_calls = 0
    source.run([], 1, 100_000)
    assert source.draft([]).tokens and slowed.n_calls < 20
