"""Phi 3 and 4: Llama's layers; Q, K and V are one matrix, gate and up another.

Windows in the metadata are not used, as in llama.cpp.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama
from uma_core.engine.graph.shape import Rules
from uma_core.engine.lib import lib

RULES = Rules(frozenset({"attention.sliding_window"}))


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(feed=feed))


def feed(b: Builder, x: Any, layer: int) -> Any:
    return b.gated_whole(x, f"blk.{layer}", lib.ggml_swiglu)
