"""EXAONE 4: norms only after attention and feed-forward; the 32B has windows in three of four layers, the fourth
does not rotate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import WINDOW_PATTERN, Meta, Rules, Shape, window_of, windowed_by, with_windows

N_LAYER_WINDOWED = 64  # the 32B; llama.cpp goes by it too
KEYS = frozenset({"attention.sliding_window", "rope.freq_base_swa"})


def adapt(shape: Shape, meta: Meta) -> Shape:
    if shape.n_layer != N_LAYER_WINDOWED:
        return shape
    shape = with_windows(shape, window_of(meta, 4096), windowed_by(meta, 4))
    layers = tuple(layer if layer.window else replace(layer, rope=None) for layer in shape.layers)
    return replace(shape, layers=layers)


RULES = Rules(KEYS, frozenset({WINDOW_PATTERN}), adapt)


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(llama.normed, attn_norm="", ffn_norm="", has_post_norms=True))
