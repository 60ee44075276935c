"""MiniMax M2: Llama's layers with experts chosen by sigmoid and bias; norms of all heads of Q and K together, part
of a head rotated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama, mixture
from uma_core.engine.graph.shape import Meta, Rules, Shape


def adapt(shape: Shape, meta: Meta) -> Shape:
    found = mixture.mixture_of(meta, mixture.SIGMOID)
    return replace(shape, own=found._replace(n_dense=0, how=found.how._replace(is_normed=True)))


RULES = Rules(mixture.KEYS - {mixture.SCALE}, adapt=adapt)


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(llama.normed_rows, _feed))


def _feed(b: Builder, x: Any, layer: int) -> Any:
    return mixture.feed(b, x, layer, b.shape.own)
