"""StarCoder 2 and Nemotron 3 and 4: Llama's layers with layer norms and biases; the feed-forward block has no gate."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import Rules
from uma_core.engine.lib import lib

RULES = Rules(frozenset({"attention.layer_norm_epsilon"}), has_layer_norm=True)


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(feed=_feed))


def build_nemotron(b: Builder) -> Any:
    return llama.build(b, llama.Parts(feed=_feed_squared))


def _feed(b: Builder, x: Any, layer: int) -> Any:
    return _down(b, lib.ggml_gelu(b.context, _up(b, x, layer)), layer)


def _feed_squared(b: Builder, x: Any, layer: int) -> Any:
    return _down(b, lib.ggml_sqr(b.context, lib.ggml_relu(b.context, _up(b, x, layer))), layer)


def _up(b: Builder, x: Any, layer: int) -> Any:
    name = f"blk.{layer}.ffn_up"
    return b.product(x, name, b.weights.get(f"{name}.weight").ne[1])


def _down(b: Builder, x: Any, layer: int) -> Any:
    return b.product(x, f"blk.{layer}.ffn_down", b.shape.n_embd)
