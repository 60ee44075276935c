"""Small drivers over the Engine contract, and over the C samplers."""

from __future__ import annotations

from typing import Any

import numpy as np

from uma_core.engine.api import Batch, DecodeStatus, Engine, PrefillStatus, Transfer
from uma_core.engine.lib import ffi, lib

FOREVER = 2**62


def tokens_of(engine: Engine, n: int, seed: int = 0) -> np.ndarray:
    """Return (n,) int32 tokens, none of them a control token."""
    return np.random.default_rng(seed).integers(32, min(engine.info.n_vocab, 200), n).astype(np.int32)


def read(engine: Engine, seq_id: int, tokens: np.ndarray, want: bool = True) -> int:
    """Read a prompt in one of the ways that the engine offers. Return the next token, or -1."""
    if engine.info.capabilities.n_prefill_slots:
        return read_sliced(engine, seq_id, tokens, FOREVER, want)
    return read_plain(engine, seq_id, tokens)


def read_plain(engine: Engine, seq_id: int, tokens: np.ndarray) -> int:
    token = -1
    batch = Batch(engine.info.n_batch)
    for at in range(0, len(tokens), engine.info.n_batch):
        part = tokens[at : at + engine.info.n_batch]
        is_last = at + len(part) == len(tokens)
        batch.clear()
        batch.extend(part, engine.kv_len(seq_id), seq_id, is_last)
        outcome = engine.decode(batch, [None] * batch.n_rows)
        assert outcome.status is DecodeStatus.OK
        token = outcome.tokens[0] if is_last else -1
    return token


def read_sliced(
    engine: Engine, seq_id: int, tokens: np.ndarray, quantum_ns: int, want: bool = True, between=lambda: None
) -> int:  # type: ignore[no-untyped-def]
    token = -1
    n_ubatch = engine.info.n_ubatch
    for at in range(0, len(tokens), n_ubatch):
        part = tokens[at : at + n_ubatch]
        is_last = want and at + len(part) == len(tokens)
        assert engine.prefill_open(seq_id, part, is_last)
        while (
            engine.prefill_run(seq_id, 0 if quantum_ns < FOREVER else FOREVER, min(quantum_ns, FOREVER // 2), 1).status
            is not PrefillStatus.DONE
        ):
            between()
        if is_last:
            token = engine.prefill_sample(seq_id, None)
        finish(engine.publish_kv(seq_id))
    return token


def finish(transfer: Transfer, slice_ns: int = FOREVER) -> None:
    while not transfer.step(slice_ns):
        pass
    transfer.close()


def step(engine: Engine, rows: list[tuple[int, int]]) -> list[int]:
    """Make one decode call of (sequence, token) rows in ascending sequence order."""
    batch = Batch(engine.info.n_batch)
    for seq_id, token in rows:
        batch.add(token, engine.kv_len(seq_id), seq_id, True)
    outcome = engine.decode(batch, [None] * len(rows))
    assert outcome.status is DecodeStatus.OK
    return list(outcome.tokens)


def generate(engine: Engine, seq_id: int, token: int, n: int) -> list[int]:
    out = [token]
    for _ in range(n):
        out += step(engine, [(seq_id, out[-1])])
    return out


def draw(row: np.ndarray, sampler: Any) -> int:
    """Draw from logits that need no engine. `sampler`: the C side's handle; NULL: greedy."""
    return int(lib.uma_sample(ffi.cast("float *", row.ctypes.data), len(row), sampler))
