"""Mistral 3, Ministral 3, Devstral: Llama's layers with YaRN; Q grows with the logarithm of its position, in steps
of the trained context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import YARN_KEYS, Meta, Rules, Shape, Unsupported, with_yarn
from uma_core.engine.lib import lib

TEMPERATURE = "attention.temperature_scale"


def adapt(shape: Shape, meta: Meta) -> Shape:
    factor, n = meta.real(TEMPERATURE), meta.number("rope.scaling.original_context_length", shape.n_ctx_train)
    if factor and not n:
        raise Unsupported(f"{TEMPERATURE} without an original context")
    return replace(with_yarn(shape, meta), temperature=(factor, n))


RULES = Rules(YARN_KEYS | {TEMPERATURE}, adapt=adapt)


def build(b: Builder) -> Any:
    factor, n = b.shape.temperature
    if not factor:
        return llama.build(b)
    growth = growth_of_q(b, factor, n)

    def project(b: Builder, x: Any, layer: int) -> tuple[Any, Any, Any]:
        q, k, v = llama.plain(b, x, layer)
        return lib.ggml_mul(b.context, q, growth), k, v

    return llama.build(b, llama.Parts(project))


def growth_of_q(b: Builder, factor: float, n: int) -> Any:
    """(1, 1, rows): 1 + factor * log(1 + position // n).

    Half a position more keeps the division's rounding away from whole numbers.
    """
    context = b.context
    step = lib.ggml_floor(
        context, lib.ggml_scale_bias(context, lib.ggml_cast(context, b.pos, lib.GGML_TYPE_F32), 1.0 / n, 0.5 / n)
    )
    y = lib.ggml_scale_bias(context, lib.ggml_log(context, lib.ggml_scale_bias(context, step, 1.0, 1.0)), factor, 1.0)
    return lib.ggml_reshape_3d(context, y, 1, 1, b.n)
