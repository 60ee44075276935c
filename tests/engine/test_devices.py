"""What the product reports about the machine's devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from uma_core.engine import devices


def registry(monkeypatch: pytest.MonkeyPatch, **n_devices: int) -> None:
    """Stand in for ggml's registry, with this many devices of each backend. The CPU has one."""
    kinds = {"cpu": 0, "gpu": 1, "shared": 2}
    of_backend = {"CPU": 1, **n_devices}
    each = [(name, kinds["cpu" if name == "CPU" else "gpu"]) for name, n in of_backend.items() for _ in range(n)]
    monkeypatch.setattr(devices, "GPUS", (kinds["gpu"], kinds["shared"]))
    monkeypatch.setattr(devices, "text", str)
    found = SimpleNamespace(
        ggml_backend_reg_count=lambda: len(of_backend),
        ggml_backend_reg_get=list(of_backend).__getitem__,
        ggml_backend_reg_name=lambda backend: backend,
        ggml_backend_dev_count=lambda: len(each),
        ggml_backend_dev_get=each.__getitem__,
        ggml_backend_dev_type=lambda device: device[1],
        ggml_backend_dev_backend_reg=lambda device: device[0],
        ggml_backend_dev_description=lambda device: f"{device[0]} device",
    )
    monkeypatch.setattr(devices, "lib", found)


def test_the_first_gpu_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    registry(monkeypatch, CUDA=2)
    assert devices.backend_name() == "cuda"
    assert devices.device_names() == ("CPU device", "CUDA device", "CUDA device")
    assert devices.missing_gpu() == ""


def test_a_build_for_gpus_that_finds_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vulkan leaves out software devices, and CUDA those without a driver. The only sign would be slow answers."""
    registry(monkeypatch, Vulkan=0)
    assert devices.backend_name() == "cpu"
    assert devices.missing_gpu() == "Vulkan found no GPU: the CPU computes"


@pytest.mark.parametrize("others", [{}, {"RPC": 0}, {"BLAS": 0}])
def test_a_build_for_the_cpu_misses_nothing(monkeypatch: pytest.MonkeyPatch, others: dict[str, int]) -> None:
    registry(monkeypatch, **others)
    assert devices.missing_gpu() == ""
