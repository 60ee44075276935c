"""What the system reports about its processors and memory. A figure that it does not report is None."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Any

# Processors that this process may use; empty if the system does not report them. Read once, because compute threads are
# bound to one later.
PROCESSORS = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset[int]()
N_PROCESSORS = len(PROCESSORS) or os.cpu_count() or 1
ENDLESS_STACK = 2 << 20  # size of a thread's stack if stacks are unlimited, on x86-64


def cpu_quota(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the CPU time that the control group and its parents allow, in processors; None: there is no limit.

    Source: cpu.max of cgroup v2, cpu.cfs_quota_us of v1. `docker run --cpus` and Kubernetes' limits set them.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        if not controllers or "cpu" in controllers.split(","):
            root = cgroup / controllers
            group = root / name.lstrip("/")
            # a container sees its own group as the root, whatever its name is outside
            quotas += [_quota(folder) for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such controller here, or "max"
        return None


def n_compute_threads() -> int:
    """Return one thread per processor that this process may use, but no more than its control group's CPU time allows.

    When the threads have used up that time, all of them stop until the next period. With one processor's time on
    two processors, two threads gave 1,500 tokens in 4.4 to 5.1 s with pauses of 54 to 55 ms, one thread in 3.6 to 3.7 s
    with pauses of 11 to 16 ms (embedded model, AMD EPYC with AVX-512, three runs in turn).
    """
    quota = cpu_quota()
    return N_PROCESSORS if quota is None else max(1, min(N_PROCESSORS, int(quota)))


def over_quota(n_threads: int) -> str:
    """Return a note if there are more compute threads than the control group's CPU time allows; "": there are not."""
    quota = cpu_quota()
    if quota is None or n_threads <= max(1.0, quota):
        return ""
    return (
        f"engine.threads is {n_threads}, but the control group allows the time of {quota:.3g} processors: all threads "
        f"stop whenever it is used up; 0 would choose {n_compute_threads()}"
    )


def use_all_processors() -> None:
    """Let the calling thread, and threads and processes that it starts, run on any processor again."""
    if PROCESSORS:
        with contextlib.suppress(OSError):  # some processors have been taken from this process since
            os.sched_setaffinity(0, PROCESSORS)


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how much memory could be allocated without swapping: the least of the machine's, the control group's and
    the process's own figures.
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
    """Return the room below the process's limits of private memory and of all address space (ulimit -d, ulimit -v).

    None: there is no limit.
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
    """Return the address space that a new thread's stack needs. Source: pthread_create(3)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return ENDLESS_STACK if limit == resource.RLIM_INFINITY else limit


def _cgroup_room(proc: Path, cgroup: Path) -> int | None:
    """Return the room below memory.max, including the group's reclaimable file pages. None: no limit, or no
    cgroup v2.
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
    """Return the memory that macOS counts as available.

    Source: sysctl kern.memorystatus_level (percent), hw.memsize.
    """
    level, size = ctypes.c_uint32(), ctypes.c_uint64()
    for name, value in ((b"kern.memorystatus_level", level), (b"hw.memsize", size)):
        length = ctypes.c_size_t(ctypes.sizeof(value))
        if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(length), None, ctypes.c_size_t(0)) != 0:
            return None
    return int(size.value) * int(level.value) // 100
