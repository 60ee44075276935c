"""Gemma 4: Gemma 3's layers; those that see everything have longer heads. The last layers read K and V of earlier ones.

The small models give each layer an embedding of every token beside the usual one (Gemma 3n's per-layer embeddings); the
mixture has experts beside the feed-forward block of every layer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from uma_core.engine.graph.builder import Builder, Experts
from uma_core.engine.graph.families.gemma2 import LISTS, WINDOW_KEYS
from uma_core.engine.graph.shape import WINDOW_PATTERN, Layer, Meta, Rope, Rules, Shape, Unsupported, window_of
from uma_core.engine.lib import ffi, lib

KEYS = frozenset({
    "attention.key_length_swa", "attention.value_length_swa", "attention.shared_kv_layers",
    "embedding_length_per_layer_input",
    "rope.dimension_count_swa",
})  # fmt: skip


def adapt(shape: Shape, meta: Meta) -> Shape:
    windowed = meta.flags(WINDOW_PATTERN)
    if windowed is None:
        raise Unsupported("a file that does not list its layers with a window")
    window, full = window_of(meta), shape.layers[0].rope
    assert full is not None
    dim = meta.number("attention.key_length_swa", shape.layers[0].dim_k)
    if meta.number("attention.value_length_swa", dim) != dim:
        raise Unsupported("heads whose K and V differ in length")
    rope = Rope(meta.number("rope.dimension_count_swa", full.n), meta.real("rope.freq_base_swa", 10_000.0), 1.0)
    layers = [
        replace(layer, dim_k=dim, dim_v=dim, window=window, rope=rope) if is_windowed else layer
        for layer, is_windowed in zip(shape.layers, windowed, strict=True)
    ]
    n_own = len(layers) - meta.number("attention.shared_kv_layers", 0)
    return replace(
        shape,
        layers=tuple(_shared(layers, i, n_own) for i in range(len(layers))),
        scale=1.0,
        has_own_factors=True,
        final_softcap=meta.real("final_logit_softcapping"),
        n_embd_layer=meta.number("embedding_length_per_layer_input", 0),
    )


def _shared(layers: list[Layer], i: int, n_own: int) -> Layer:
    """Layers from `n_own` on read K and V of the last earlier layer of their kind; the last two are of both kinds."""
    layer = layers[i]
    if i < n_own:
        return layer
    source = n_own - (2 if layer.window else 1)
    if source < 0 or replace(layers[source], n_head=layer.n_head, kv=i) != layer:
        raise Unsupported("a layer that reads K and V of another kind of layer")
    return replace(layer, kv=source)


RULES = Rules(WINDOW_KEYS | KEYS, LISTS, adapt)


def build(b: Builder) -> Any:
    x = lib.ggml_scale(b.context, b.embed(), math.sqrt(b.shape.n_embd))
    embeddings = _layer_embeddings(b, x) if b.shape.n_embd_layer else None
    for layer in range(b.shape.n_layer):
        p, s = f"blk.{layer}", b.shape
        y = _attention(b, b.norm(x, f"{p}.attn_norm"), layer)
        if y is None:
            return None
        y = b.product(b.wanted(y, layer), f"{p}.attn_output", s.n_embd)
        x = b.add(b.norm(y, f"{p}.post_attention_norm"), b.wanted(x, layer))
        x = b.add(b.norm(_feed(b, x, p), f"{p}.post_ffw_norm"), x)
        if embeddings is not None:
            x = b.add(x, _layer_embedding(b, x, embeddings, layer))
        if b.weights.find(f"{p}.layer_output_scale.weight"):
            x = lib.ggml_mul(b.context, x, b.weights.vector(f"{p}.layer_output_scale.weight", 1))
    return b.logits(x)


def _attention(b: Builder, x: Any, layer: int) -> Any:
    p, own, context = f"blk.{layer}", b.layer(layer), b.context
    factors = ffi.NULL
    if not own.window and b.weights.find("rope_freqs.weight"):
        factors = b.weights.vector("rope_freqs.weight", own.dim_k // 2)
    is_joined = bool(b.weights.find(f"{p}.attn_qkv.weight"))
    q, k, v = b.qkv(x, layer) if is_joined else (b.heads(x, f"{p}.attn_q", own.n_head, own.dim_k), None, None)
    if own.kv == layer:
        if not is_joined:
            k = b.heads(x, f"{p}.attn_k", own.n_head_kv, own.dim_k)
            v = b.heads(x, f"{p}.attn_v", own.n_head_kv, own.dim_v) if b.weights.find(f"{p}.attn_v.weight") else k
        k = b.rope(b.norm(k, f"{p}.attn_k_norm"), layer, factors)
        v = lib.ggml_rms_norm(context, v, b.shape.eps)
    else:  # a file may hold tensors that are not used
        for name in ("attn_k", "attn_v", "attn_k_norm"):
            b.weights.find(f"{p}.{name}.weight")
    return b.attention(b.rope(b.norm(q, f"{p}.attn_q_norm"), layer, factors), k, v, layer)


def _feed(b: Builder, x: Any, p: str) -> Any:
    y = b.gated(b.norm(x, f"{p}.ffn_norm"), p, lib.ggml_geglu_split)
    if not b.weights.find(f"{p}.ffn_gate_inp.weight"):
        return y
    context, s = b.context, b.shape
    router = lib.ggml_scale(context, lib.ggml_rms_norm(context, x, s.eps), 1.0 / math.sqrt(s.n_embd))
    router = lib.ggml_mul(context, router, b.weights.vector(f"{p}.ffn_gate_inp.scale", s.n_embd))
    scores = b.product(router, f"{p}.ffn_gate_inp", s.n_expert)
    chosen = b.experts(b.norm(x, f"{p}.pre_ffw_norm_2"), p, Experts(gate=lib.ggml_geglu_split, has_scales=True), scores)
    return b.add(b.norm(y, f"{p}.post_ffw_norm_1"), b.norm(chosen, f"{p}.post_ffw_norm_2"))


def _layer_embeddings(b: Builder, x: Any) -> Any:
    """(n_embd_layer, n, n_layer): each layer's embedding of every token, from the token and its usual embedding."""
    context, s = b.context, b.shape
    width = s.n_embd_layer * s.n_layer
    table = b.weights.matrix("per_layer_token_embd.weight", width, s.n_vocab)
    looked_up = lib.ggml_scale(context, lib.ggml_get_rows(context, table, b.token), math.sqrt(s.n_embd_layer))
    projected = lib.ggml_scale(context, b.product(x, "per_layer_model_proj", width), 1.0 / math.sqrt(s.n_embd))
    projected = b.norm(lib.ggml_reshape_3d(context, projected, s.n_embd_layer, s.n_layer, b.n), "per_layer_proj_norm")
    both = b.add(projected, lib.ggml_reshape_3d(context, looked_up, s.n_embd_layer, s.n_layer, b.n))
    return lib.ggml_cont(context, lib.ggml_permute(context, lib.ggml_scale(context, both, math.sqrt(0.5)), 0, 2, 1, 3))


def _layer_embedding(b: Builder, x: Any, embeddings: Any, layer: int) -> Any:
    p, context, s = f"blk.{layer}", b.context, b.shape
    own = lib.ggml_view_2d(context, embeddings, s.n_embd_layer, b.n, embeddings.nb[1], layer * embeddings.nb[2])
    y = lib.ggml_gelu(context, b.product(x, f"{p}.inp_gate", s.n_embd_layer))
    y = lib.ggml_mul(context, y, b.wanted(own, layer))
    return b.norm(b.product(y, f"{p}.proj", s.n_embd), f"{p}.post_norm")
