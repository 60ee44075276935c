"""Families with recurrent layers: states follow their sequences through calls of any shape, and are never half
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tests.engine.drive import finish, read, read_plain, step, tokens_of
from tests.engine.graph.conftest import SMALL
from tests.engine.graph.models import RECURRENT, Model
from uma_core.engine.api import WANT_IF_ACCEPTED, Batch, DecodeStatus, PrefillStatus
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.errors import ErrorCode, UmaError

TOLERANCE = 0.001  # in standard deviations of the logits, with f32 weights


@pytest.fixture(scope="module", params=RECURRENT)
def opened(request: pytest.FixtureRequest, written: Callable[[Model], str]) -> Iterator[GraphEngine]:
    engine = GraphEngine(written(RECURRENT[request.param]), SMALL)
    yield engine
    engine.close()


@pytest.fixture
def engine(opened: GraphEngine) -> GraphEngine:
    """An engine whose sequences are empty. Earlier tests have used it."""
    for seq in range(SMALL.n_seq):
        opened.keep_states(seq, [])
        assert opened.kv_truncate(seq, 0)
    return opened


def alone(engine: GraphEngine, tokens: np.ndarray) -> np.ndarray:
    """Return the logits after the tokens, each of which is read in a separate call."""
    engine.kv_truncate(3, 0)
    for token in tokens:
        step(engine, [(3, int(token))])
    return engine.logits(0).copy()


@pytest.mark.parametrize("name", RECURRENT)
def test_logits_are_llama_cpps(name: str, written: Callable[[Model], str]) -> None:
    path = written(replace(RECURRENT[name], quant="f32"))
    with closing(GraphEngine(path, SMALL)) as graph, closing(LlamaEngine(path, SMALL)) as llama:
        prompt = tokens_of(graph, 150)
        for engine in (graph, llama):
            read(engine, 0, prompt)
            read_plain(engine, 1, prompt[:33])
            read_plain(engine, 2, prompt[50:51])
        for rows in ([(0, 40)], [(0, 41), (1, 42)], [(0, 43), (1, 44), (2, 45)]):
            for engine in (graph, llama):
                step(engine, rows)
            for i in range(len(rows)):
                ours, theirs = graph.logits(i), llama.logits(i)
                assert np.abs(ours - theirs).max() < TOLERANCE * theirs.std()


def test_bits_do_not_depend_on_company_or_chunks(engine: GraphEngine) -> None:
    assert engine.info.is_deterministic
    tokens = tokens_of(engine, 90)
    expected = alone(engine, tokens)
    read(engine, 0, tokens[:70])
    read_plain(engine, 1, tokens_of(engine, 30, 7))
    batch = Batch(engine.info.n_batch)
    batch.extend(tokens_of(engine, 3, 8), 30, 1, False)
    batch.extend(tokens[70:90], 70, 0, True)
    batch.extend(tokens_of(engine, 2, 9), 0, 2, False)
    assert engine.decode(batch, [None]).status is DecodeStatus.OK
    assert np.array_equal(engine.logits(0), expected)


def test_a_chunk_that_is_given_up_leaves_the_state(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 80)
    expected = alone(engine, np.append(tokens[:40], 50))
    read(engine, 0, tokens[:40])
    assert engine.prefill_open(0, tokens[40:], True)
    while engine.prefill_run(0, 0, 1, 1).fraction < 0.5:
        pass
    engine.prefill_close(0)
    step(engine, [(0, 50)])
    assert np.array_equal(engine.logits(0), expected)


def test_a_chunk_that_was_not_handed_over_leaves_the_state(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 80)
    expected = alone(engine, np.append(tokens[:40], 50))
    read(engine, 0, tokens[:40])
    for part in (tokens[40:60], tokens[60:]):
        assert engine.prefill_open(0, part, False)
        assert engine.prefill_run(0, 2**62, 2**40, 1).status is PrefillStatus.DONE
    engine.prefill_close(0)
    step(engine, [(0, 50)])
    assert np.array_equal(engine.logits(0), expected)


def test_several_chunks_are_handed_over_together(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 80)
    expected = alone(engine, np.append(tokens, 50))
    for part in (tokens[:40], tokens[40:60], tokens[60:]):
        assert engine.prefill_open(0, part, False)
        assert engine.prefill_run(0, 2**62, 2**40, 1).status is PrefillStatus.DONE
    finish(engine.publish_kv(0))
    step(engine, [(0, 50)])
    assert np.array_equal(engine.logits(0), expected)


def test_a_call_that_is_aborted_leaves_the_state(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 41)
    expected = alone(engine, tokens)
    read(engine, 0, tokens[:40])
    batch = Batch(1)
    batch.add(int(tokens[40]), 40, 0, True)
    engine.abort()
    assert engine.decode(batch, [None]).status is DecodeStatus.ABORTED
    assert engine.decode(batch, [None]).status is DecodeStatus.OK
    assert np.array_equal(engine.logits(0), expected)


def test_a_new_sequence_begins_without_a_state(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 30)
    expected = alone(engine, tokens)
    read(engine, 0, tokens_of(engine, 100, 3))
    assert engine.kv_truncate(0, 0)
    read(engine, 0, tokens[:29])
    step(engine, [(0, int(tokens[29]))])
    assert np.array_equal(engine.logits(0), expected)


def test_a_state_of_an_earlier_position_is_kept_where_it_is_wanted(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 90)
    expected = alone(engine, np.append(tokens[:37], 50))
    engine.keep_states(0, [37])
    read(engine, 0, tokens)
    assert [engine.resumable(0, n) for n in (36, 37, 89, 90)] == [0, 37, 37, 90]
    assert not engine.kv_truncate(0, 60)
    finish(engine.copy_prefix(0, 1, 37))
    assert engine.kv_truncate(0, 37)
    step(engine, [(0, 50), (1, 50)])
    assert np.array_equal(engine.logits(0), expected)
    assert np.array_equal(engine.logits(1), expected)


@pytest.mark.parametrize("n_held", range(5))
def test_drafts_are_taken_back_to_where_they_held(engine: GraphEngine, n_held: int) -> None:
    assert engine.info.capabilities.n_verify_rows == 8
    tokens = tokens_of(engine, 66)
    expected = alone(engine, np.append(tokens[: 61 + n_held], 50))
    read(engine, 0, tokens[:60])
    read(engine, 1, tokens[5:30])
    batch = Batch(engine.info.n_batch)
    batch.add(int(tokens[60]), 60, 0, True)
    batch.verify(tokens[61:65].tolist(), 61, 0, WANT_IF_ACCEPTED)
    batch.add(7, 25, 1, True)
    batch.verify([8, 9], 26, 1, WANT_IF_ACCEPTED)
    assert engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.OK
    assert engine.kv_truncate(0, 61 + n_held)
    assert engine.kv_truncate(1, 26)
    step(engine, [(0, 50), (1, 51)])
    assert np.array_equal(engine.logits(0), expected)
    assert not engine.kv_truncate(0, 61 + n_held), "only a call's own drafts can be taken back"


def test_drafts_leave_the_states_of_a_prompt(written: Callable[[Model], str]) -> None:
    """A single sequence has few states, and those of eight rows are not the kept ones."""
    with closing(GraphEngine(written(RECURRENT["qwen35"]), replace(SMALL, n_seq=1, n_ctx=256))) as engine:
        tokens = tokens_of(engine, 60)
        engine.keep_states(0, [20, 40, 59])
        read(engine, 0, tokens)
        for _ in range(3):
            batch = Batch(engine.info.n_batch)
            n = engine.kv_len(0)
            batch.add(3, n, 0, True)
            batch.verify([4, 5, 6, 7, 8, 9, 10], n + 1, 0, WANT_IF_ACCEPTED)
            assert engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.OK
        assert [engine.resumable(0, n) for n in (20, 40, 59)] == [20, 40, 59]


def test_a_copy_has_the_state_of_its_end_though_the_source_goes_on(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 70)
    expected = alone(engine, np.append(tokens, 50))
    read(engine, 0, tokens)
    copy = engine.copy_prefix(0, 1, 70)
    step(engine, [(0, 60)])
    finish(copy)
    step(engine, [(1, 50)])
    assert np.array_equal(engine.logits(0), expected)


def test_a_snapshot_has_the_state_behind_its_positions(engine: GraphEngine) -> None:
    tokens = tokens_of(engine, 100)
    expected = alone(engine, np.append(tokens, 50))
    read(engine, 0, tokens)
    first, second = engine.export_state(0, 40), engine.export_state(0, 100, 40)
    assert engine.state_bytes(0, 40) < engine.state_bytes(0, 100)
    for export in (first, second):
        finish(export, 0)
    assert len(second.blob) == 60 * engine.info.kv_bytes_per_cell + engine.state_bytes(0, 100)
    given_up = engine.import_state(1, first.blob, 40)
    given_up.close()
    finish(engine.import_state(1, first.blob, 40), 0)
    assert engine.resumable(1, 40) == 0  # no state was kept there
    finish(engine.import_state(1, second.blob, 100, 40, 40), 0)
    step(engine, [(1, 50)])
    assert np.array_equal(engine.logits(0), expected)


def test_a_part_of_a_snapshot_cannot_be_gone_on_with(engine: GraphEngine) -> None:
    read(engine, 0, tokens_of(engine, 100))
    export = engine.export_state(0, 100)
    finish(export)
    finish(engine.import_state(1, export.blob, 99))
    assert engine.resumable(1, 99) == 0
    with pytest.raises(UmaError) as raised:
        engine.import_state(2, bytes(export.blob)[: len(export.blob) - 3], 100)
    assert raised.value.error is ErrorCode.STATE_RESTORE_FAILED


def test_states_run_out_only_of_what_is_kept(engine: GraphEngine) -> None:
    """Every sequence wants as many states as it may have, in calls of all sequences and in chunks of the prefill
    slots.
    """
    tokens = tokens_of(engine, 60)
    expected = alone(engine, np.append(tokens, 50))
    for _ in range(3):
        batch = Batch(engine.info.n_batch)
        for seq in range(4):
            engine.kv_truncate(seq, 0)
            engine.keep_states(seq, [5, 10, 15, 20, 25])
            batch.extend(tokens[:30], 0, seq, True)
        assert engine.decode(batch, [None] * 4).status is DecodeStatus.OK
        for seq in range(2):
            engine.keep_states(seq, [35, 40, 45, 50])
            read(engine, seq, tokens[30:])
    step(engine, [(0, 50), (1, 50)])
    assert np.array_equal(engine.logits(0), expected)
    assert np.array_equal(engine.logits(1), expected)


def test_status_says_that_sequences_cannot_be_cut_anywhere(engine: GraphEngine) -> None:
    assert not engine.info.capabilities.can_rollback
    assert any("cannot be cut back to any length" in note for note in engine.info.notes)


def test_states_count_as_memory(engine: GraphEngine) -> None:
    states = engine._pages.states
    assert engine.memory().kv >= engine.info.n_ctx * engine.info.kv_bytes_per_cell + states.n_bytes


def test_on_a_device_the_model_stays_with_llama(written: Callable[[Model], str]) -> None:
    with pytest.raises(UmaError, match="recurrent layers") as raised:
        GraphEngine(written(RECURRENT["qwen35"]), SMALL, is_stock=True)
    assert raised.value.error is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize(
    "meta",
    [{"ssm.state_size": 24, "ssm.inner_size": 96}, {"rope.dimension_sections": [3, 0, 2, 0]}, {"ssm.group_count": 3}],
)
def test_what_the_kernels_do_not_compute_is_refused(meta: dict, written: Callable[[Model], str]) -> None:  # type: ignore[type-arg]
    model = RECURRENT["qwen35"]
    with pytest.raises(UmaError) as raised:
        GraphEngine(written(replace(model, meta=model.meta | meta)), SMALL)
    assert raised.value.error is ErrorCode.CONFIG_INVALID
