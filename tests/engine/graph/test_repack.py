"""Pieces of matrices that are read and laid out one by one."""

from __future__ import annotations

import math

import pytest

from uma_core.engine.graph.repack import PIECE_BYTES, ROWS, pieces
from uma_core.engine.header import TensorPlace

MIB = 1 << 20


def place(row_bytes: int, n_rows: int, n_matrices: int = 1) -> TensorPlace:
    ne = (row_bytes // 34 * 32, n_rows, n_matrices, 1)
    return TensorPlace("blk.0.ffn_up.weight", 8, ne, 0, row_bytes * n_rows * n_matrices)


CASES = [
    (34, 64, 1),
    (4352, 4096, 1),  # 17 MiB
    (4352, 4097, 1),  # its last piece is a single row
    (4352, 448, 7),  # almost a piece each
    (4352, 1024, 2),  # two pieces and a bit
    (4352, 128, 60),  # several in a piece
    (4352, 2048, 3),
    (MIB, 130, 2),  # a row of half a piece: never less than ROWS rows
    (34, 1, 1),
]


@pytest.mark.parametrize(("row", "n_rows", "n"), CASES)
def test_pieces_cover_a_tensor_and_none_cuts_a_matrix_but_at_panels(row: int, n_rows: int, n: int) -> None:
    matrix, at = row * n_rows, 0
    for piece in pieces(place(row, n_rows, n)):
        assert piece.offset == at and piece.n_bytes > 0
        is_whole = piece.offset % matrix == 0 and piece.n_bytes % matrix == 0
        first, last = piece.offset // matrix, (piece.offset + piece.n_bytes - 1) // matrix
        assert is_whole or first == last, "whole matrices, or a part of one"
        assert piece.offset % matrix % (ROWS * row) == 0, "panels are whole"
        assert piece.n_bytes <= max(PIECE_BYTES, ROWS * row)
        at += piece.n_bytes
    assert at == matrix * n


@pytest.mark.parametrize(("row", "n_rows", "n"), CASES)
def test_pieces_are_not_needlessly_small(row: int, n_rows: int, n: int) -> None:
    n_pieces = len(list(pieces(place(row, n_rows, n))))
    assert n_pieces <= n + 2 * math.ceil(row * n_rows * n / PIECE_BYTES)
