"""Decode calls: check the rows, make pages ready, compute the graph of the rows' shape, and sample the tokens in the
same C call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from uma_core.engine.ahead import Ahead
from uma_core.engine.api import Batch, DecodeOutcome, DecodeStatus, Sampler
from uma_core.engine.graph.attention import BatchShape
from uma_core.engine.graph.forward import Compute, Forward, Forwards, Network
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.states import Next
from uma_core.engine.graph.ticks import VERIFY_ROWS_OF_STATES
from uma_core.engine.lib import ffi, lib
from uma_core.engine.refusals import refusals
from uma_core.errors import UmaError

log = logging.getLogger(__name__)

Run = tuple[int, int, int]  # consecutive rows of one sequence: its number, the first position, how many
STATUS_OF = {
    0: DecodeStatus.OK,
    1: DecodeStatus.ABORTED,
    2: DecodeStatus.BAD_BATCH,
}  # of uma_forward_decode: everything else is fatal
REFUSED = {
    status: DecodeOutcome(status, [], 0, 0)
    for status in (DecodeStatus.FULL, DecodeStatus.BAD_BATCH, DecodeStatus.FATAL)
}


class Decoder:
    """Owns the graphs of decode calls. `n_kv[seq]` positions are computed and visible."""

    def __init__(self, network: Network, pages: Pages, compute: Compute, n_batch: int, ahead: Ahead) -> None:
        """Owns the attention of `compute`, not its backend, and `ahead`."""
        self._pages = pages
        self._n_batch = n_batch
        self._attention = compute.attention
        self.n_kv = [0] * pages.table.shape[0]
        self.scales: list[dict[int, float]] = [{}] * len(self.n_kv)  # scales of LoRA adapters, by sequence
        self._last_scales: tuple[list[dict[int, float]], list[int]] = [], []
        self.forwards = Forwards(network, pages, compute)
        self._last: Forward | None = None
        self._rows = ffi.new("uma_rows *")
        self._samplers = ffi.new("uma_sampler *[]", n_batch)
        self._out = ffi.new("llama_token[]", n_batch)
        self._broken = compute.broken
        self._ahead = ahead
        self._rows.sampler, self._rows.out, self._rows.ahead = self._samplers, self._out, ahead.handle
        self._views: tuple[Batch | None, list[Any]] = (None, [])

    def decode(self, batch: Batch, samplers: Sequence[Sampler | None], reading: set[int]) -> DecodeOutcome:
        """Compute a call. `reading`: sequences whose prompts are in progress; they must not be in a batch."""
        runs = runs_of(batch)
        status = self._refusal(batch, runs, reading)
        if status is not DecodeStatus.OK:
            return REFUSED[status]
        scales, active = self._adapters(runs)
        runs, starts_next = self._with_next(runs) if batch.starts_next and self._ahead.handle else (runs, False)
        for run in runs:
            self._pages.reserve(*run)
        for i, sampler in enumerate(samplers):
            self._samplers[i] = ffi.NULL if sampler is None else sampler.handle  # type: ignore[attr-defined]
        self._point_at(batch)
        rows = self._rows
        rows.n, rows.wake_fd, rows.starts_next = batch.n, batch.wake_fd, starts_next
        span = self._attention.span(rows, self._pages)
        shape = BatchShape(batch.n, batch.n_rows, self._attention.room(span, batch.n), active, not batch.want_hidden)
        if self._last is None or shape != self._last.batch or span != self._last.span or scales != self._last_scales:
            self.sync()  # the call that was started ahead uses another graph, which may have to make room
        try:
            self._last = forward = self.forwards.of(shape)
        except UmaError as error:  # no memory for another graph: these rows fail, the others continue
            log.error("a decode call has no graph: %s", error)
            for seq_id, pos0, _ in runs:
                self._pages.truncate(seq_id, pos0)
            return REFUSED[DecodeStatus.FATAL]
        forward.fit(span)
        if active:
            forward.scale(*scales)
        self._last_scales = scales
        states = self._pages.states
        nexts: list[Next] = []
        if states is not None:
            stretches, nexts = states.plan(runs, drafts=drafts_of(runs, batch))
            assert self._attention.recurrence is not None
            self._attention.recurrence.fill(states, stretches)
        rc = lib.uma_forward_decode(forward.native, rows)
        if rc == lib.UMA_BROKEN:
            self._broken.append("memory ran out during a decode call")
        status = STATUS_OF.get(rc, DecodeStatus.FATAL)
        for seq_id, pos0, n in runs:
            if status is DecodeStatus.OK:
                self.n_kv[seq_id] = pos0 + n - starts_next
            else:
                self._pages.truncate(seq_id, pos0)
        for each in nexts:
            assert states is not None
            (states.adopt if status is DecodeStatus.OK else states.drop)(each)
        has_tokens = status is DecodeStatus.OK and batch.n_rows and not batch.want_hidden
        tokens = ffi.unpack(self._out, batch.n_rows) if has_tokens else []
        return DecodeOutcome(status, tokens, rows.call_ns, rows.sample_ns, rows.begun_ns)

    def _adapters(self, runs: list[Run]) -> tuple[tuple[list[dict[int, float]], list[int]], tuple[int, ...]]:
        """Return the scales and row count of each run, and all adapters in use; nothing if no row has any."""
        scales = [self.scales[seq_id] for seq_id, _, _ in runs]
        if not any(scales):
            return ([], []), ()
        return (scales, [n for _, _, n in runs]), tuple(sorted({which for each in scales for which in each}))

    def _with_next(self, runs: list[Run]) -> tuple[list[Run], bool]:
        """Return the runs, each with the next position if there is room: the next call will need those pages."""
        longer = [(seq_id, pos0, n + 1) for seq_id, pos0, n in runs]
        return (longer, True) if self._pages.has_room(longer) else (runs, False)

    def begin_next(self, wake_fd: int) -> None:
        if self._ahead.handle:
            assert self._last is not None
            self._rows.wake_fd = wake_fd
            lib.uma_forward_begin_next(self._last.native, self._rows)

    def sync(self) -> None:
        """Wait for the call that was started ahead, and discard it. Its pages stay with their sequences, uncounted."""
        if self._ahead.is_begun:
            lib.uma_forward_sync(self._ahead.handle)

    def _refusal(self, batch: Batch, runs: list[Run], reading: set[int]) -> DecodeStatus:
        """Refuse bad batches. A batch that would crash C is our bug; one that does not fit is not. C checks tokens."""
        if not 0 < batch.n <= self._n_batch or len({seq_id for seq_id, _, _ in runs}) != len(runs):
            return DecodeStatus.BAD_BATCH
        for seq_id, pos0, _ in runs:
            if not 0 <= seq_id < len(self.n_kv) or pos0 != self.n_kv[seq_id] or seq_id in reading:
                return DecodeStatus.BAD_BATCH
        if self._broken:
            return DecodeStatus.FATAL
        if self._pages.has_room(runs):
            return DecodeStatus.OK
        refusals.add()
        return DecodeStatus.FULL

    def _point_at(self, batch: Batch) -> None:
        """Wrap a batch's buffers, once for each batch: batches are reused tick after tick."""
        if self._views[0] is not batch:
            rows = self._rows
            views = [ffi.from_buffer("int32_t *", array) for array in (batch.tokens, batch.pos, batch.seq_id)]
            rows.token, rows.pos, rows.seq_id = views
            views.append(ffi.from_buffer("int8_t *", batch.want_logits))
            rows.want = views[-1]
            self._views = (batch, views)

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Build graphs for these (rows, rows that want logits), with the last call's room.

        Raises: INSUFFICIENT_MEMORY.
        """
        assert self._last is not None
        largest_first = sorted(shapes, key=lambda shape: shape[::-1], reverse=True)  # the memory that they share moves
        for n, n_out in largest_first * 2:  # once for all; the second time those that lost it to one still larger
            self.forwards.of(BatchShape(n, n_out, self._attention.room(self._last.span, n)))

    def draw(self, row: int, sampler: Any) -> int:
        assert self._last is not None
        self.sync()
        return int(lib.uma_forward_draw(self._last.native, row, sampler))

    def logits(self, row: int) -> np.ndarray:
        assert self._last is not None
        self.sync()
        return self._last.logits(row)

    def hidden(self) -> np.ndarray:
        last = self._last
        assert last is not None
        if not last.batch.has_head:
            return last.hidden(last.batch.n_out)
        batch, _ = self._views
        assert batch is not None
        wants = batch.want_logits[: batch.n] != 0
        return np.concatenate([rows[wants] if len(rows) > last.batch.n_out else rows for rows in last.kept()], axis=1)

    def close(self) -> None:
        self.sync()
        self._ahead.close()
        self.forwards.close()
        self._attention.close()


def drafts_of(runs: list[Run], batch: Batch) -> list[bool]:
    """Which runs are drafts after a sequence's own row: those whose first of several rows wants a token.

    Prompts of which every row is scored look the same; long ones have no state for each row.
    """
    wants, row, found = batch.want_logits[: batch.n].tolist(), 0, []
    for _, _, n in runs:
        found.append(1 < n <= VERIFY_ROWS_OF_STATES and bool(wants[row]))
        row += n
    return found


def runs_of(batch: Batch) -> list[Run]:
    """The batch as runs of one sequence each; positions within a run that do not count up start a new one."""
    n = batch.n
    runs: list[Run] = []
    begin = 0
    seq_id, pos = batch.seq_id[:n].tolist(), batch.pos[:n].tolist()
    for i in range(1, n + 1):
        if i == n or seq_id[i] != seq_id[begin] or pos[i] != pos[i - 1] + 1:
            runs.append((seq_id[begin], pos[begin], i - begin))
            begin = i
    return runs
