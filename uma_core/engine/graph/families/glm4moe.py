"""GLM 4.5 to 4.7: Llama's layers with biases; part of a head is rotated, the large model norms Q and K; dense layers
first, then a mixture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama, mixture
from uma_core.engine.graph.shape import Meta, Rules, Shape


def adapt(shape: Shape, meta: Meta) -> Shape:
    return replace(shape, own=mixture.mixture_of(meta, mixture.SIGMOID))


RULES = Rules(mixture.KEYS, adapt=adapt)


def build(b: Builder) -> Any:
    is_normed = b.weights.find("blk.0.attn_q_norm.weight")
    project = llama.normed if is_normed else llama.plain
    return llama.build(b, llama.Parts(project, _feed, ffn_norm="post_attention_norm"))


def _feed(b: Builder, x: Any, layer: int) -> Any:
    return mixture.feed(b, x, layer, b.shape.own)
