"""What the system says of its memory. Figures that it does not tell are None."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What could be allocated without swapping: the machine's or the control group's figure, whichever is less."""
    if sys.platform == "darwin":
        return darwin_available(ctypes.CDLL(None, use_errno=True))
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    limit = _cgroup_room(proc, cgroup)
    return free if limit is None else min(free, limit)


def _cgroup_room(proc: Path, cgroup: Path) -> int | None:
    """Room below memory.max, the group's reclaimable file pages included. None without a limit (or without cgroup v2)."""
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
    """The share of memory that macOS counts as available. Source: sysctl kern.memorystatus_level (percent), hw.memsize."""
    level, size = ctypes.c_uint32(), ctypes.c_uint64()
    for name, value in ((b"kern.memorystatus_level", level), (b"hw.memsize", size)):
        length = ctypes.c_size_t(ctypes.sizeof(value))
        if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(length), None, ctypes.c_size_t(0)) != 0:
            return None
    return int(size.value) * int(level.value) // 100
