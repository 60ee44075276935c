"""OLMo 2 and 3: norms only after attention and feed-forward, and of all heads of Q and K together.

OLMo 3 has windows in most layers; those have their positions unscaled.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import WINDOW_PATTERN, YARN_UNUSED, Meta, Rules, Shape, windowed_by, with_windows


def adapt(shape: Shape, meta: Meta) -> Shape:
    window, rope = meta.number("attention.sliding_window", 0), shape.layers[0].rope
    assert rope is not None
    if not window:
        return shape
    # llama.cpp rotates them by the base of the others, whatever rope.freq_base_swa says
    return with_windows(shape, window, windowed_by(meta, 4), rope._replace(scale=1.0, is_scaled=False))


RULES = Rules(YARN_UNUSED | {"attention.sliding_window", "rope.freq_base_swa"}, frozenset({WINDOW_PATTERN}), adapt)


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(llama.normed_rows, attn_norm="", ffn_norm="", has_post_norms=True))
