"""Fills repacked matrices from the model's files. Threads read pieces and lay them out, so that loading is as fast as
the disk.

A piece is read into a small buffer, not mapped: repacked weights are then in memory only once, and page faults would
take longer than a copy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from uma_core.engine.graph.parallel import in_parallel, read_into, will_need
from uma_core.engine.graph.repacked import Repacked
from uma_core.engine.header import Header, TensorPlace
from uma_core.errors import ErrorCode, UmaError

PIECE_BYTES = 2 << 20  # a piece stays in a core's caches from the read until it is laid out
ROWS = 64  # a piece begins at a multiple of this, which is a multiple of every instruction set's panel


class Piece(NamedTuple):
    """Some rows of one tensor, or some whole matrices of it."""

    place: TensorPlace
    offset: int  # offset from the beginning of the tensor
    n_bytes: int


def pieces(place: TensorPlace) -> Iterator[Piece]:
    """Yield pieces in order, without gaps. A piece has whole matrices, or lies within one."""
    n_matrices = place.ne[2] * place.ne[3]
    matrix = place.n_bytes // n_matrices
    if 2 * matrix <= PIECE_BYTES:
        step = PIECE_BYTES // matrix * matrix
        for offset in range(0, place.n_bytes, step):
            yield Piece(place, offset, min(step, place.n_bytes - offset))
        return
    row = matrix // place.ne[1]
    step = max(1, PIECE_BYTES // (row * ROWS)) * ROWS * row
    for first in range(0, place.n_bytes, matrix):
        for offset in range(0, matrix, step):
            yield Piece(place, first + offset, min(step, matrix - offset))


def repack(header: Header, repacked: Repacked, n_threads: int, done: Callable[[int], None]) -> None:
    """Read and repack every matrix of `repacked`. Blocks. `done` gets the number of bytes that were read; it may
    raise.

    Raises: MODEL_LOAD_FAILED.
    """
    files = _Files(header)
    try:
        in_parallel(lambda piece: _place(files, repacked, piece), files.pieces(repacked), n_threads, done)
    finally:
        files.close()


def _place(files: _Files, repacked: Repacked, piece: Piece) -> int:
    repacked.set(piece.place.name, piece.offset, files.read(piece))
    return piece.n_bytes


class _Files:
    """The model's files, open, and a buffer for each thread that reads from them."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._buffers = threading.local()
        self._fds: list[int] = []
        try:
            for path in header.paths:
                self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self.close()
            raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {error.strerror}", path=header.path) from error

    def pieces(self, repacked: Repacked) -> Iterator[Piece]:
        """Yield pieces. Drawing one asks the disk for it."""
        for name in repacked.tensors:
            for piece in pieces(self._header.tensors[name]):
                will_need(self._fds[piece.place.file], piece.place.offset + piece.offset, piece.n_bytes)
                yield piece

    def read(self, piece: Piece) -> memoryview:
        """The piece's bytes, valid until this thread reads again."""
        buffer = getattr(self._buffers, "bytes", b"")
        if len(buffer) < piece.n_bytes:
            buffer = self._buffers.bytes = bytearray(piece.n_bytes)
        view, path = memoryview(buffer)[: piece.n_bytes], self._header.paths[piece.place.file]
        try:
            is_whole = read_into(self._fds[piece.place.file], view, piece.place.offset + piece.offset)
        except OSError as error:
            raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {error.strerror}", path=self._header.path) from error
        if not is_whole:
            raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: the file got shorter", path=self._header.path)
        return view

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
