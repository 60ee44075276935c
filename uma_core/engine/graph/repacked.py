"""Matrices, also those of experts, laid out in the order in which our products read them, in large pages of memory of
their own.

Rules: only a product may read a repacked matrix; rows of the embedding are looked up in the file's layout.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.engine.graph.device import tensor_context
from uma_core.engine.header import Header
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError

EMBEDDING = "token_embd.weight"
LOOKED_UP = "per_layer_token_embd.weight"  # only its rows are looked up


def repackable(header: Header) -> dict[str, int]:
    """Tensors that products read and our kernels repack on this processor, with their bytes when repacked."""
    sizes = {name: int(lib.uma_accel_repacked_bytes(header.tensor(name))) for name in header.tensors}
    is_tied = "output.weight" not in header.tensors
    return {name: size for name, size in sizes.items() if size and name != LOOKED_UP and (name != EMBEDDING or is_tied)}


def bytes_with(header: Header, sizes: dict[str, int]) -> int:
    """Bytes of all weights when these are repacked; a tied embedding is in memory twice."""
    return sum(sizes.values()) + sum(
        place.n_bytes for name, place in header.tensors.items() if name not in sizes or name == EMBEDDING
    )


class Place(NamedTuple):
    """Where a repacked tensor lies in the memory."""

    name: str
    type: int
    n_in: int
    n_out: int
    n: int  # number of matrices
    offset: int


class Repacked:
    """Owns the memory of repacked tensors, which `set` fills.

    Call `close` only after every graph that reads them is gone.
    """

    def __init__(self, header: Header, names: list[str]) -> None:
        """Raises: INSUFFICIENT_MEMORY."""
        self._buffer = None
        self._context = tensor_context(len(names))
        sources = {name: header.tensor(name) for name in names}
        self.tensors = {
            name: lib.ggml_new_tensor_3d(self._context, t.type, t.ne[0], t.ne[1], t.ne[2])
            for name, t in sources.items()
        }
        self._buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(self._context, lib.uma_accel_repacked_type())
        if not self._buffer:
            lib.ggml_free(self._context)
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory to repack the weights in")
        lib.ggml_backend_buffer_set_usage(self._buffer, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)

    def set(self, name: str, offset: int, data: memoryview) -> None:
        """Repack rows of a tensor; `data` has them in the file's layout, from byte `offset` of the tensor on.

        They begin and end at a multiple of 64 rows of a matrix, or end with one. Different threads may repack
        different rows.
        """
        lib.ggml_backend_tensor_set(self.tensors[name], ffi.from_buffer(data), offset, len(data))

    def view(self) -> memoryview:
        """The memory of all tensors, until `close`. Bytes between them have no meaning."""
        size = int(lib.ggml_backend_buffer_get_size(self._buffer))
        return memoryview(ffi.buffer(lib.ggml_backend_buffer_get_base(self._buffer), size))

    def places(self) -> list[Place]:
        base = ffi.cast("char *", lib.ggml_backend_buffer_get_base(self._buffer))
        return [
            Place(name, int(t.type), int(t.ne[0]), int(t.ne[1]), int(t.ne[2]), int(ffi.cast("char *", t.data) - base))
            for name, t in self.tensors.items()
        ]

    def close(self) -> None:
        if self._buffer:
            lib.ggml_backend_buffer_free(self._buffer)
            lib.ggml_free(self._context)
            self._buffer = None
