"""Gemma 1: Llama's attention, GeGLU, the embedding scaled by the square root of its length.

The base of Gemma 2 to 4.
"""

from __future__ import annotations

import math
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.lib import lib


def build(b: Builder, project: Any = llama.plain, has_post_norms: bool = False) -> Any:
    x = lib.ggml_scale(b.context, b.embed(), math.sqrt(b.shape.n_embd))
    for layer in range(b.shape.n_layer):
        p, s = f"blk.{layer}", b.shape
        q, k, v = project(b, b.norm(x, f"{p}.attn_norm"), layer)
        y = b.attention(q, k, v, layer)
        if y is None:
            return None
        y = b.product(b.wanted(y, layer), f"{p}.attn_output", s.n_embd)
        x = b.add(b.norm(y, f"{p}.post_attention_norm") if has_post_norms else y, b.wanted(x, layer))
        y = b.gated(b.norm(x, f"{p}.ffn_norm"), p, lib.ggml_geglu_split)
        x = b.add(b.norm(y, f"{p}.post_ffw_norm") if has_post_norms else y, x)
    return b.logits(x)
