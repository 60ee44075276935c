"""What the kernels ask the processor, against what the system says of it."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path

from tests.kernels import build


def test_the_size_of_the_first_level_cache_is_the_systems(tmp_path: Path) -> None:
    n_bytes = ctypes.CDLL(str(build.kernel_library(tmp_path / "libkernels.so"))).uma_cpu_l1d_bytes()
    if platform.machine() == "x86_64":
        assert n_bytes == _of_the_system()
    else:
        assert n_bytes == 0, "not asked there, so not known"


def _of_the_system() -> int:
    command = ["getconf", "LEVEL1_DCACHE_SIZE"] if platform.system() == "Linux" else ["sysctl", "-n", "hw.l1dcachesize"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
