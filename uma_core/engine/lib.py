"""The one import of the compiled bindings: `ffi`, `lib`, and llama.cpp's log as Python lines.

Importing this loads libllama; only engine modules do so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an assert would otherwise fork a debugger out of the daemon
# OpenMP's threads (libgomp) would spin for 300,000 rounds, some 20 ms, wherever they wait for each other. A system that
# shares by groups of processes may leave two of them on one processor and another program alone on the next: every
# operation then takes as long as that (docs/SYSTEM_DESIGN.md has the measurements). Many threads wait for each other
# longer than two. This comes before libgomp is loaded; what the user has set stays.
if "OMP_WAIT_POLICY" not in os.environ:
    n_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("GOMP_SPINCOUNT", str(1_000 * n_processors))

from uma_core.engine import processor

CPU_BACKEND = processor.prepare()  # before anything of llama.cpp is loaded

import uma_core._llama as _llama  # noqa: E402
from uma_core.engine.selftest import check_bindings  # noqa: E402

ffi = _llama.ffi
lib = _llama.lib

check_bindings(ffi, lib)
lib.uma_guard_install()
lib.uma_log_install(lib.GGML_LOG_LEVEL_INFO)


def text(pointer: object) -> str:
    """A C string as str; "" for NULL. Borrowed bytes are copied."""
    return ffi.string(pointer).decode("utf-8", "replace") if pointer else ""


def take_log() -> Iterator[tuple[int, str]]:
    """(ggml log level, piece of text) for everything that llama.cpp logged since the last call."""
    piece = ffi.new("char[]", 512)
    level = ffi.new("int32_t *")
    while n := lib.uma_log_take(piece, 512, level):
        yield level[0], bytes(ffi.buffer(piece, n)).decode("utf-8", "replace")
