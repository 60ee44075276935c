"""Llama and Mistral: pre-norm, grouped-query attention, SwiGLU or experts. The base of the Qwen families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.lib import lib

Query = Callable[[Builder, Any, str, int], Any]  # (builder, normed input, tensor name, heads) -> (dim, heads, n) before positions


def build(b: Builder, project: Query | None = None) -> Any:
    project = project or Builder.heads
    x = b.embed()
    for layer in range(b.shape.n_layer):
        x = block(b, x, layer, project)
        if x is None:
            return None
    return b.logits(x)


def block(b: Builder, x: Any, layer: int, project: Query) -> Any:
    """One layer; None where only its K and V were wanted."""
    p, s = f"blk.{layer}", b.shape
    normed = b.norm(x, f"{p}.attn_norm")
    q = b.rope(project(b, normed, f"{p}.attn_q", s.n_head), layer)
    k = b.rope(project(b, normed, f"{p}.attn_k", s.n_head_kv), layer)
    y = b.attention(q, k, b.heads(normed, f"{p}.attn_v", s.n_head_kv), layer)
    if y is None:
        return None
    x = b.add(b.product(b.wanted(y, layer), f"{p}.attn_output", s.n_embd), b.wanted(x, layer))
    normed = b.norm(x, f"{p}.ffn_norm")
    return b.add(b.experts(normed, p) if s.n_expert else b.gated(normed, p, lib.ggml_swiglu_split), x)
