"""Llama and Mistral: pre-norm, grouped-query attention, SwiGLU or experts. The base of most other families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from uma_core.engine.graph.builder import Builder
from uma_core.engine.lib import lib


def plain(b: Builder, x: Any, layer: int) -> tuple[Any, Any, Any]:
    """Q, K and V of the normed input, Q and K with their positions."""
    q, k, v = b.qkv(x, layer)
    return b.rope(q, layer), b.rope(k, layer), v


def normed(b: Builder, x: Any, layer: int) -> tuple[Any, Any, Any]:
    """The same; each head of Q and K has an RMS norm before its position."""
    q, k, v = b.qkv(x, layer)
    q, k = (b.rope(b.norm(y, f"blk.{layer}.attn_{name}_norm"), layer) for name, y in (("q", q), ("k", k)))
    return q, k, v


def normed_rows(b: Builder, x: Any, layer: int) -> tuple[Any, Any, Any]:
    """The same; the norms of Q and K are over all their heads together."""
    p, own = f"blk.{layer}", b.layer(layer)
    q, k, v = b.qkv(x, layer)

    def of_all_heads(y: Any, name: str, n_head: int) -> Any:
        rows = b.norm(lib.ggml_view_2d(b.context, y, n_head * own.dim_k, b.n, y.nb[2], 0), name)
        return b.rope(lib.ggml_reshape_3d(b.context, rows, own.dim_k, n_head, b.n), layer)

    return of_all_heads(q, f"{p}.attn_q_norm", own.n_head), of_all_heads(k, f"{p}.attn_k_norm", own.n_head_kv), v


def feed_forward(b: Builder, x: Any, layer: int) -> Any:
    """SwiGLU, or experts if the layer has some."""
    p = f"blk.{layer}"
    return b.experts(x, p) if b.shape.n_expert else b.gated(x, p, lib.ggml_swiglu_split)


class Parts(NamedTuple):
    """Parts of Llama's layer that a family exchanges."""

    project: Callable[[Builder, Any, int], tuple[Any, Any, Any]] = plain
    feed: Callable[[Builder, Any, int], Any] = feed_forward
    attn_norm: str = "attn_norm"  # "": attention's input is not normed
    ffn_norm: str = "ffn_norm"  # "": the feed-forward block's input is not normed
    has_post_norms: bool = False  # the results of attention and feed-forward are normed before they are added


USUAL = Parts()


def build(b: Builder, parts: Parts = USUAL) -> Any:
    x = b.scale(b.embed(), b.shape.embedding_scale)
    for layer in range(b.shape.n_layer):
        x = block(b, x, layer, parts)
        if x is None:
            return None
    return b.logits(x)


def build_post_norm(b: Builder) -> Any:
    """For files that call the norm before the feed-forward block the one after attention."""
    return build(b, Parts(ffn_norm="post_attention_norm"))


def block(b: Builder, x: Any, layer: int, parts: Parts) -> Any:
    """One layer; None if only its K and V were wanted."""
    p, s = f"blk.{layer}", b.shape
    q, k, v = parts.project(b, b.norm(x, f"{p}.{parts.attn_norm}") if parts.attn_norm else x, layer)
    sinks = b.weights.vector(f"{p}.attn_sinks.weight", b.layer(layer).n_head) if b.shape.has_sinks else None
    y = b.attention(q, k, v, layer, sinks)
    if y is None:
        return None
    y = b.product(b.wanted(y, layer), f"{p}.attn_output", s.n_embd)
    y = b.norm(y, f"{p}.post_attention_norm") if parts.has_post_norms else y
    x = b.add(b.scale(y, s.residual_scale), b.wanted(x, layer))
    y = parts.feed(b, b.norm(x, f"{p}.{parts.ffn_norm}") if parts.ffn_norm else x, layer)
    y = b.norm(y, f"{p}.post_ffw_norm") if parts.has_post_norms else y
    return b.add(b.scale(y, s.residual_scale), x)
