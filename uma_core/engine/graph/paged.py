"""Plans of attention over pages: what one graph that computes, or is paused, has of its own."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import PagedPair
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Paged:
    """Owns the plan of layers that see everything, and that of layers with a window where the model has some."""

    def __init__(self, shape: Any, window: int, n_rows: int) -> None:
        """`shape`: uma_paged_shape *, of layers that see everything. Raises: INSUFFICIENT_MEMORY."""
        self.full = lib.uma_paged_new(shape, n_rows)
        self.window = ffi.NULL
        if window:
            windowed = ffi.new("uma_paged_shape *", shape[0])
            windowed.window = window
            self.window = lib.uma_paged_new(windowed, n_rows)
        if not self.full or (window and not self.window):
            self.close()
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for plans of attention")

    @property
    def pair(self) -> PagedPair:
        return self.full, self.window

    def close(self) -> None:
        for paged in self.pair:
            lib.uma_paged_free(paged)
        self.full = self.window = ffi.NULL


NO_PLANS: PagedPair = (ffi.NULL, ffi.NULL)  # of graphs that are laid out and never computed
