"""Gemma 1: Llama's attention, GeGLU, the embedding scaled by the square root of its length. The base of Gemma 2 and 3."""

from __future__ import annotations

import math
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families.llama import Query
from uma_core.engine.lib import lib


def build(b: Builder, project: Query | None = None, has_post_norms: bool = False) -> Any:
    project = project or Builder.heads
    x = lib.ggml_scale(b.context, b.embed(), math.sqrt(b.shape.n_embd))
    for layer in range(b.shape.n_layer):
        p, s = f"blk.{layer}", b.shape
        normed = b.norm(x, f"{p}.attn_norm")
        q, k = (b.rope(project(b, normed, f"{p}.attn_{m}", n), layer) for m, n in (("q", s.n_head), ("k", s.n_head_kv)))
        y = b.attention(q, k, b.heads(normed, f"{p}.attn_v", s.n_head_kv), layer)
        if y is None:
            return None
        y = b.product(b.wanted(y, layer), f"{p}.attn_output", s.n_embd)
        x = b.add(b.norm(y, f"{p}.post_attention_norm") if has_post_norms else y, b.wanted(x, layer))
        y = b.gated(b.norm(x, f"{p}.ffn_norm"), p, lib.ggml_geglu_split)
        x = b.add(b.norm(y, f"{p}.post_ffw_norm") if has_post_norms else y, x)
    return b.logits(x)
