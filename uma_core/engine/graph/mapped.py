"""Weights for the CPU, or a device that reads its memory: where the file has them, mapped or read. Matrices may be arranged beside it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

from uma_core.engine.graph.arranged import EMBEDDING, Arranged, arrangeable, bytes_with
from uma_core.engine.graph.device import Device
from uma_core.engine.graph.weights import Weights
from uma_core.engine.header import Header
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError

READ_BYTES = 64 << 20  # between two reports of progress
LOAD_MODES = {"auto": True, "mmap": True, "none": False}  # whether the file is mapped

Progress = Callable[[float], bool]


class Mapped(Weights):
    """Owns the memory and a backend buffer over it."""

    def __init__(self, header: Header, device: Device, modes: tuple[bool, int], progress: Progress | None) -> None:
        """`modes`: whether the file is mapped; how many threads lay out copies for the products, 0: there are none.

        Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY.
        """
        is_mapped, n_arranging = modes
        super().__init__(header)
        sizes = arrangeable(header) if n_arranging else {}
        self.n_bytes = bytes_with(header, sizes)
        self._files: list[_File] = []
        self._arranged: Arranged | None = None
        check_whole(header)
        try:
            for i in range(len(header.paths)):
                self._files.append(_File(header, i, device, is_mapped, None if sizes else progress))
            if sizes:
                self._arrange(header, list(sizes), n_arranging, progress)
        except BaseException:
            self.close()
            raise

    def _arrange(self, header: Header, names: list[str], n_threads: int, progress: Progress | None) -> None:
        self._arranged = Arranged(header, names)
        total, n_done = sum(header.tensors[name].n_bytes for name in names), 0

        def done(name: str) -> None:
            nonlocal n_done
            place = header.tensors[name]
            n_done += place.n_bytes
            if name != EMBEDDING:
                self._files[place.file].forget(place.offset, place.n_bytes)
            report(header.path, progress, n_done / total)

        self._arranged.fill(n_threads, done)

    def _laid_out(self, name: str, matrix: Any) -> Any:
        return self._arranged.tensors.get(name, matrix) if self._arranged else matrix

    def close(self) -> None:
        if self._arranged:
            self._arranged.close()
            self._arranged = None
        while self._files:
            self._files.pop().close()


class _File:
    """One of the model's files in memory, and a backend buffer over it, in which its tensors are."""

    def __init__(self, header: Header, number: int, device: Device, is_mapped: bool, progress: Progress | None) -> None:
        """Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY."""
        path = header.paths[number]
        places = [place for place in header.tensors.values() if place.file == number]
        size = os.path.getsize(path)
        self._buffer = None
        self._memory = _memory_of(path, size, is_mapped, _share_of(progress, number, len(header.paths)))
        self._base = ffi.from_buffer(self._memory)
        if not places:  # the first of several files may hold the metadata alone
            return
        self._buffer = device.buffer_over(self._base, size, max(place.n_bytes for place in places))
        lib.ggml_backend_buffer_set_usage(self._buffer, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        for place in places:
            lib.ggml_backend_tensor_alloc(
                self._buffer, header.tensor(place.name), ffi.cast("char *", self._base) + place.offset
            )

    def forget(self, offset: int, n_bytes: int) -> None:
        """Give the whole pages of a mapped range back; whoever reads them again gets them from the file."""
        begin, end = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE, (offset + n_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED") and begin < end:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def close(self) -> None:
        if self._buffer:
            lib.ggml_backend_buffer_free(self._buffer)
        ffi.release(self._base)
        self._memory.close()


def check_whole(header: Header) -> None:
    """Raises: MODEL_LOAD_FAILED where tensors are beyond their file."""
    sizes = [os.path.getsize(path) for path in header.paths]
    for place in header.tensors.values():
        if place.offset + place.n_bytes > sizes[place.file]:
            raise UmaError(
                ErrorCode.MODEL_LOAD_FAILED, f"{header.paths[place.file]}: the file is cut short", path=header.path
            )


def _share_of(progress: Progress | None, number: int, n: int) -> Progress | None:
    """What one of n files adds to the whole."""
    return None if progress is None else lambda share: progress((number + share) / n)


def _memory_of(path: str, size: int, is_mapped: bool, progress: Progress | None) -> mmap.mmap:
    """The whole file, addressable. Raises: MODEL_LOAD_FAILED when `progress` gives the load up."""
    with open(path, "rb") as file:
        if is_mapped:
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            if hasattr(mmap, "MADV_WILLNEED"):
                memory.madvise(mmap.MADV_WILLNEED)
            report(path, progress, 1.0)
            return memory
        memory = mmap.mmap(-1, size)
        view = memoryview(memory)
        at = 0
        while at < size:
            n = file.readinto(view[at : at + READ_BYTES])
            if not n:
                raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: the file got shorter", path=path)
            at += n
            report(path, progress, at / size)
        view.release()
        return memory


def report(path: str, progress: Progress | None, share: float) -> None:
    if progress is not None and not progress(share):
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: loading was given up", path=path)
