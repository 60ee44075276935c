"""LFM2: short convolutions between two gates, and full attention in some layers; lfm2moe has experts behind its
first layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama, mixture
from uma_core.engine.graph.shape import Meta, Rules, Shape, State, Unsupported, recurrent
from uma_core.engine.lib import lib

KEYS = frozenset({"shortconv.l_cache"})
MOE_KEYS = frozenset({"leading_dense_block_count", "expert_gating_func"})


def adapt(shape: Shape, meta: Meta) -> Shape:
    state = State(meta.number("shortconv.l_cache") - 1, shape.n_embd)
    layers = tuple(layer if layer.n_head_kv else recurrent(state) for layer in shape.layers)
    if all(layer.state for layer in layers):
        raise Unsupported("a model without attention")
    return replace(shape, layers=layers)


def adapt_moe(shape: Shape, meta: Meta) -> Shape:
    found = mixture.mixture_of(meta, 0)  # every file names its gating
    return replace(adapt(shape, meta), own=found._replace(how=found.how._replace(is_normed=True)))


RULES = Rules(KEYS, adapt=adapt)
MOE_RULES = Rules(KEYS | MOE_KEYS, adapt=adapt_moe)


def build(b: Builder) -> Any:
    x = b.embed()
    for layer in range(b.shape.n_layer):
        p = f"blk.{layer}"
        mix = _convolution if b.layer(layer).state else _attention
        y = mix(b, b.norm(x, f"{p}.attn_norm"), layer)
        if y is None:
            return None
        x = b.add(b.wanted(x, layer), y)
        x = b.add(x, _feed(b, b.norm(x, f"{p}.ffn_norm"), layer))
    return b.logits(x, "token_embd_norm")


def _feed(b: Builder, x: Any, layer: int) -> Any:
    if b.shape.own is None:
        return b.gated(x, f"blk.{layer}", lib.ggml_swiglu_split)
    return mixture.feed(b, x, layer, b.shape.own)


def _attention(b: Builder, x: Any, layer: int) -> Any:
    q, k, v = llama.normed(b, x, layer)
    y = b.attention(q, k, v, layer)
    return None if y is None else b.product(b.wanted(y, layer), f"blk.{layer}.attn_output", b.shape.n_embd)


def _convolution(b: Builder, x: Any, layer: int) -> Any:
    p, n_embd, recurrence = f"blk.{layer}.shortconv", b.shape.n_embd, b.recurrence
    assert recurrence is not None
    gates = b.product(x, f"{p}.in_proj", 3 * n_embd)
    before, behind, x = (
        lib.ggml_view_2d(b.context, gates, n_embd, b.n, gates.nb[1], i * n_embd * gates.nb[0]) for i in range(3)
    )
    y = recurrence.convolution(b, lib.ggml_mul(b.context, before, x), layer, f"{p}.conv.weight")
    if b.is_last(layer) and not b.n_out:
        return None
    return b.product(b.wanted(lib.ggml_mul(b.context, y, behind), layer), f"{p}.out_proj", n_embd)
