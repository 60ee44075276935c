"""Checks before the libraries are loaded: whether this processor can run them, and which build of ggml's CPU backend is
the best for it.

Rules: this module loads nothing of llama.cpp but that backend. A portable build has several variants of it, all with
the same name in different folders. The one that is loaded first serves every library that asks for the name (ld.so(8):
a library is known by its DT_SONAME).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from uma_core.errors import ErrorCode, UmaError

log = logging.getLogger(__name__)

FOLDER = Path(__file__).resolve().parent.parent / "lib"
RECORD = "build.json"
LIBRARY = "libuma_processor.dylib" if sys.platform == "darwin" else "libuma_processor.so"
BACKEND = "libggml-cpu.so.0"
ISA = "UMA_ISA"
LACKS = {  # features that a processor of this kind lacks, as beginnings of /proc/cpuinfo's names
    "avx512vnni": ("amx",),
    "avx512": ("amx", "avx512_vnni", "avx512vbmi", "avx512_bf16", "avx_vnni"),
    "avxvnni": ("amx", "avx512"),
    "avx2": ("amx", "avx512", "avx_vnni"),
    "portable": ("amx", "avx", "fma", "f16c", "bmi"),
}


def prepare(folder: Path = FOLDER) -> str:
    """Load the CPU backend for this processor. Returns its name; "" if the build has only one.

    Raises: WRONG_PROCESSOR.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # a missing library is reported when it is loaded
    has = features(folder)
    check(record, has)
    name = best(record, limited(has, os.environ.get(ISA, "")))
    if name:
        ctypes.CDLL(str(folder / name / BACKEND), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        log.debug("loaded ggml's CPU backend for %s", name)
    return name


def features(folder: Path) -> frozenset[str]:
    """Return the processor's features, with /proc/cpuinfo's names. Source: native/processor/processor.c."""
    try:
        ask = ctypes.CDLL(str(folder / LIBRARY)).uma_processor
    except OSError as error:
        log.debug("the processor's features are unknown: %s", error)
        return frozenset()
    ask.restype = ctypes.c_char_p
    return frozenset(ask().decode().split())


def limited(has: frozenset[str], isa: str) -> frozenset[str]:
    """Return only the features that leave the kernels for `isa` (`engine.isa`) as the best ones."""
    return frozenset(name for name in has if not name.startswith(LACKS.get(isa, ())))


def check(record: dict[str, Any], has: frozenset[str]) -> None:
    """Raise WRONG_PROCESSOR if the build needs instructions that this processor lacks."""
    missing = [name for name in record.get("needs", ()) if name not in has]
    if has and missing:
        how = "for the processor of another machine" if record.get("is_native_cpu") else "for newer processors"
        text = (
            f"UMA Serve was built {how}: this one lacks {', '.join(missing)}; install it again here, or build it "
            "with UMA_BUILD=portable"
        )
        raise UmaError(ErrorCode.WRONG_PROCESSOR, text, missing=missing)


def best(record: dict[str, Any], has: frozenset[str]) -> str:
    """Return the first of the record's variants, best first, that this processor runs; "" for the backend beside the
    other libraries.
    """
    return next((name for name, needs in record.get("variants", ()) if has.issuperset(needs)), "")
