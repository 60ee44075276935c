"""Qwen2 and 2.5: Llama's layers; Q, K and V have biases, which `Builder.product` adds if the file has them.

qwen2moe (Qwen1.5): experts whose weights are not scaled to a sum, and a shared expert that every token uses, weighted
by a gate of its own.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder, Experts
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import Rules
from uma_core.engine.lib import lib

MOE_RULES = Rules(frozenset({"expert_shared_feed_forward_length"}))


def build(b: Builder) -> Any:
    return llama.build(b)


def build_moe(b: Builder) -> Any:
    return llama.build(b, llama.Parts(feed=_feed))


def _feed(b: Builder, x: Any, layer: int) -> Any:
    p = f"blk.{layer}"
    return b.add(b.experts(x, p, Experts(is_normed=False)), shared(b, x, p))


def shared(b: Builder, x: Any, p: str) -> Any:
    """The expert that every token uses, weighted by its gate."""
    gate = lib.ggml_sigmoid(b.context, b.product(x, f"{p}.ffn_gate_inp_shexp", 1))
    return lib.ggml_mul(b.context, b.gated(x, p, lib.ggml_swiglu_split, "_shexp"), gate)
