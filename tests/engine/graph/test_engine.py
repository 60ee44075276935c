"""What the graph engine refuses or promises, in addition to every engine's contract."""

from __future__ import annotations

from tests.engine.conftest import DRAFT, empty
from tests.engine.drive import generate, read, step, tokens_of
from tests.engine.graph.conftest import SMALL, batch_of
from uma_core.engine.api import Batch, DecodeStatus
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.model import LlamaModel


def test_an_abort_stops_the_next_call_and_only_that(engine: GraphEngine) -> None:
    step(engine, [(0, 5)])
    engine.abort()
    assert engine.decode(batch_of((6, 1, 0)), [None]).status is DecodeStatus.ABORTED
    assert engine.kv_len(0) == 1
    assert engine.decode(batch_of((6, 1, 0)), [None]).status is DecodeStatus.OK


def test_a_prompt_that_rides_changes_nothing_for_anybody(engine: GraphEngine) -> None:
    """The prompt's tokens are rows of another sequence's steps. Both sequences go on as if each had been alone."""
    mine, other = tokens_of(engine, 20, seed=1), tokens_of(engine, 40, seed=2)
    first = read(engine, 0, mine)
    alone = generate(engine, 0, first, 8)
    expected = read(engine, 1, other)
    after = generate(engine, 1, expected, 5)
    empty(engine)
    assert read(engine, 0, mine) == first
    together, token, batch = [first], -1, Batch(SMALL.n_batch)
    for at in range(0, len(other), 5):
        batch.clear()
        batch.add(together[-1], engine.kv_len(0), 0, True)
        is_last = at + 5 == len(other)
        batch.extend(other[at : at + 5], at, 1, is_last)
        outcome = engine.decode(batch, [None] * batch.n_rows)
        assert outcome.status is DecodeStatus.OK and len(outcome.tokens) == 1 + is_last
        together.append(outcome.tokens[0])
        token = outcome.tokens[-1]
    assert (together, token, generate(engine, 1, token, 5)) == (alone, expected, after)


def test_the_model_is_described_as_by_llama_cpp(engine: GraphEngine) -> None:
    model = LlamaModel(DRAFT, SMALL)
    assert engine.facts().description == model.facts().description != ""
    model.close()
