"""Finds the layout of a loaded model's KV memory and proves it at start. It is never assumed from an architecture's
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from uma_core.engine.api import Batch
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.model import LlamaModel

if TYPE_CHECKING:
    from uma_core.engine.llama.engine import LlamaEngine
    from uma_core.engine.llama.prefill import PrefillSlot

OPEN, DISCOVER = 0, 2
N_PROBE = 40  # tokens of the proof: below every tile size, enough to show a wrong cell
MAX_DEVIATION = 0.05  # of the logits' standard deviation: far above kernel noise, far below a wrong cell


class HasGate(Protocol):
    handle: Any
    gate: Any
    memory: Any
    n_batch: int


def _decode(context: HasGate, tokens: list[int]) -> None:
    batch = ffi.new("llama_token[]", tokens)
    lib.llama_decode(context.handle, lib.llama_batch_get_one(batch, len(tokens)))
    lib.llama_synchronize(context.handle)
    lib.llama_memory_clear(context.memory, True)


def warm_up(context: HasGate) -> None:
    """Compute once at start: the first calls pay for page faults, kernel compilation and thread start."""
    _decode(context, [0])
    _decode(context, [0] * min(4, context.n_batch))


def discover(context: HasGate, model: LlamaModel) -> list[str]:
    """Fill the gate's table of K and V tensors. Returns why direct KV copies are off; empty when they may be on."""
    gate = context.gate
    gate.mode = DISCOVER
    _decode(context, [0])
    gate.mode = OPEN
    n_layer = int(lib.llama_model_n_layer(model.handle))
    gate.n_layer = n_layer
    if model.is_recurrent:
        return ["recurrent memory: prompts are read in sized chunks, prefixes cannot be shared"]
    if gate.is_foreign or int(lib.llama_model_n_swa(model.handle)) > 0:
        return ["sliding-window or transposed KV: prompts are read in sized chunks"]
    if any(not gate.k[i] or not gate.v[i] for i in range(n_layer)):
        return ["layers without K and V of their own: prompts are read in sized chunks"]
    return []


def proves_direct_kv(engine: LlamaEngine) -> bool:
    """Read a prompt in a slot, hand it over, roll back, read more, and let both caches predict the next token.

    The same one-row step over the same positions must give the same logits. A cell in a wrong place would change them
    by as much as their own size.
    """
    decoder, slot = engine.decoder, engine.prefill_slots[0]
    assert decoder is not None
    tokens = np.random.default_rng(7).integers(0, min(engine.model.n_vocab, 1000), 3 * N_PROBE).astype(np.int32)
    seq_id = int(lib.llama_n_seq_max(decoder.handle)) - 1
    try:
        for p0 in (0, N_PROBE // 2):
            if p0 and not decoder.kv_truncate(seq_id, p0):
                return False
            slot.warm_seq = -1
            slot.take(seq_id, decoder, engine.n_ctx_seq, p0)
            _read(slot, tokens[p0 : p0 + N_PROBE])
            engine.publish_kv(seq_id).step(2**62)
        _read(slot, tokens[-1:])
        there = slot.logits().copy()
        batch = Batch(1)
        batch.add(int(tokens[-1]), decoder.kv_len(seq_id), seq_id, True)
        decoder.decode(batch, [None])
        here = decoder.logits(0)
        return bool(np.abs(here - there).max() <= MAX_DEVIATION * max(float(there.std()), 1e-6))
    finally:
        slot.drop()
        decoder.kv_truncate(seq_id, 0)


def _read(slot: PrefillSlot, tokens: np.ndarray) -> None:
    for at in range(0, len(tokens), slot.n_batch):
        slot.start(tokens[at : at + slot.n_batch], True)
        slot.run(2**62, 2**40, 0)
