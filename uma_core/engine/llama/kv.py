"""Moves of KV between contexts, sequences and host bytes, in slices (native/llama/kv.c)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from uma_core.engine.blob import new_blob
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.decode import NO_CELLS
from uma_core.engine.refusals import refusals
from uma_core.errors import ErrorCode, UmaError

MARK_TOKENS = 64  # cells marked per slice while a stream waits: marking fills an attention mask of this many rows
MARK_TOKENS_MAX = 512  # ... and while no stream waits
UNHURRIED_NS = 20_000_000


class Span:
    """One end of a move: a stream of a cache, or host bytes that begin at position `stream`.

    It keeps alive the objects that C points at.
    """

    def __init__(self, gate: Any, stream: int, n_cells: int, host: Any = None) -> None:
        self.buffer = ffi.from_buffer("char *", host) if host is not None else ffi.NULL
        self.gate = gate
        self.struct = ffi.new(
            "uma_span *", {"gate": gate or ffi.NULL, "stream": stream, "n_cells": n_cells, "bytes": self.buffer}
        )


class Cells(Protocol):
    """A context that must be told about cells that others fill."""

    handle: Any
    gate: Any
    n_batch: int

    def kv_truncate(self, seq_id: int, n: int) -> bool: ...


class Move:
    """A Transfer: marks cells in `into` (if its bookkeeping does not know them yet), then copies rows p0..p1."""

    def __init__(self, source: Span, target: Span, p0: int, p1: int, into: tuple[Cells, int] | None) -> None:
        shape = source.gate or target.gate
        self.n_bytes = int(lib.uma_kv_bytes(shape, p1 - p0))
        self._ends = (source, target)
        self._p0, self._p1 = p0, p1
        self._into = into
        self._n_marked = p0 if into else p1
        self._cursor = ffi.new("int32_t *")
        self._is_done = p1 <= p0
        self._on_done: Callable[[], None] | None = None

    def then(self, function: Callable[[], None]) -> Move:
        """Run `function` once, when the last byte has moved."""
        self._on_done = function
        return self

    def step(self, until_ns: int) -> bool:
        while self._n_marked < self._p1:
            self._mark(MARK_TOKENS_MAX if until_ns - lib.uma_now_ns() > UNHURRIED_NS else MARK_TOKENS)
            if lib.uma_now_ns() >= until_ns:
                return False
        if not self._is_done:
            source, target = self._ends
            moved = lib.uma_kv_move(source.struct, target.struct, self._p0, self._p1, self._cursor, until_ns)
            self._is_done = bool(moved)
        if self._is_done and self._on_done:
            function, self._on_done = self._on_done, None
            function()
        return self._is_done

    def _mark(self, n_most: int) -> None:
        assert self._into is not None
        context, seq_id = self._into
        n = min(n_most, context.n_batch, self._p1 - self._n_marked)
        rc = lib.uma_kv_mark(context.handle, context.gate, seq_id, self._n_marked, n)
        if rc == NO_CELLS:
            refusals.add()
        if rc != 0:
            raise UmaError(
                ErrorCode.KV_FULL if rc == NO_CELLS else ErrorCode.STATE_RESTORE_FAILED,
                f"no free cells to move KV into (rc {rc})",
            )
        self._n_marked += n

    def close(self) -> None:
        if not self._is_done and self._into:
            context, seq_id = self._into
            context.kv_truncate(seq_id, self._p0)
        self._is_done = True
        self._on_done = None


class HostExport(Move):
    """A move into bytes that it owns. They are not zeroed: touching 100 MB for the first time would be a long pause."""

    def __init__(self, source: Span, start: int, n: int) -> None:
        self.blob: bytearray | memoryview[int] = new_blob(int(lib.uma_kv_bytes(source.gate, n - start)))
        super().__init__(source, Span(None, start, n - start, self.blob), start, n, None)
