"""Command R, R7B and A: layer norms; attention and feed-forward read the same norm of a layer's input, and both are
added to it.

Command R7B and A (cohere2) have windows in three of four layers; the fourth does not rotate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import WINDOW_PATTERN, Meta, Rules, Shape, window_of, windowed_by, with_windows

KEYS = frozenset({"attention.layer_norm_epsilon", "logit_scale"})


def adapt(shape: Shape, meta: Meta) -> Shape:
    return replace(shape, logit_scale=meta.real("logit_scale") or 1.0)


def adapt2(shape: Shape, meta: Meta) -> Shape:
    shape = with_windows(adapt(shape, meta), window_of(meta), windowed_by(meta, 4))
    layers = tuple(layer if layer.window else replace(layer, rope=None) for layer in shape.layers)
    return replace(shape, layers=layers)


RULES = Rules(KEYS, adapt=adapt, has_layer_norm=True)
RULES2 = Rules(
    KEYS | {"attention.sliding_window", "rope.freq_base_swa"},
    frozenset({WINDOW_PATTERN}),
    adapt2,
    has_layer_norm=True,
)


def build(b: Builder) -> Any:
    x = b.embed()
    for layer in range(b.shape.n_layer):
        p = f"blk.{layer}"
        normed = b.norm(x, f"{p}.attn_norm")
        y = b.attention(*llama.plain(b, normed, layer), layer)
        if y is None:
            return None
        y = b.product(b.wanted(y, layer), f"{p}.attn_output", b.shape.n_embd)
        fed = llama.feed_forward(b, b.wanted(normed, layer), layer)
        x = b.add(b.add(fed, b.wanted(x, layer)), y)
    return b.logits(x)
