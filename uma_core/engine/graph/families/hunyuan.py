"""Hunyuan (dense): Llama's layers; each head of Q and K has an RMS norm after its position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import Meta, Rules, Shape, Unsupported

ALPHA = "rope.scaling.alpha"  # NTK-aware: a larger base for longer contexts


def adapt(shape: Shape, meta: Meta) -> Shape:
    alpha = meta.real(ALPHA)
    if alpha <= 0.0:
        return shape

    def scaled(dim: int, base: float) -> float:
        if dim <= 2:
            raise Unsupported(f"{ALPHA} of heads of length {dim}")
        return float(base * alpha ** (dim / (dim - 2)))

    layers = tuple(
        replace(layer, rope=layer.rope and layer.rope._replace(base=scaled(layer.dim_k, layer.rope.base)))
        for layer in shape.layers
    )
    return replace(shape, layers=layers)


RULES = Rules(frozenset({ALPHA}), adapt=adapt)


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(_project))


def _project(b: Builder, x: Any, layer: int) -> tuple[Any, Any, Any]:
    q, k, v = llama.plain(b, x, layer)
    return b.norm(q, f"blk.{layer}.attn_q_norm"), b.norm(k, f"blk.{layer}.attn_k_norm"), v
