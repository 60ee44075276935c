"""Memory of the process and of the machine: how much there is, what a load may use, how to return it.

Rules: figures that the system does not report are None, and never cause a refusal.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from enum import Enum
from pathlib import Path

from uma_core import threads
from uma_core.engine.api import MemoryUse
from uma_core.errors import ErrorCode, UmaError
from uma_core.machine import available_bytes as available_bytes
from uma_core.machine import limit_room, stack_bytes

log = logging.getLogger(__name__)

MIB = 1 << 20
THREAD_BYTES = 4 * MIB  # memory that a thread needs besides its stack until it runs
SPARE_BYTES = 64 * MIB  # for buffers that no estimate includes


class Fit(Enum):
    BESIDE = "beside"  # while the running engine stays
    SWAP = "swap"  # only after the running engine is unloaded


def choose(need: MemoryUse, live: MemoryUse | None, budget_bytes: int, available: int | None) -> Fit:
    """Decide how an engine of size `need` can be loaded while engines of size `live` run. Pure.

    Weights may be mapped and come and go with the page cache, so they alone never make a load fail; KV and compute
    buffers must have room. A budget counts everything.

    Raises: INSUFFICIENT_MEMORY, before anything is touched.
    """
    total, held = sum(need), sum(live or ())
    room = None if available is None else available - SPARE_BYTES
    if budget_bytes and total > budget_bytes:
        raise _refusal(total, budget_bytes, "budget")
    fixed, held_fixed = total - need.weights, held - (live.weights if live else 0)
    if room is not None and fixed > room + held_fixed:
        raise _refusal(fixed, max(0, room + held_fixed), "machine")
    fits_budget = not budget_bytes or total + held <= budget_bytes
    fits_machine = room is None or total <= room
    return Fit.BESIDE if not live or (fits_budget and fits_machine) else Fit.SWAP


def holds(need: MemoryUse, budget_bytes: int, available: int | None) -> bool:
    """Whether an engine fits, weights included, so that loading it displaces nothing. Pure."""
    total = sum(need)
    return (not budget_bytes or total <= budget_bytes) and (available is None or total <= available - SPARE_BYTES)


def _refusal(need: int, limit: int, what: str) -> UmaError:
    need_mb, limit_mb = -(-need // MIB), limit // MIB
    bound = f"engine.memory_budget_mb is {limit_mb}" if what == "budget" else f"{limit_mb} MiB are available"
    smaller = "a smaller engine.n_ctx (of an encoder: engine.encoder_ctx) or another model needs less"
    text = f"the load needs about {need_mb} MiB, {bound}; {smaller}"
    return UmaError(ErrorCode.INSUFFICIENT_MEMORY, text, need_mb=need_mb, limit_mb=limit_mb)


def start(thread: threading.Thread) -> threading.Thread:
    """Start a thread. Raises: INSUFFICIENT_MEMORY.

    Python waits forever for a thread that gets a stack but then lacks the memory to report that it runs, so there must
    be room for both.
    """
    room = limit_room()
    if room is not None and room < stack_bytes() + THREAD_BYTES:
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"no memory for the thread {thread.name!r}")
    return threads.start(thread)


def resident_bytes() -> int:
    """Return the current RSS if the system reports it (Linux), else the peak."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def mapped_bytes(path: str) -> int | None:
    """Return how many bytes of this file are mapped; None: not reported by the system. Source: proc(5), Linux.

    If none are, counts those of the file that had the path until it was replaced or removed.
    """
    try:
        lines = Path("/proc/self/maps").read_bytes().split(b"\n")
        name = os.fsencode(os.path.realpath(path)).replace(b"\n", b"\\012")
    except (OSError, ValueError):
        return None
    return _mapped(lines, name) or _mapped(lines, name + b" (deleted)")


def _mapped(lines: list[bytes], name: bytes) -> int:
    fields = [line.split(None, 5) for line in lines]
    spans = [line[0].split(b"-") for line in fields if line[5:] == [name]]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


def locked_bytes() -> int | None:
    """Return the bytes locked into memory; None: not reported by the system. Source: proc(5), Linux."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(errors="replace").splitlines())
        return int(fields["VmLck"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def give_back() -> None:
    """Return freed heap pages to the system, if the C library keeps them (glibc)."""
    if sys.platform.startswith("linux"):
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # another C library
            log.debug("no malloc_trim here")
