"""What the system reports about processors and memory."""

from __future__ import annotations

import ctypes

import pytest

from uma_core import machine
from uma_core.machine import available_bytes, cpu_quota, darwin_available, n_compute_threads

MIB = 1 << 20


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
    write(
        cgroup,
        {
            "a/b/memory.max": "3000000\n",
            "a/b/memory.current": "2500000\n",
            "a/b/memory.stat": "anon 1\ninactive_file 100000\n",
        },
    )
    assert available_bytes(proc, cgroup) == 600_000
    write(cgroup, {"a/b/memory.current": "9000000\n"})
    assert available_bytes(proc, cgroup) == 0


QUOTAS = {
    "none": ("0::/\n", {}, None),
    "of a container": ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
    "unlimited": ("0::/a\n", {"a/cpu.max": "max 100000\n"}, None),
    "of the group": ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "max 100000\n"}, 0.5),
    "of a group around it": ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3.0),
    "of version 1": (
        "3:memory:/x\n2:cpu,cpuacct:/x\n",
        {"cpu,cpuacct/x/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
        2.0,
    ),
    "of a container of version 1": (
        "2:cpu:/docker/1234\n",
        {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"},
        4.0,
    ),
    "unlimited in version 1": ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "1\n"}, None),
    "in no form that is known": ("nonsense\n0::/\n", {"cpu.max": "\n"}, None),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_the_time_that_a_control_group_allows(tmp_path, name):
    groups, files, quota = QUOTAS[name]
    write(tmp_path / "proc", {"self/cgroup": groups})
    write(tmp_path / "cgroup", files)
    assert cpu_quota(tmp_path / "proc", tmp_path / "cgroup") == quota


@pytest.mark.parametrize(("quota", "n"), [(None, 8), (16.0, 8), (3.9, 3), (2.0, 2), (0.3, 1)])
def test_there_are_no_more_compute_threads_than_the_control_group_gives_time_for(monkeypatch, quota, n):
    monkeypatch.setattr(machine, "N_PROCESSORS", 8)
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert n_compute_threads() == n


@pytest.mark.parametrize(
    ("quota", "n_threads", "told"),
    [(None, 64, ""), (2.0, 2, ""), (0.5, 1, ""), (2.0, 0, ""), (2.0, 3, "2 processors"), (1.5, 2, "1.5 processors")],
)
def test_more_threads_than_the_control_group_gives_time_for_are_told(monkeypatch, quota, n_threads, told):
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    said = machine.over_quota(n_threads)
    assert bool(said) == bool(told) and told in said


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
