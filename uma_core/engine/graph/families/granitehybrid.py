"""Granite 4 H: Mamba 2 in most layers, attention in some; the rest is Granite's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import granite
from uma_core.engine.graph.shape import Meta, Rules, Shape, State, Unsupported, recurrent
from uma_core.engine.lib import lib

KEYS = granite.KEYS | {
    f"ssm.{key}" for key in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
}


def adapt(shape: Shape, meta: Meta) -> Shape:
    n_inner, n_head, n_group, dim = (
        meta.number(f"ssm.{key}") for key in ("inner_size", "time_step_rank", "group_count", "state_size")
    )
    if not n_head or n_inner % n_head or not n_group or n_inner % n_group:
        raise Unsupported(f"{n_head} heads and {n_group} groups of {n_inner}")
    n_channels = n_inner + 2 * n_group * dim
    state = State(meta.number("ssm.conv_kernel") - 1, n_channels, n_head, n_group, dim, n_inner // n_head)
    has_rope = meta.text("rope.scaling.finetuned", "True") != "False"  # what the files use the key for
    layers = tuple(
        replace(layer, rope=layer.rope if has_rope else None) if layer.n_head_kv else recurrent(state)
        for layer in shape.layers
    )
    if all(layer.state for layer in layers):
        raise Unsupported("a model without attention")
    return granite.adapt(replace(shape, layers=layers), meta)


RULES = Rules(KEYS, adapt=adapt)


def build(b: Builder) -> Any:
    s = b.shape
    x = b.scale(b.embed(), s.embedding_scale)
    for layer in range(s.n_layer):
        p = f"blk.{layer}"
        mix = _mamba if b.layer(layer).state else _attention
        y = mix(b, b.norm(x, f"{p}.attn_norm"), layer)
        if y is None:
            return None
        x = b.add(b.scale(y, s.residual_scale), b.wanted(x, layer))
        y = granite.feed(b, b.norm(x, f"{p}.ffn_norm"), layer)
        x = b.add(b.scale(y, s.residual_scale), x)
    return b.logits(x)


def _attention(b: Builder, x: Any, layer: int) -> Any:
    q, k, v = b.qkv(x, layer)
    y = b.attention(b.rope(q, layer), b.rope(k, layer), v, layer)
    return None if y is None else b.product(b.wanted(y, layer), f"blk.{layer}.attn_output", b.shape.n_embd)


def _mamba(b: Builder, x: Any, layer: int) -> Any:
    p, context, state, recurrence = f"blk.{layer}", b.context, b.layer(layer).state, b.recurrence
    assert state is not None and recurrence is not None
    n, n_group, dim, width = state.n_head, state.n_head_k, state.dim_v, state.n_head * state.dim_v
    whole = b.product(x, f"{p}.ssm_in", width + state.n_channels + n)
    z, mixed, step = (
        lib.ggml_view_2d(context, whole, size, b.n, whole.nb[1], first * whole.nb[0])
        for size, first in ((width, 0), (state.n_channels, width), (n, width + state.n_channels))
    )
    mixed = recurrence.convolution(b, mixed, layer, f"{p}.ssm_conv1d.weight")
    if b.weights.find(f"{p}.ssm_conv1d.bias"):
        mixed = b.add(mixed, b.weights.vector(f"{p}.ssm_conv1d.bias", state.n_channels))
    mixed = lib.ggml_silu(context, mixed)
    v, k, q = (
        lib.ggml_view_3d(context, mixed, size, heads, b.n, size * mixed.nb[0], mixed.nb[1], first * mixed.nb[0])
        for size, heads, first in (
            (dim, n, 0), (state.dim_k, n_group, width), (state.dim_k, n_group, width + n_group * state.dim_k)
        )
    )  # fmt: skip
    step = lib.ggml_add(context, lib.ggml_cont(context, step), b.weights.vector(f"{p}.ssm_dt.bias", n))
    step = lib.ggml_softplus(context, step)
    rates = lib.ggml_reshape_1d(context, b.weights.matrix(f"{p}.ssm_a", 1, n), n)
    decay = lib.ggml_exp(context, lib.ggml_mul(context, step, rates))
    added = lib.ggml_mul(context, v, lib.ggml_reshape_3d(context, step, 1, n, b.n))
    y = recurrence.recur(b, [q, k, added, decay], layer)
    if b.is_last(layer) and not b.n_out:
        return None
    y = b.add(y, lib.ggml_mul(context, v, b.weights.matrix(f"{p}.ssm_d", 1, n)))
    y = lib.ggml_swiglu_split(context, lib.ggml_cont(context, z), lib.ggml_reshape_2d(context, y, width, b.n))
    y = lib.ggml_rms_norm(context, lib.ggml_reshape_3d(context, y, width // n_group, n_group, b.n), b.shape.eps)
    y = lib.ggml_mul(context, y, b.weights.matrix(f"{p}.ssm_norm.weight", width // n_group, n_group))
    y = b.wanted(lib.ggml_reshape_2d(context, y, width, b.n), layer)
    return b.product(y, f"{p}.ssm_out", b.shape.n_embd)
