"""Granite 3 and 4 without recurrent layers, dense or with experts: Llama's layers; embedding, residuals, scores and
logits have scales.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import Meta, Rules, Shape, Unsupported
from uma_core.engine.lib import lib

KEYS = frozenset(
    {"logit_scale", "residual_scale", "embedding_scale", "attention.scale", "expert_shared_feed_forward_length"}
)


def adapt(shape: Shape, meta: Meta) -> Shape:
    logits = meta.real("logit_scale")
    if not logits:
        raise Unsupported("a file without logit_scale")
    # dense files use this key to say that they have no rope
    if shape.arch == "granite" and meta.text("rope.scaling.finetuned", "True") == "False":
        shape = replace(shape, layers=tuple(replace(layer, rope=None) for layer in shape.layers))
    return replace(
        shape,
        logit_scale=1.0 / logits,
        residual_scale=meta.real("residual_scale") or 1.0,
        embedding_scale=meta.real("embedding_scale") or 1.0,
        scale=meta.real("attention.scale") or shape.scale,
    )


RULES = Rules(KEYS, adapt=adapt)


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(feed=feed))


def feed(b: Builder, x: Any, layer: int) -> Any:
    y, p = llama.feed_forward(b, x, layer), f"blk.{layer}"
    is_shared = b.weights.find(f"{p}.ffn_gate_shexp.weight")
    return b.add(y, b.gated(x, p, lib.ggml_swiglu_split, "_shexp")) if is_shared else y
