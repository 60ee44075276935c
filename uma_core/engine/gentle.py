"""Short turns of work for a process that must not slow down one that computes (native/runtime/gentle.c)."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

from uma_core.engine.lib import ffi, lib

# A tenth of a processor, in turns shorter than a small model's step (0.7 ms). A tenth reads a prompt of 100 KB in half
# a second.
RUN_NS, PAUSE_NS = 150_000, 1_350_000


@contextlib.contextmanager
def gently(is_crowded: mmap.mmap) -> Iterator[None]:
    """Pause at regular intervals while the shared byte is not 0.

    Only for a process with one thread, because the thread may hold any lock while it pauses.
    """
    lib.uma_gentle_begin(ffi.from_buffer("uint8_t *", is_crowded), RUN_NS, PAUSE_NS)
    try:
        yield
    finally:
        lib.uma_gentle_end()
