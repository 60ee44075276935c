"""What the system says about memory."""

from __future__ import annotations

import ctypes

from uma_core.machine import available_bytes, darwin_available

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
