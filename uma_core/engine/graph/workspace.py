"""Memory for the data of a graph's nodes, and for the host's side of its inputs and logits."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.device import Device
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError

ALIGNMENT = 64


def new_allocator(device: Device) -> Any:
    """Make a ggml_gallocr, which the caller frees. Raises: INSUFFICIENT_MEMORY."""
    allocator = lib.ggml_gallocr_new(device.buffer_type)
    if not allocator:
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory to lay out a graph")
    return allocator


class Workspace:
    """Grows to the size of the largest graph.

    Graphs that keep nothing in it between computations may share it, because one at a time is computed. When `n_moves`
    counts up, graphs that were placed before have lost their memory.
    """

    def __init__(self, device: Device) -> None:
        """Raises: INSUFFICIENT_MEMORY."""
        self._device = device
        self._allocator = new_allocator(device)
        self.n_moves = 0
        self._host: Any = None
        self._n_host = 0

    @property
    def is_staged(self) -> bool:
        """Whether inputs and logits are copied between host and device."""
        return self._device.is_stock

    def place(self, graph: Any) -> None:
        """Give every node of `graph` its memory. Raises: INSUFFICIENT_MEMORY."""
        if not self._allocator:
            self._allocator = new_allocator(self._device)
        n_before = self._n_data
        if not lib.ggml_gallocr_alloc_graph(self._allocator, graph):
            # the allocator has noted the new layout but has no memory for it: next time it would place nodes nowhere
            self._free_allocator()
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a graph's data")
        self.n_moves += self._n_data > n_before

    def addresses(self, tensors: list[Any]) -> list[Any]:
        """Addresses at which the host writes or reads placed tensors; NULL for None. Raises: INSUFFICIENT_MEMORY."""
        if not self.is_staged:
            return [ffi.NULL if tensor is None else lib.ggml_get_data(tensor) for tensor in tensors]
        at = self._host_bytes(staged_bytes(tensors))
        out = []
        for tensor in tensors:
            out.append(ffi.NULL if tensor is None else at)
            at += staged_bytes([tensor])
        return out

    def _host_bytes(self, n: int) -> Any:
        if n > self._n_host:
            self._free_host()
            self._host = lib.ggml_backend_buft_alloc_buffer(self._device.host_type, n)
            if not self._host:
                raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory for a graph's inputs")
            self._n_host = n
        return ffi.cast("char *", lib.ggml_backend_buffer_get_base(self._host))

    def _free_host(self) -> None:
        if self._host:
            lib.ggml_backend_buffer_free(self._host)
        self._host, self._n_host = None, 0

    @property
    def _n_data(self) -> int:
        return int(lib.ggml_gallocr_get_buffer_size(self._allocator, 0)) if self._allocator else 0

    @property
    def n_bytes(self) -> int:
        return self._n_data + self._n_host

    def _free_allocator(self) -> None:
        if self._allocator:
            lib.ggml_gallocr_free(self._allocator)
            self._allocator = None
            self.n_moves += 1

    def close(self) -> None:
        self._free_allocator()
        self._free_host()


def staged_bytes(tensors: list[Any]) -> int:
    """Bytes of the host's side of these tensors."""
    return sum(-(-lib.ggml_nbytes(tensor) // ALIGNMENT) * ALIGNMENT for tensor in tensors if tensor is not None)
