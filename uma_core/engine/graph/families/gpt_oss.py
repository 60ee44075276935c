"""gpt-oss: every other layer has a window, every head a sink; biases everywhere; experts with OpenAI's clamped
SwiGLU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder, Experts
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import (
    WINDOW_PATTERN,
    YARN_UNUSED,
    Meta,
    Rules,
    Shape,
    trained_factor,
    window_of,
    windowed_by,
    with_windows,
)
from uma_core.engine.lib import lib

ALPHA, LIMIT = 1.702, 7.0  # of its SwiGLU; constants of the model, which its files do not name


def adapt(shape: Shape, meta: Meta) -> Shape:
    rope = shape.layers[0].rope
    assert rope is not None
    windowed = rope._replace(base=meta.real("rope.freq_base_swa", rope.base), scale=1.0 / trained_factor(meta))
    shape = with_windows(shape, window_of(meta), windowed_by(meta, 2), windowed)
    return replace(shape, has_sinks=True, scale=max(1, rope.n) ** -0.5)


RULES = Rules(
    YARN_UNUSED | {"attention.sliding_window", "rope.freq_base_swa"},
    frozenset({WINDOW_PATTERN}),
    adapt,
)


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(feed=_feed, ffn_norm="post_attention_norm"))


def _feed(b: Builder, x: Any, layer: int) -> Any:
    return b.experts(x, f"blk.{layer}", Experts("chosen", is_normed=False, gate=_gate))


def _gate(context: Any, gate: Any, up: Any) -> Any:
    return lib.ggml_swiglu_oai(context, gate, up, ALPHA, LIMIT)
