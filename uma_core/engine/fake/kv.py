"""The FakeEngine's KV memory: the tokens of each sequence, the hash after each, and transfers of them."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from uma_core.engine.fake.text import START, advance
from uma_core.types import AdapterSet

if TYPE_CHECKING:
    from uma_core.engine.fake.engine import FakeEngine

MAGIC = b"FAKEKV01"
SLICE_NS = 200_000  # a transfer looks at the clock this often
TOKEN_BITS = 10  # low bits of an entry hold the token, the bits above them the adapters


def entry_of(token: int, adapters: AdapterSet) -> int:
    """The KV entry of a token, which depends on the adapters. Without adapters it is the token itself."""
    return token | (zlib.crc32(repr(adapters).encode()) & 0xFFFFF) << TOKEN_BITS if adapters else token


class FakeKV:
    """Sequences of entries; one pool of cells, or a stream of cells each."""

    def __init__(self, n_seq_max: int, n_ctx: int, n_ctx_seq: int, is_unified: bool) -> None:
        self._tokens: list[list[int]] = [[] for _ in range(n_seq_max)]
        self._states: list[list[int]] = [[START] for _ in range(n_seq_max)]
        self._limits = n_ctx, n_ctx_seq
        self._is_unified = is_unified

    def n(self, seq: int) -> int:
        return len(self._tokens[seq])

    def tokens(self, seq: int) -> list[int]:
        return self._tokens[seq]

    def append(self, seq: int, token: int) -> int:
        """Add one token; returns the hash of the sequence after it."""
        state = advance(self._states[seq][-1], token)
        self._tokens[seq].append(token)
        self._states[seq].append(state)
        return state

    def peek(self, seq: int, tokens: list[int]) -> int:
        """Hash of the sequence as if `tokens` followed it."""
        state = self._states[seq][-1]
        for token in tokens:
            state = advance(state, token)
        return state

    def truncate(self, seq: int, n: int) -> None:
        del self._tokens[seq][n:]
        del self._states[seq][n + 1 :]

    def has_room(self, wanted: dict[int, int]) -> bool:
        n_ctx, n_ctx_seq = self._limits
        if any(self.n(seq) + k > n_ctx_seq for seq, k in wanted.items()):
            return False
        return not self._is_unified or sum(map(len, self._tokens)) + sum(wanted.values()) <= n_ctx


class FakeTransfer:
    """Takes the time of a copy; `finish` runs once all is moved, `undo` when it is closed early."""

    def __init__(self, engine: FakeEngine, n_bytes: int, finish: Callable[[], None], undo: Callable[[], None]) -> None:
        self.n_bytes = n_bytes
        self._engine = engine
        self._left_ns = engine.cost.copy_ns(n_bytes)
        self._finish = finish
        self._undo = undo
        self._is_open = True

    def step(self, until_ns: int) -> bool:
        while self._left_ns > 0:
            part = min(self._left_ns, SLICE_NS)
            self._engine.elapse(part)
            self._left_ns -= part
            if self._left_ns > 0 and self._engine.clock.now_ns() >= until_ns:
                return False
        if self._is_open:
            self._is_open = False
            self._finish()
        return True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._undo()


class FakeExport(FakeTransfer):
    """`blob` is complete once `step` returned True."""

    def __init__(self, engine: FakeEngine, n_bytes: int, content: bytes) -> None:
        blob = bytearray()
        self.blob: bytearray | memoryview = blob
        super().__init__(engine, n_bytes, lambda: blob.extend(content), lambda: None)


def blob_of(tokens: list[int]) -> bytes:
    return MAGIC + array("i", tokens).tobytes()


def tokens_of_blob(blob: bytes) -> list[int] | None:
    """The tokens, or None if the blob is not one of ours."""
    if blob[: len(MAGIC)] != MAGIC or (len(blob) - len(MAGIC)) % 4:
        return None
    tokens = array("i")
    tokens.frombytes(blob[len(MAGIC) :])
    return tokens.tolist()
