"""How a load may be made, and what the system says about memory."""

from __future__ import annotations

import ctypes

import pytest

from uma_core.engine.api import MemoryUse
from uma_core.errors import ErrorCode, UmaError
from uma_core.server import memory
from uma_core.server.memory import MIB, Fit, available_bytes, choose, darwin_available


def use(weights: int, kv: int, compute: int = 0) -> MemoryUse:
    return MemoryUse(weights * MIB, kv * MIB, compute * MIB)


@pytest.mark.parametrize(
    "need, live, budget_mb, available_mb, expected",
    [
        (use(100, 50), None, 0, None, Fit.BESIDE),
        (use(100, 50), None, 0, 200, Fit.BESIDE),
        (use(10_000, 50), None, 0, 200, Fit.BESIDE),  # weights are mapped: they may be larger than memory
        (use(100, 50), use(100, 50), 0, 1000, Fit.BESIDE),
        (use(100, 50), use(100, 50), 0, 200, Fit.SWAP),
        (use(100, 50), use(100, 50), 300, 1000, Fit.BESIDE),
        (use(100, 50), use(100, 50), 299, 1000, Fit.SWAP),
        (use(100, 50), use(100, 50), 150, None, Fit.SWAP),
        (use(100, 150), use(100, 150), 0, 70, Fit.SWAP),  # what the old one frees is room
    ],
)
def test_beside_or_instead(need, live, budget_mb, available_mb, expected):
    available = None if available_mb is None else available_mb * MIB
    assert choose(need, live, budget_mb * MIB, available) is expected


@pytest.mark.parametrize(
    "need, live, budget_mb, available_mb",
    [
        (use(100, 50), None, 149, None),
        (use(100, 50), use(1, 1), 149, 10_000),
        (use(100, 500), None, 0, 500),
        (use(100, 500), use(100, 100), 0, 400),
    ],
)
def test_what_cannot_fit_is_refused(need, live, budget_mb, available_mb):
    available = None if available_mb is None else available_mb * MIB
    with pytest.raises(UmaError) as caught:
        choose(need, live, budget_mb * MIB, available)
    assert caught.value.error is ErrorCode.INSUFFICIENT_MEMORY
    assert caught.value.detail["need_mb"] > caught.value.detail["limit_mb"]


def write(folder, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_machine_or_the_control_group_whichever_is_less(tmp_path):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    assert available_bytes(proc, cgroup) is None
    write(proc, {"meminfo": "MemTotal: 100 kB\nMemAvailable: 5000 kB\n"})
    assert available_bytes(proc, cgroup) == 5000 * 1024
    write(proc, {"self/cgroup": "0::/a/b\n"})
    write(cgroup, {"a/b/memory.max": "max\n", "a/b/memory.current": "1\n", "a/b/memory.stat": "anon 1\n"})
    assert available_bytes(proc, cgroup) == 5000 * 1024
    write(cgroup, {"a/b/memory.max": "3000000\n", "a/b/memory.current": "2500000\n", "a/b/memory.stat": "anon 1\ninactive_file 100000\n"})
    assert available_bytes(proc, cgroup) == 600_000
    write(cgroup, {"a/b/memory.current": "9000000\n"})
    assert available_bytes(proc, cgroup) == 0


class FakeLibc:
    def __init__(self, values: dict[bytes, int]) -> None:
        self.values = values

    def sysctlbyname(self, name, value, length, new, new_length):
        assert (new, new_length.value) == (None, 0)
        if name not in self.values:
            return -1
        target = value._obj
        assert length._obj.value == ctypes.sizeof(target)
        target.value = self.values[name]
        return 0


def test_macos_is_asked_for_its_level():
    assert darwin_available(FakeLibc({b"kern.memorystatus_level": 40, b"hw.memsize": 1000 * MIB})) == 400 * MIB
    assert darwin_available(FakeLibc({b"hw.memsize": 1000 * MIB})) is None


def test_resident_memory_is_a_size():
    assert MIB < memory.resident_bytes() < 64 << 30
    memory.give_back()
