"""What the system says of its memory. Figures that it does not tell are None."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Any

# Processors that this process may use; empty if the system does not tell. Read once: compute threads are bound to one.
PROCESSORS = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset[int]()
N_PROCESSORS = len(PROCESSORS) or os.cpu_count() or 1
ENDLESS_STACK = 2 << 20  # of a thread where stacks have no limit, on x86-64


def use_all_processors() -> None:
    """The calling thread may run on any of them again, and so may threads and processes that it begins."""
    if PROCESSORS:
        with contextlib.suppress(OSError):  # some were taken from this process since
            os.sched_setaffinity(0, PROCESSORS)


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What could be allocated without swapping: the machine's, the control group's or the process's own figure,
    whichever is least.
    """
    if sys.platform == "darwin":
        return darwin_available(ctypes.CDLL(None, use_errno=True))
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    limits = (_cgroup_room(proc, cgroup), limit_room(proc))
    return min([free, *(limit for limit in limits if limit is not None)])


def limit_room(proc: Path = Path("/proc")) -> int | None:
    """Room below the process's limits of private and of all address space (ulimit -d, ulimit -v).

    None without a limit.
    """
    rooms = []
    try:
        used = dict(line.split(":", 1) for line in (proc / "self/status").read_text().splitlines())
        for limit, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY:
                rooms.append(max(0, most - int(used[name].split()[0]) * 1024))
    except (OSError, KeyError, ValueError, IndexError):  # not Linux
        return None
    return min(rooms, default=None)


def stack_bytes() -> int:
    """Address space that a new thread's stack takes. Source: pthread_create(3)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return ENDLESS_STACK if limit == resource.RLIM_INFINITY else limit


def _cgroup_room(proc: Path, cgroup: Path) -> int | None:
    """Room below memory.max, the group's reclaimable file pages included.

    None without a limit (or without cgroup v2).
    """
    try:
        name = next(line[3:] for line in (proc / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
        folder = cgroup / name.lstrip("/")
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, StopIteration, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used + int(stat.get("inactive_file", 0)))


def darwin_available(libc: Any) -> int | None:
    """The share of memory that macOS counts as available.

    Source: sysctl kern.memorystatus_level (percent), hw.memsize.
    """
    level, size = ctypes.c_uint32(), ctypes.c_uint64()
    for name, value in ((b"kern.memorystatus_level", level), (b"hw.memsize", size)):
        length = ctypes.c_size_t(ctypes.sizeof(value))
        if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(length), None, ctypes.c_size_t(0)) != 0:
            return None
    return int(size.value) * int(level.value) // 100
