"""Weights on a device: copied there from the file, piece by piece."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from uma_core.engine.api import Progress
from uma_core.engine.graph.device import Device
from uma_core.engine.graph.joined import Joined, Part
from uma_core.engine.graph.mapped import READ_BYTES, check_whole, report
from uma_core.engine.graph.weights import Weights
from uma_core.engine.header import Header
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Uploaded(Weights):
    """Owns the device's buffers. Matrices with the same input are joined if their types allow it."""

    source = "copied"

    def __init__(self, header: Header, device: Device, progress: Progress | None, is_dry: bool) -> None:
        """`is_dry`: read nothing, for graphs that are only laid out.

        Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY.
        """
        super().__init__(header)
        self.n_bytes = sum(place.n_bytes for place in header.tensors.values())
        check_whole(header)
        self._joined = Joined(header)
        self._buffers: list[Any] = []
        staging = None
        try:
            for context in (self._joined.context, *header.contexts):  # wholes before their parts
                if lib.ggml_get_first_tensor(context):
                    self._buffers.append(device.place(context, is_dry))
            if is_dry:
                return
            for buffer in self._buffers:
                lib.ggml_backend_buffer_set_usage(buffer, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
            staging = lib.ggml_backend_buft_alloc_buffer(device.host_type, READ_BYTES)
            if not staging:
                raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory to copy weights from")
            self._fill(header, ffi.buffer(lib.ggml_backend_buffer_get_base(staging), READ_BYTES), progress)
        except BaseException:
            self.close()
            raise
        finally:
            if staging:
                lib.ggml_backend_buffer_free(staging)

    def _fill(self, header: Header, staging: ffi.buffer, progress: Progress | None) -> None:
        view, n_done = memoryview(staging), 0
        with ExitStack() as stack:
            files = [stack.enter_context(open(path, "rb", buffering=0)) for path in header.paths]
            for place in header.tensors.values():
                tensor, file = header.tensor(place.name), files[place.file]
                file.seek(place.offset)
                at = 0
                while at < place.n_bytes:
                    n = file.readinto(view[: min(READ_BYTES, place.n_bytes - at)])
                    if not n:
                        raise UmaError(
                            ErrorCode.MODEL_LOAD_FAILED,
                            f"{header.paths[place.file]}: the file got shorter",
                            path=header.path,
                        )
                    lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(staging), at, n)
                    at += n
                n_done += place.n_bytes
                report(header.path, progress, n_done / self.n_bytes)

    def part(self, name: str) -> Part | None:
        return self._joined.parts.get(name)

    def close(self) -> None:
        while self._buffers:
            lib.ggml_backend_buffer_free(self._buffers.pop())
        self._joined.close()
