"""Gemma 2: Gemma's layers with norms after attention and feed-forward too; every other layer has a window, scores
and logits soft caps.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import gemma
from uma_core.engine.graph.shape import (
    WINDOW_PATTERN,
    Meta,
    Rules,
    Shape,
    Unsupported,
    trained_factor,
    window_of,
    windowed_by,
    with_windows,
)

WINDOW_KEYS = frozenset({"attention.sliding_window", "rope.freq_base_swa", "final_logit_softcapping"})
LISTS = frozenset({WINDOW_PATTERN})
N_LAYER_WIDEST = 46  # the 27B's scores are scaled by n_embd / n_head


def adapt(shape: Shape, meta: Meta) -> Shape:
    rope = shape.layers[0].rope
    assert rope is not None
    windowed = rope._replace(base=meta.real("rope.freq_base_swa", rope.base), scale=1.0 / trained_factor(meta))
    shape = with_windows(shape, window_of(meta, 4096), windowed_by(meta, 2), windowed)
    if not meta.real("final_logit_softcapping", 30.0):  # llama.cpp divides by it, and every logit is the same
        raise Unsupported("final_logit_softcapping of 0")
    caps = meta.real("attn_logit_softcapping", 50.0), meta.real("final_logit_softcapping", 30.0)
    return replace(shape, softcap=caps[0], final_softcap=caps[1], scale=scale_of(shape, N_LAYER_WIDEST))


def scale_of(shape: Shape, n_layer_widest: int) -> float:
    """Scale of scores, as in llama.cpp: by the length of a head, except in the widest model."""
    is_widest = shape.n_layer == n_layer_widest
    return 1.0 / math.sqrt(shape.n_embd // shape.layers[0].n_head) if is_widest else shape.scale


RULES = Rules(WINDOW_KEYS | {"attn_logit_softcapping"}, LISTS, adapt)


def build(b: Builder) -> Any:
    return gemma.build(b, has_post_norms=True)
