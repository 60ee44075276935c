"""Where graphs are computed, and what is refused there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from uma_core.config.options import EngineOptions
from uma_core.engine.graph import device as device_module
from uma_core.engine.graph.device import Device, device_of
from uma_core.engine.lib import ffi, lib

ON_CPU = EngineOptions(n_gpu_layers=0)


def missing(device: Device, kind: int) -> str:
    """Return what the device lacks for a graph that multiplies and then stores f32 rows as `kind`."""
    context = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})[0])
    a, b = (lib.ggml_new_tensor_2d(context, lib.GGML_TYPE_F32, 256, 256) for _ in "ab")
    graph = lib.ggml_new_graph(context)
    stored = lib.ggml_cpy(context, lib.ggml_mul_mat(context, a, b), lib.ggml_new_tensor_2d(context, kind, 256, 256))
    lib.ggml_build_forward_expand(graph, stored)
    found = device.missing_for(graph)
    lib.ggml_free(context)
    return found


def test_an_operation_that_the_device_lacks_is_named() -> None:
    device = device_of(ON_CPU, is_stock=True)
    assert missing(device, lib.GGML_TYPE_F16) == ""
    assert missing(device, lib.GGML_TYPE_IQ2_XXS) == f"CPY of f32 x iq2_xxs on {device.description}"


def test_without_layers_on_a_gpu_the_cpu_computes_with_our_operations() -> None:
    device = device_of(ON_CPU)
    assert (device.is_cpu, device.is_stock, device.name) == (True, False, "cpu")
    assert device_of(ON_CPU, is_stock=True).is_stock


def test_a_gpu_of_the_processor_computes_only_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's engine leaves it out too."""
    cpu = lib.GGML_BACKEND_DEVICE_TYPE_CPU
    present = {cpu: "cpu"}
    registry = SimpleNamespace(ggml_backend_dev_by_type=present.get, GGML_BACKEND_DEVICE_TYPE_CPU=cpu)
    monkeypatch.setattr(device_module, "lib", registry)
    monkeypatch.setattr(device_module, "Device", lambda handle, is_stock: handle)
    assert device_of(EngineOptions()) == "cpu"
    present[lib.GGML_BACKEND_DEVICE_TYPE_IGPU] = "shared memory"
    assert device_of(EngineOptions()) == "shared memory"
    present[lib.GGML_BACKEND_DEVICE_TYPE_GPU] = "memory of its own"
    assert device_of(EngineOptions()) == "memory of its own"
    assert device_of(ON_CPU) == "cpu"


def test_the_cpu_has_no_memory_of_its_own() -> None:
    assert device_of(ON_CPU).free_bytes() is None


def test_laying_out_takes_no_memory() -> None:
    context = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})[0])
    tensors = [lib.ggml_new_tensor_1d(context, lib.GGML_TYPE_F32, 1 << 40) for _ in range(2)]
    buffer = device_of(ON_CPU, is_stock=True).place(context, is_dry=True)
    assert lib.ggml_backend_buffer_get_size(buffer) == 0
    assert all(tensor.buffer == buffer and not tensor.data for tensor in tensors)
    lib.ggml_backend_buffer_free(buffer)
    lib.ggml_free(context)
