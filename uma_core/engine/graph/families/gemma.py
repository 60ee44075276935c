"""Gemma 1: Llama's attention, GeGLU, the embedding scaled by the square root of its length. Later Gemmas have windows: not here."""

from __future__ import annotations

import math
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.lib import lib


def build(b: Builder) -> Any:
    x = lib.ggml_scale(b.context, b.embed(), math.sqrt(b.shape.n_embd))
    for layer in range(b.shape.n_layer):
        p, s = f"blk.{layer}", b.shape
        normed = b.norm(x, f"{p}.attn_norm")
        q, k = (b.rope(b.heads(normed, f"{p}.attn_{m}", n)) for m, n in (("q", s.n_head), ("k", s.n_head_kv)))
        y = b.attention(q, k, b.heads(normed, f"{p}.attn_v", s.n_head_kv), layer)
        if y is None:
            return None
        x = b.add(b.product(b.wanted(y, layer), f"{p}.attn_output", s.n_embd), b.wanted(x, layer))
        x = b.add(b.gated(b.norm(x, f"{p}.ffn_norm"), p, lib.ggml_geglu_split), x)
    return b.logits(x)
