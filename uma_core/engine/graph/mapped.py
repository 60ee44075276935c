"""Weights for the CPU, or for a device that reads the CPU's memory: in the file's layout, mapped or read.

Repacked copies of matrices may lie beside them.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from uma_core.engine.api import Progress
from uma_core.engine.graph.device import Device
from uma_core.engine.graph.repack import repack
from uma_core.engine.graph.repack_cache import RepackCache
from uma_core.engine.graph.repacked import EMBEDDING, Repacked, bytes_with, repackable
from uma_core.engine.graph.weights import Weights
from uma_core.engine.header import Header, TensorPlace
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError

log = logging.getLogger(__name__)

MIB = 1 << 20
READ_BYTES = 64 << 20  # bytes between two reports of progress
MAPPED, READ, REPACKED, KEPT = "mapped", "read", "repacked", "repack cache"  # where weights come from
LOAD_MODES = {"auto": True, "mmap": True, "none": False}  # whether the file is mapped


class Modes(NamedTuple):
    """How weights get into memory."""

    is_mapped: bool  # False: the file is read
    n_repacking: int = 0  # threads that lay out copies for the products; 0: there are none
    cache: RepackCache | None = None  # the file that keeps copies between two starts


class Mapped(Weights):
    """Owns the memory and a backend buffer over it. `source` says, for `status`, how the weights got there."""

    def __init__(self, header: Header, device: Device, modes: Modes, progress: Progress | None) -> None:
        """Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY."""
        super().__init__(header)
        sizes = repackable(header) if modes.n_repacking else {}
        self.n_bytes = bytes_with(header, sizes)
        self.source = MAPPED if modes.is_mapped else READ
        self._files: list[_File] = []
        self._repacked: Repacked | None = None
        self._path = header.path
        check_whole(header)
        try:
            for i in range(len(header.paths)):
                self._files.append(_File(header, i, device, modes.is_mapped, None if sizes else progress))
                self._files[i].will_need(_not_repacked(header, i, sizes))
            if sizes:
                self._repacked = Repacked(header, list(sizes))
                self._repack(header, modes, progress)
        except BaseException:
            self.close()
            raise

    def _repack(self, header: Header, modes: Modes, progress: Progress | None) -> None:
        """Fill the copies from an earlier start's file; else from the model's file, and then keep them in a file."""
        assert self._repacked is not None
        cache, n_threads = modes.cache, modes.n_repacking
        n_kept, begin = len(self._repacked.view()), time.monotonic()
        if cache is not None and cache.read(self._repacked, n_threads, self._counted(n_kept, progress)):
            self.source = KEPT
            _log_speed("read repacked weights", n_kept, begin)
            return
        n_bytes = sum(header.tensors[name].n_bytes for name in self._repacked.tensors)
        done = self._counted(n_bytes + (n_kept if cache is not None else 0), progress)
        repack(header, self._repacked, n_threads, done)
        self.source = REPACKED
        _log_speed("read and repacked weights", n_bytes, begin)
        if cache is not None:
            begin = time.monotonic()
            if cache.write(self._repacked, n_threads, done):
                _log_speed(f"kept the repacked weights in {cache.path}", n_kept, begin)

    def _counted(self, total: int, progress: Progress | None) -> Callable[[int], None]:
        """Return a function that counts bytes and reports their share of `total`."""
        n_done = 0

        def done(n_bytes: int) -> None:
            nonlocal n_done
            n_done += n_bytes
            report(self._path, progress, n_done / total)

        return done

    def _laid_out(self, name: str, matrix: Any) -> Any:
        return self._repacked.tensors.get(name, matrix) if self._repacked else matrix

    def repacked(self) -> memoryview | None:
        return self._repacked.view() if self._repacked else None

    def close(self) -> None:
        if self._repacked:
            self._repacked.close()
            self._repacked = None
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
        self._is_mapped = is_mapped
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

    def will_need(self, places: list[TensorPlace]) -> None:
        """Ask the system to read these tensors of a mapped file ahead."""
        if not self._is_mapped or not hasattr(mmap, "MADV_WILLNEED"):
            return
        for place in places:
            begin = place.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_WILLNEED, begin, place.offset + place.n_bytes - begin)

    def close(self) -> None:
        if self._buffer:
            lib.ggml_backend_buffer_free(self._buffer)
        ffi.release(self._base)
        self._memory.close()


def _not_repacked(header: Header, file: int, sizes: dict[str, int]) -> list[TensorPlace]:
    """Tensors that are read in the file's layout; the rows of a tied embedding are looked up there."""
    places = (place for place in header.tensors.values() if place.file == file)
    return [place for place in places if place.name not in sizes or place.name == EMBEDDING]


def check_whole(header: Header) -> None:
    """Raise MODEL_LOAD_FAILED if tensors lie beyond the end of their file."""
    sizes = [os.path.getsize(path) for path in header.paths]
    for place in header.tensors.values():
        if place.offset + place.n_bytes > sizes[place.file]:
            raise UmaError(
                ErrorCode.MODEL_LOAD_FAILED, f"{header.paths[place.file]}: the file is cut short", path=header.path
            )


def _share_of(progress: Progress | None, number: int, n: int) -> Progress | None:
    """Scale the progress of one of n files to the whole."""
    return None if progress is None else lambda share: progress((number + share) / n)


def _memory_of(path: str, size: int, is_mapped: bool, progress: Progress | None) -> mmap.mmap:
    """Return the whole file, addressable. Raises: MODEL_LOAD_FAILED, also if `progress` cancels the load."""
    with open(path, "rb") as file:
        if is_mapped:
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
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


def _log_speed(what: str, n_bytes: int, begin: float) -> None:
    seconds = max(1e-9, time.monotonic() - begin)
    log.info("%s: %.0f MiB in %.1f s, %.0f MiB/s", what, n_bytes / MIB, seconds, n_bytes / MIB / seconds)


def report(path: str, progress: Progress | None, share: float) -> None:
    if progress is not None and not progress(share):
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: loading was cancelled", path=path)
