"""Devices that compute graphs: ggml's CPU backend with our own operations, or any backend with ggml's alone."""

from __future__ import annotations

from typing import Any

from uma_core.config.options import EngineOptions
from uma_core.engine.devices import GPUS
from uma_core.engine.lib import ffi, lib, text
from uma_core.errors import ErrorCode, UmaError


class Device:
    """A device of ggml's registry, which owns it."""

    def __init__(self, handle: Any, is_stock: bool) -> None:
        """`is_stock`: use ggml's operations only, and separate memory that is copied to and from host memory."""
        self.handle = handle
        self.is_stock = is_stock
        self.is_cpu = lib.ggml_backend_dev_type(handle) == lib.GGML_BACKEND_DEVICE_TYPE_CPU
        self.name = (
            "cpu" if self.is_cpu else text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle))).lower()
        )
        self.description = text(lib.ggml_backend_dev_description(handle))
        props = ffi.new("struct ggml_backend_dev_props *")
        lib.ggml_backend_dev_get_props(handle, props)
        # the device computes with a mapped file in place: the CPU, Metal
        self.reads_host = bool(props.caps.buffer_from_host_ptr)
        self.buffer_type = lib.ggml_backend_dev_buffer_type(handle)
        # the memory that the device copies from fastest
        self.host_type = lib.ggml_backend_dev_host_buffer_type(handle) or lib.ggml_backend_cpu_buffer_type()

    def free_bytes(self) -> int | None:
        """Free bytes of the device's own memory; None: it shares the machine's."""
        if self.reads_host or lib.ggml_backend_dev_type(self.handle) != lib.GGML_BACKEND_DEVICE_TYPE_GPU:
            return None
        sizes = ffi.new("size_t[2]")
        lib.ggml_backend_dev_memory(self.handle, sizes, sizes + 1)
        return int(sizes[0])

    def new_backend(self, n_threads: int) -> Any:
        """Make a backend (a stream of computations), which the caller frees. Raises: INSUFFICIENT_MEMORY."""
        backend = lib.ggml_backend_dev_init(self.handle, ffi.NULL)
        if not backend:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"{self.description} cannot be used")
        if self.is_cpu:
            lib.ggml_backend_cpu_set_n_threads(backend, n_threads)
        return backend

    def buffer_over(self, base: Any, size: int, longest: int) -> Any:
        """Make a buffer over host memory from `base` on; `longest`: bytes of its longest tensor. The caller frees it.

        Raises: INSUFFICIENT_MEMORY.
        """
        buffer = lib.ggml_backend_dev_buffer_from_host_ptr(self.handle, base, size, longest)
        if not buffer:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"{self.description} cannot read the mapped file")
        return buffer

    def place(self, context: Any, is_dry: bool) -> Any:
        """Make a buffer with memory for all tensors of `context`, which the caller frees. `is_dry`: an empty one, for
        graphs that are only laid out.

        Raises: INSUFFICIENT_MEMORY.
        """
        if not is_dry:
            buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(context, self.buffer_type)
            if not buffer:
                raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"{self.description} has no memory for the model")
            return buffer
        buffer = lib.ggml_backend_buft_alloc_buffer(self.buffer_type, 0)
        if not buffer:
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, f"no memory for a buffer of {self.description}")
        tensor = lib.ggml_get_first_tensor(context)
        while tensor:
            tensor.buffer = buffer
            tensor = lib.ggml_get_next_tensor(context, tensor)
        return buffer

    def missing_for(self, graph: Any) -> str:
        """The first operation of `graph` that the device does not compute, or ""."""
        for i in range(lib.ggml_graph_n_nodes(graph)):
            node = lib.ggml_graph_node(graph, i)
            if not lib.ggml_backend_dev_supports_op(self.handle, node):
                kinds = " x ".join(text(lib.ggml_type_name(source.type)) for source in node.src if source)
                return f"{text(lib.ggml_op_desc(node))} of {kinds} on {self.description}"
        return ""


def tensor_context(n: int) -> Any:
    """Make a ggml_context for n tensors without their data, which the caller frees. Raises: INSUFFICIENT_MEMORY."""
    size = max(1, n) * lib.ggml_tensor_overhead()
    context = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": size, "no_alloc": True})[0])
    if not context:
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for the model's tensors")
    return context


def device_of(options: EngineOptions, is_stock: bool = False) -> Device:
    """The first GPU if the options want layers on a GPU (one in the processor only if there is no other); else the
    CPU, with our operations unless `is_stock`.
    """
    gpus = [gpu for kind in GPUS if (gpu := lib.ggml_backend_dev_by_type(kind))]
    if gpus and options.n_gpu_layers:
        return Device(gpus[0], True)
    return Device(lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU), is_stock)
