"""Mixtures whose metadata says how experts are chosen: dense layers first, then experts, beside one that every token
uses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from uma_core.engine.graph.builder import Builder, Experts
from uma_core.engine.graph.shape import Meta, Unsupported
from uma_core.engine.lib import lib

SCALE = "expert_weights_scale"  # which llama.cpp does not read in other families
KEYS = frozenset({
    "leading_dense_block_count", "expert_shared_count", "expert_gating_func", "expert_weights_norm",
    "expert_group_count",
    "expert_group_used_count",
    SCALE,
})  # fmt: skip
GATINGS = {1: "softmax", 2: "sigmoid", 3: "chosen"}  # llama.h: llama_expert_gating_func_type
SIGMOID = 2


class Mixture(NamedTuple):
    """How a model's feed-forward blocks choose experts."""

    n_dense: int  # the first layers, which have no experts
    how: Experts


def mixture_of(meta: Meta, usual_gating: int) -> Mixture:
    """`usual_gating`: used if the file names none. Raises: Unsupported."""
    gating = meta.number("expert_gating_func", 0) or usual_gating
    if gating not in GATINGS:
        raise Unsupported(f"expert_gating_func of {gating}")
    n_group, n_used = meta.number("expert_group_count", 0), meta.number("expert_group_used_count", 0)
    n_expert = meta.number("expert_count", 0)
    if n_group > 1 and (n_expert % n_group or n_expert // n_group < 2 or not 0 < n_used < n_group):
        raise Unsupported(f"{n_used} of {n_group} groups of {n_expert} experts")
    is_normed = bool(meta.real("expert_weights_norm"))
    how = Experts(GATINGS[gating], n_group=n_group, n_group_used=n_used, is_normed=is_normed)
    return Mixture(meta.number("leading_dense_block_count", 0), how)


def feed(b: Builder, x: Any, layer: int, mixture: Mixture) -> Any:
    """The feed-forward block of one layer."""
    p = f"blk.{layer}"
    if layer < mixture.n_dense:
        return b.gated(x, p, lib.ggml_swiglu_split)
    y = b.experts(x, p, mixture.how)
    is_shared = b.weights.find(f"{p}.ffn_gate_shexp.weight")
    return b.add(y, b.gated(x, p, lib.ggml_swiglu_split, "_shexp")) if is_shared else y
