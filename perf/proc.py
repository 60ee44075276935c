"""CPU time and memory of processes, as the system reports them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    cpu_s: float
    rss_mb: float


def usage(pid: int) -> Usage:
    """Return CPU seconds of all its threads so far, and resident memory. Raises: ProcessLookupError if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return _from_ps(pid)
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, resident * os.sysconf("SC_PAGE_SIZE") / 2**20)


def cpu_ns(pid: int) -> int:
    """Return CPU time of all its threads so far: exact if the scheduler has it (Linux), else in the ticks of
    `usage`.
    """
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return int(usage(pid).cpu_s * 1e9)


class Resident(NamedTuple):
    """RSS in MiB, by kind."""

    own_mb: float  # heaps, stacks, buffers: only this can leak
    file_mb: float  # pages of mapped files, such as weights: the system takes them back when it needs memory


def resident(pid: int) -> Resident:
    """Return the parts of a process's RSS.

    Raises: FileNotFoundError if the process is gone, or there is no /proc (Linux only).
    """
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Rss"))
    mb = {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines}
    return Resident(mb["RssAnon"] + mb["RssShmem"], mb["RssFile"])


def _from_ps(pid: int) -> Usage:
    """Ask ps, for systems without /proc."""
    done = subprocess.run(["ps", "-o", "time=,rss=", "-p", str(pid)], capture_output=True, text=True)
    words = done.stdout.split()
    if len(words) < 2:
        raise ProcessLookupError(pid)
    seconds = 0.0
    for part in words[0].replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part)
    return Usage(seconds, int(words[1]) / 1024)


def machine_cpu_s() -> float:
    """Return the CPU seconds that the whole machine has been busy; NaN if it does not say."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except FileNotFoundError:
        return float("nan")
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (int(w) for w in words)
    return (user + nice + system + irq + softirq) / _TICKS
