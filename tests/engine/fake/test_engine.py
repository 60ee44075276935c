"""Features of the FakeEngine alone: programmable times and failures. test_conformance covers its behaviour as an
engine.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pytest

from uma_core.clock import ManualClock, MonotonicClock
from uma_core.engine.api import Batch, DecodeStatus, PrefillStatus
from uma_core.engine.fake.cost import CPU_SHAPE, GPU_SHAPE
from uma_core.engine.fake.engine import FakeEngine, FakeModel, Faults
from uma_core.errors import ErrorCode, UmaError

TEXT = np.array(list(b"what is to be done"), np.int32)


def batch_of(*runs: tuple[int, int, np.ndarray]) -> Batch:
    """Make runs of (sequence, first position, tokens). The last token of each run wants logits."""
    batch = Batch(4096)
    for seq_id, pos, tokens in runs:
        batch.extend(tokens, pos, seq_id, True)
    return batch


def rows(*positions: tuple[int, int]) -> Batch:
    return batch_of(*[(seq, pos, TEXT[:1]) for seq, pos in positions])


def filled(n_seqs: int, **more) -> FakeEngine:
    engine = FakeEngine(FakeModel(n_seq_max=8), clock=ManualClock(1), **more)
    for seq in range(n_seqs):
        engine.fake_context(seq, 10)
    return engine


class TestTime:
    def took(self, engine: FakeEngine, *seqs: int) -> float:
        outcome = engine.decode(rows(*[(s, engine.kv_len(s)) for s in seqs]), [None] * len(seqs))
        assert outcome.status is DecodeStatus.OK
        return outcome.call_ns / 1e6

    def test_a_call_takes_what_its_shape_says(self):
        engine = filled(4, cost=CPU_SHAPE)
        assert self.took(engine, 0) == pytest.approx(16.2, rel=0.01)
        assert self.took(engine, 0, 1, 2, 3) == pytest.approx(52, rel=0.01)

    def test_rows_of_streams_with_a_gap_between_them_are_computed_apart(self):
        engine = filled(6, cost=GPU_SHAPE)
        assert self.took(engine, 0, 1) == pytest.approx(4.4, rel=0.01)
        assert self.took(engine, 0, 4) == pytest.approx(7.8, rel=0.01)

    def test_pieces_take_the_quantum_and_stop_before_the_time_is_over(self):
        engine = filled(0, cost=GPU_SHAPE)
        start = engine.clock.now_ns()
        engine.prefill_open(0, np.zeros(512, np.int32), False)
        outcome = engine.prefill_run(0, start + 10_000_000, 2_000_000, 0)
        assert outcome.status is PrefillStatus.PAUSED and outcome.n_pieces == 4
        assert engine.clock.now_ns() <= start + 10_000_000
        assert outcome.fraction == pytest.approx(8 / 48, rel=0.01)
        assert outcome.longest_ns == pytest.approx(2_000_000, rel=0.02)

    def test_pieces_are_never_shorter_than_the_heaviest_node(self):
        engine = filled(0, cost=GPU_SHAPE)
        engine.prefill_open(0, np.zeros(512, np.int32), False)
        outcome = engine.prefill_run(0, engine.clock.now_ns(), 1, 1)
        assert outcome.n_pieces == 1 and outcome.longest_ns >= GPU_SHAPE.piece_ns(512, 0)

    def test_transfers_move_bytes_at_the_stated_speed_in_slices(self):
        engine = filled(1, cost=CPU_SHAPE)
        engine.fake_context(1, 4000)
        start = engine.clock.now_ns()
        move = engine.copy_prefix(1, 2, 4000)
        n_steps = 0
        while not move.step(engine.clock.now_ns() + 1_000_000):
            n_steps += 1
        assert n_steps >= 4
        assert engine.clock.now_ns() - start == pytest.approx(CPU_SHAPE.copy_ns(4000 * 12288), rel=0.01)
        assert engine.kv_len(2) == 4000

    def test_jitter_is_the_callers(self):
        slow = filled(1, cost=CPU_SHAPE, jitter=lambda ns: 2 * ns)
        assert self.took(slow, 0) == pytest.approx(32.4, rel=0.01)


class TestFailures:
    @pytest.mark.parametrize(
        "status", [DecodeStatus.FULL, DecodeStatus.ABORTED, DecodeStatus.BAD_BATCH, DecodeStatus.FATAL]
    )
    def test_a_queued_status_strikes_once_and_changes_nothing(self, status):
        engine = filled(1, faults=Faults(statuses=deque([status])))
        assert engine.decode(rows((0, 10)), [None]).status is status
        assert engine.kv_len(0) == 10
        assert engine.decode(rows((0, 10)), [None]).status is DecodeStatus.OK

    def test_a_storm_of_full_calls_ends(self):
        engine = filled(1, faults=Faults(n_full=3))
        assert [engine.decode(rows((0, 10)), [None]).status for _ in range(4)] == [DecodeStatus.FULL] * 3 + [
            DecodeStatus.OK
        ]

    def test_large_calls_can_be_full_while_small_ones_pass(self):
        engine = filled(2, faults=Faults(full_above=1))
        assert engine.decode(rows((0, 10), (1, 10)), [None] * 2).status is DecodeStatus.FULL
        assert engine.decode(rows((0, 10)), [None]).status is DecodeStatus.OK

    def test_a_row_that_is_not_finite_says_so_and_spares_the_others(self):
        engine = filled(2, faults=Faults(nan_rows={1}))
        tokens = engine.decode(rows((0, 10), (1, 10)), [None] * 2).tokens
        assert tokens[0] >= 0 and tokens[1] == -1

    def test_a_lost_chunk_leaves_the_sequence_as_it_was(self):
        engine = filled(1, faults=Faults(prefill_failures=1))
        engine.prefill_open(0, TEXT, True)
        assert engine.prefill_run(0, 2**62, 1, 0).status is PrefillStatus.FAILED
        assert engine.kv_len(0) == 10 and engine.prefill_open(0, TEXT, True)

    def test_a_restore_can_fail(self):
        engine = filled(1, faults=Faults(restore_failures=1))
        export = engine.export_state(0, 10)
        assert export.step(2**62)
        with pytest.raises(UmaError) as caught:
            engine.import_state(1, export.blob, 10)
        assert caught.value.error is ErrorCode.STATE_RESTORE_FAILED
        assert engine.import_state(1, export.blob, 10).step(2**62) and engine.kv_len(1) == 10

    def test_construction_can_fail(self):
        with pytest.raises(UmaError) as caught:
            FakeEngine(faults=Faults(refuse_memory=True))
        assert caught.value.error is ErrorCode.INSUFFICIENT_MEMORY

    @pytest.mark.parametrize(("way", "status"), [("release", DecodeStatus.OK), ("abort", DecodeStatus.ABORTED)])
    def test_a_hang_lasts_until_it_is_released_or_aborted(self, way, status):
        faults = Faults(is_hanging=True)
        engine = filled(1, faults=faults)
        outcomes: list = []
        thread = threading.Thread(target=lambda: outcomes.append(engine.decode(rows((0, 10)), [None])))
        thread.start()
        assert not outcomes
        faults.release() if way == "release" else engine.abort()
        thread.join(10)
        assert outcomes[0].status is status


class TestRefusals:
    @pytest.mark.parametrize(
        "batch",
        [
            rows((0, 11)),  # a hole in the positions
            rows((0, 9)),  # a position that is already taken
            rows((99, 0)),  # no such sequence
            rows((0, 10), (1, 10), (0, 11)),  # one sequence in two runs
        ],
    )
    def test_bad_batches_are_refused(self, batch):
        engine = filled(2)
        assert engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.BAD_BATCH

    def test_a_sequence_is_not_decoded_while_its_chunk_is_in_progress(self):
        engine = filled(1)
        engine.prefill_open(0, TEXT, False)
        assert engine.decode(rows((0, 10)), [None]).status is DecodeStatus.BAD_BATCH

    def test_no_more_chunks_than_lanes(self):
        engine = FakeEngine(FakeModel(n_prefill_slots=1))
        assert engine.prefill_open(0, TEXT, False) and not engine.prefill_open(1, TEXT, False)

    def test_a_pool_of_cells_is_shared_and_a_stream_is_not(self):
        for is_unified, expected in ((True, DecodeStatus.FULL), (False, DecodeStatus.OK)):
            engine = FakeEngine(FakeModel(n_seq_max=2, n_ctx=40, is_unified=is_unified))
            engine.fake_context(0, 30 if is_unified else 19)
            assert engine.decode(batch_of((1, 0, TEXT)), [None]).status is expected


def test_text_depends_on_every_token_before_it():
    engine = filled(0)
    first = engine.decode(batch_of((0, 0, TEXT)), [None]).tokens[0]
    changed = TEXT.copy()
    changed[3] += 1
    other = [engine.decode(batch_of((1, 0, changed)), [None]).tokens[0]]
    tokens = [first]
    for _ in range(12):
        tokens.append(engine.decode(batch_of((0, engine.kv_len(0), np.array(tokens[-1:], np.int32))), [None]).tokens[0])
        other.append(engine.decode(batch_of((1, engine.kv_len(1), np.array(other[-1:], np.int32))), [None]).tokens[0])
    assert tokens != other
    assert b"".join(engine.piece(t) for t in tokens).isascii()


def test_on_a_real_clock_time_is_waited_for():
    engine = FakeEngine(cost=GPU_SHAPE, clock=MonotonicClock())
    assert engine.decode(batch_of((0, 0, TEXT[:1])), [None]).call_ns >= 3_000_000
