"""Qwen 3.5 and 3.6 (text), dense or with experts: gated delta nets, and full attention whose result has a gate in every
fourth layer.

A delta net's state maps keys to values; each token replaces the state's value for its key, in the degree of beta. The
block for multi-token prediction that a file may hold is not part of this graph (engine/llama/heads.py).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import qwen2
from uma_core.engine.graph.shape import Meta, Rules, Shape, State, Unsupported, recurrent
from uma_core.engine.lib import lib

KEYS = frozenset({
    "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count",
    "full_attention_interval",
    "expert_shared_feed_forward_length",
})  # fmt: skip
LISTS = frozenset({"rope.dimension_sections", "attention.recurrent_layers", "expert_feed_forward_length"})
USUAL_INTERVAL = 4  # layers from one with attention to the next, if the file does not say


def adapt(shape: Shape, meta: Meta) -> Shape:
    state = _state(meta)
    interval = meta.number("full_attention_interval", USUAL_INTERVAL)
    is_recurrent = meta.flags("attention.recurrent_layers") or [
        bool((i + 1) % max(1, interval)) for i in range(meta.n_layer)
    ]
    layers = [recurrent(state) if is_recurrent[i] else shape.layers[i] for i in range(meta.n_layer)]
    if all(layer.state for layer in layers):
        raise Unsupported("a model without attention")
    _check_sections(shape, meta)
    return replace(shape, layers=tuple(layers))


def _state(meta: Meta) -> State:
    n_head, dim, n_head_k = (meta.number(f"ssm.{key}") for key in ("time_step_rank", "state_size", "group_count"))
    if meta.number("ssm.inner_size") != n_head * dim:
        raise Unsupported("a delta net whose keys and values differ in length")
    n_channels = (2 * n_head_k + n_head) * dim
    taps = meta.number("ssm.conv_kernel") - 1
    scale = 1.0 / math.sqrt(max(1, dim))
    return State(taps, n_channels, n_head, n_head_k, dim, dim, is_tiled=True, is_delta=True, scale=scale)


def _check_sections(shape: Shape, meta: Meta) -> None:
    """Text has one position for time, height and width; pairs of a head's elements that follow none of them would
    not be rotated.
    """
    rope = next(layer.rope for layer in shape.layers if layer.rope)
    sections = meta.listed("rope.dimension_sections")
    if len(sections) < 3 or any(pair >= 3 * sections[pair % 3] for pair in range(rope.n // 2)):
        raise Unsupported(f"rotary sections {sections} of {rope.n} elements")


RULES = Rules(KEYS, LISTS, adapt)


def build(b: Builder) -> Any:
    b.rope_mode = lib.GGML_ROPE_TYPE_NEOX  # which the sections come to where all positions are a text's
    x = b.embed()
    for layer in range(b.shape.n_layer):
        p, s = f"blk.{layer}", b.shape
        mix = _delta_net if b.layer(layer).state else _attention
        y = mix(b, b.norm(x, f"{p}.attn_norm"), layer)
        if y is None:
            return None
        x = b.add(y, b.wanted(x, layer))
        y = b.norm(x, f"{p}.post_attention_norm")
        x = b.add(
            b.add(b.experts(y, p), qwen2.shared(b, y, p)) if s.n_expert else b.gated(y, p, lib.ggml_swiglu_split), x
        )
    return b.logits(x)


def _attention(b: Builder, x: Any, layer: int) -> Any:
    p, own, context = f"blk.{layer}", b.layer(layer), b.context
    n, dim = own.n_head, own.dim_k
    both = b.product(x, f"{p}.attn_q", 2 * n * dim)  # each head's Q and its gate
    q, gate = (
        lib.ggml_view_3d(context, both, dim, n, b.n, 2 * dim * both.nb[0], both.nb[1], first * both.nb[0])
        for first in (0, dim)
    )
    k, v = (b.heads(x, f"{p}.attn_{name}", own.n_head_kv, dim) for name in "kv")
    q, k = (b.rope(b.norm(y, f"{p}.attn_{name}_norm"), layer) for name, y in (("q", q), ("k", k)))
    y = b.attention(q, k, v, layer)
    if y is None:
        return None
    gate = lib.ggml_reshape_2d(context, lib.ggml_cont(context, gate), n * dim, b.n)
    y = lib.ggml_mul(context, y, lib.ggml_sigmoid(context, gate))
    return b.product(b.wanted(y, layer), f"{p}.attn_output", b.shape.n_embd)


def _delta_net(b: Builder, x: Any, layer: int) -> Any:
    p, context, state, recurrence = f"blk.{layer}", b.context, b.layer(layer).state, b.recurrence
    assert state is not None and recurrence is not None
    n, n_k, dim = state.n_head, state.n_head_k, state.dim_v
    beta = lib.ggml_sigmoid(context, b.product(x, f"{p}.ssm_beta", n))
    mixed = recurrence.convolution(b, b.product(x, f"{p}.attn_qkv", state.n_channels), layer, f"{p}.ssm_conv1d.weight")
    mixed = lib.ggml_silu(context, mixed)
    q, k, v = (
        lib.ggml_view_3d(context, mixed, dim, heads, b.n, dim * mixed.nb[0], mixed.nb[1], first * dim * mixed.nb[0])
        for heads, first in ((n_k, 0), (n_k, n_k), (n, 2 * n_k))
    )
    y = recurrence.recur(b, [_unit(b, q), _unit(b, k), v, _decay(b, x, layer, n), beta], layer)
    if b.is_last(layer) and not b.n_out:
        return None
    z = lib.ggml_reshape_3d(context, b.product(x, f"{p}.attn_gate", n * dim), dim, n, b.n)
    y = lib.ggml_mul(context, b.norm(y, f"{p}.ssm_norm"), lib.ggml_silu(context, z))
    y = b.wanted(lib.ggml_reshape_2d(context, y, n * dim, b.n), layer)
    return b.product(y, f"{p}.ssm_out", b.shape.n_embd)


def _unit(b: Builder, x: Any) -> Any:
    """Each head at length 1."""
    dim = x.ne[0]
    return lib.ggml_scale(b.context, lib.ggml_rms_norm(b.context, x, b.shape.eps / dim), 1.0 / math.sqrt(dim))


def _decay(b: Builder, x: Any, layer: int, n: int) -> Any:
    """(n, rows): the part of each head's state that stays."""
    p, context = f"blk.{layer}", b.context
    step = lib.ggml_add(context, b.product(x, f"{p}.ssm_alpha", n), b.weights.vector(f"{p}.ssm_dt.bias", n))
    rate = lib.ggml_mul(context, lib.ggml_softplus(context, step), b.weights.vector(f"{p}.ssm_a", n))
    return lib.ggml_exp(context, rate)
