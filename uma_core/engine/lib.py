"""The one import of the compiled bindings: `ffi`, `lib`, and llama.cpp's log as Python lines.

Importing this loads libllama; only engine modules do so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an assert would otherwise fork a debugger out of the daemon

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
    """Yield (ggml log level, piece of text) for everything that llama.cpp logged since the last call."""
    piece = ffi.new("char[]", 512)
    level = ffi.new("int32_t *")
    while n := lib.uma_log_take(piece, 512, level):
        yield level[0], bytes(ffi.buffer(piece, n)).decode("utf-8", "replace")
