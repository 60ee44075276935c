"""Qwen2 and 2.5: Llama's layers; Q, K and V have biases, which `Builder.product` adds where the file has them."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama


def build(b: Builder) -> Any:
    return llama.build(b)
