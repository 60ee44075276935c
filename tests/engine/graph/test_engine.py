"""What the graph engine refuses or promises, in addition to every engine's contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, empty
from tests.engine.drive import FOREVER, finish, generate, read, step, tokens_of
from tests.engine.graph.conftest import SMALL
from uma_core.engine.api import Batch, DecodeStatus
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.model import LlamaModel
from uma_core.errors import ErrorCode, UmaError


@pytest.fixture(scope="module", params=[False, True], ids=["ours", "stock"])
def opened(request: pytest.FixtureRequest) -> Iterator[GraphEngine]:
    made = GraphEngine(DRAFT, SMALL, is_stock=request.param)
    yield made
    made.close()


@pytest.fixture
def engine(opened: GraphEngine) -> Iterator[GraphEngine]:
    empty(opened)
    yield opened
    empty(opened)


def batch_of(*rows: tuple[int, int, int]) -> Batch:
    batch = Batch(SMALL.n_batch)
    for token, pos, seq_id in rows:
        batch.add(token, pos, seq_id, True)
    return batch


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(-1, 0, 0)],
        [(8192, 0, 0)],
        [(1, 1, 0)],  # a gap
        [(1, 0, 4)],
        [(1, 0, -1)],
        [(1, 0, 0), (1, 0, 1), (1, 1, 0)],  # a sequence in two places
        [(1, 0, 0), (1, 2, 0)],
    ],
)
def test_a_batch_that_would_end_the_process_is_refused(engine: GraphEngine, rows: list[tuple[int, int, int]]) -> None:
    batch = batch_of(*rows)
    assert engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.BAD_BATCH
    assert [engine.kv_len(seq) for seq in range(4)] == [0] * 4
    assert len(generate(engine, 0, 5, 3)) == 4


def test_a_sequence_whose_prompt_is_in_progress_cannot_decode(engine: GraphEngine) -> None:
    engine.prefill_open(1, tokens_of(engine, 50), False)
    assert engine.decode(batch_of((1, 0, 1)), [None]).status is DecodeStatus.BAD_BATCH
    step(engine, [(0, 7)])
    with pytest.raises(UmaError) as caught:
        engine.copy_prefix(0, 1, 1)
    assert caught.value.error is ErrorCode.BAD_BATCH


@pytest.mark.parametrize("tokens", [[], [-1], [8192], [1] * 257])
def test_a_chunk_that_cannot_be_read_is_refused(engine: GraphEngine, tokens: list[int]) -> None:
    with pytest.raises(UmaError):
        engine.prefill_open(0, np.array(tokens, np.int32), True)
    assert read(engine, 0, tokens_of(engine, 30)) >= 0, "no slot is lost"
    assert engine.prefill_open(1, tokens_of(engine, 9), True) and engine.prefill_open(2, tokens_of(engine, 9), True)


def test_an_abort_stops_the_next_call_and_only_that(engine: GraphEngine) -> None:
    step(engine, [(0, 5)])
    engine.abort()
    assert engine.decode(batch_of((6, 1, 0)), [None]).status is DecodeStatus.ABORTED
    assert engine.kv_len(0) == 1
    assert engine.decode(batch_of((6, 1, 0)), [None]).status is DecodeStatus.OK


def test_an_abort_leaves_prompts_alone(engine: GraphEngine) -> None:
    engine.abort()
    engine.prefill_open(0, tokens_of(engine, 100), True)
    assert engine.prefill_run(0, FOREVER, 1, 1).fraction == 1.0
    assert engine.decode(batch_of((6, 0, 1)), [None]).status is DecodeStatus.ABORTED


def test_progress_does_not_follow_from_a_chunk_of_another_size(engine: GraphEngine) -> None:
    """If a step's time is that of the weights, eight tokens take nearly as long as 256: their time does not scale to
    256.
    """
    for n in (256, 8):
        read(engine, 0, tokens_of(engine, n), False)
        engine.kv_truncate(0, 0)
    engine.prefill_open(0, tokens_of(engine, 256), False)
    seen = [0.0]
    while seen[-1] < 1.0:
        seen.append(engine.prefill_run(0, 0, 1, 1).fraction)
    assert seen[-2] > 0.4, "the last of some ninety pieces is not more than half of the chunk"


def test_a_shared_prefix_takes_no_pages(engine: GraphEngine) -> None:
    read(engine, 0, tokens_of(engine, 192), False)
    pages = engine._pages
    before = pages.n_free
    for seq_id in (1, 2, 3):
        finish(engine.copy_prefix(0, seq_id, 192))
    assert pages.n_free == before
    firsts = step(engine, [(seq_id, 50) for seq_id in range(4)])
    assert before - pages.n_free == 4, "one page each for what they do not share"
    assert len(set(firsts)) == 1


def test_pages_of_a_given_up_chunk_come_back(engine: GraphEngine) -> None:
    read(engine, 0, tokens_of(engine, 40), False)
    before = engine._pages.n_free
    engine.prefill_open(0, tokens_of(engine, 200), False)
    engine.prefill_run(0, 0, 1, 1)
    engine.prefill_close(0)
    assert (engine._pages.n_free, engine.kv_len(0)) == (before, 40)


def test_many_batch_shapes_in_turn(engine: GraphEngine) -> None:
    """There are more shapes than are kept: graphs are freed and built again, and large ones take turns in one
    memory.
    """
    for n in [*range(1, 17), 40, 17, 40, 200, 3]:
        for n_out in {0, 1, n}:
            batch = Batch(SMALL.n_batch)
            batch.extend(tokens_of(engine, n, n), 0, 0, False)
            batch.want_logits[n - n_out : n] = 1
            batch.n_rows = n_out
            outcome = engine.decode(batch, [None] * n_out)
            assert outcome.status is DecodeStatus.OK and len(outcome.tokens) == n_out
            engine.kv_truncate(0, 0)


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


def test_graphs_of_riding_rows_are_there_from_the_beginning() -> None:
    """No step waits until one is built."""
    with closing(GraphEngine(DRAFT, SMALL)) as engine:
        sizes = engine.info.capabilities.ride_rows
        assert sizes == tuple(sorted(sizes)) and sizes[-1] <= SMALL.n_batch
        assert engine.decoder is not None
        before = engine.decoder.forwards.n_bytes
        for rows in sizes:
            batch = batch_of((5, 0, 0))
            batch.extend(tokens_of(engine, rows - 1), 0, 1, False)
            assert engine.decode(batch, [None]).status is DecodeStatus.OK
            empty(engine)
        assert engine.decoder.forwards.n_bytes == before


def test_transfers_that_are_given_up_take_no_room(engine: GraphEngine) -> None:
    read(engine, 0, tokens_of(engine, 200))
    export = engine.export_state(0, 200)
    finish(export)
    for _ in range(3):
        transfer = engine.import_state(1, bytes(export.blob), 200)
        transfer.step(0)
        transfer.close()
        finish(engine.copy_prefix(0, 1, 192))
        engine.kv_truncate(1, 0)
    empty(engine)
    for seq in range(engine.info.n_seq_max):
        engine.fake_context(seq, engine.info.n_ctx_seq)


def test_the_model_is_described_as_by_llama_cpp(engine: GraphEngine) -> None:
    model = LlamaModel(DRAFT, SMALL)
    assert engine.facts().description == model.facts().description != ""
    model.close()
