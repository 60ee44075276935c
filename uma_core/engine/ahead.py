"""The decode call that an engine starts ahead, before the executor asks for it (native/llama/ahead.c)."""

from __future__ import annotations

from typing import Any

from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Ahead:
    """Owns the C side's record of such a call. `handle`: a uma_ahead *, NULL if no call is ever started ahead."""

    def __init__(self, n_most: int, interrupt_flag: Any) -> None:
        """Make a record for calls of up to `n_most` rows; 0: never start one.

        `interrupt_flag`: an int32_t * that is set when something has happened. Raises: INSUFFICIENT_MEMORY.
        """
        self.handle = lib.uma_ahead_new(n_most, interrupt_flag) if n_most else ffi.NULL
        if n_most and not self.handle:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a batch")

    @property
    def is_begun(self) -> bool:
        return bool(self.handle) and self.handle.rows.n > 0

    def close(self) -> None:
        if self.handle:
            lib.uma_ahead_free(self.handle)
            self.handle = ffi.NULL


def pays(wanted: str, is_gpu: bool) -> bool:
    """Whether calls are started ahead. A CPU computes a call while starting it, so tokens would leave a step later."""
    return wanted == "on" or (wanted == "auto" and is_gpu)
