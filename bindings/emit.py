"""The C source of `uma_core._llama`, as cffi writes it; from the build cache while what it follows from is the same.

Reading the headers and writing the source takes 2.5 s of a core (AMD EPYC): most of a build in which nothing changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from bindings import build_ffi, generate
from native import cache
from native.build import HEADERS_DIR, Native
from native.pin import sha256_file
from native.probe import library_paths
from native.progress import Progress

SOURCE = "_llama.c"
WRITERS = ("cffi", "pcpp", "pycparser")
N_KEPT = 8  # 2 MB each


def emitted(native: Native, progress: Progress) -> Path:
    """Return the source for these headers and libraries. It is the same for every Python."""
    own = build_ffi.own_cdef()
    root = cache.cache_root()
    facts: dict[str, object] = {
        "headers": _digest(HEADERS_DIR.rglob("*.h")),
        "libraries": _digest(library_paths(Path(native.lib_dir))),  # they say which functions there are
        "versions": [native.backend, native.llama_version, native.ggml_version, native.ggml_commit],
        "own": own,
        "code": _digest(Path(__file__).parent.glob("*.py")),
        "writers": [version(name) for name in WRITERS],
    }

    def produce(entry: Path) -> None:
        progress.note("writing the bindings' source")
        cdef = generate.generate_for(native)
        baked = build_ffi.baked_values(native, cdef.text + own)
        ffi = build_ffi.make_ffi(cdef.text, baked, generate.headers_for(native.backend), own)
        with contextlib.redirect_stdout(io.StringIO()):  # cffi reports "generating" and "up-to-date"
            ffi.emit_c_code(str(entry / SOURCE))

    source = cache.get_or_build(root, "bindings", facts, produce, progress.note) / SOURCE
    cache.prune(root, "bindings", N_KEPT)
    return source


def _digest(paths: Iterable[Path]) -> str:
    """Return a digest of the files' names and content."""
    return hashlib.sha256("".join(f"{path.name} {sha256_file(path)}\n" for path in sorted(paths)).encode()).hexdigest()
