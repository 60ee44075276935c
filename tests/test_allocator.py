"""The memory of large buffers returns to the system. Runs in a separate process, because the settings are its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from uma_core.allocator import tame_allocator
if sys.argv[1] == "tamed":
    tame_allocator()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
_ = b"x" * (4 << 20)
del _  # from now on glibc puts buffers of this size into its heap
first = resident()
large, small = [], []
for n in range(30):
    large.append(b"x" * (2 << 20))
    small.append(b"x" * (1 << 14))
del large
print(resident() - first)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize(("how", "is_kept"), [("tamed", False), ("as it is", True)])
def test_the_memory_of_large_buffers_returns_to_the_system(how: str, is_kept: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 30) == is_kept, f"{done.stdout} MiB are kept"
