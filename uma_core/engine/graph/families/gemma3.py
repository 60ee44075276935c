"""Gemma 3: Gemma 2's layers without a cap on scores; each head of Q and K has an RMS norm; windowed layers have
positions of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import gemma, llama
from uma_core.engine.graph.families.gemma2 import LISTS, WINDOW_KEYS, scale_of
from uma_core.engine.graph.shape import Meta, Rules, Shape, windowed_by, with_windows

N_LAYER_WIDEST = 62  # the 27B


def adapt(shape: Shape, meta: Meta) -> Shape:
    rope, window = shape.layers[0].rope, meta.number("attention.sliding_window", 0)
    assert rope is not None
    windowed = rope._replace(base=meta.real("rope.freq_base_swa", 10_000.0), scale=1.0)
    if window:
        shape = with_windows(shape, window, windowed_by(meta, 6), windowed)
    return replace(shape, final_softcap=meta.real("final_logit_softcapping"), scale=scale_of(shape, N_LAYER_WIDEST))


RULES = Rules(WINDOW_KEYS, LISTS, adapt)


def build(b: Builder) -> Any:
    return gemma.build(b, llama.normed, has_post_norms=True)
