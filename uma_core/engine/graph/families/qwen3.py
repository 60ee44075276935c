"""Qwen3 and its mixture of experts: Llama's layers; each head of Q and K has an RMS norm before its position."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(project=llama.normed))
