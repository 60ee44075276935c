"""Gemma 3: Gemma 2's layers without a cap on scores; each head of Q and K has an RMS norm; windowed layers have positions of their own."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import gemma


def build(b: Builder) -> Any:
    return gemma.build(b, Builder.normed_heads, has_post_norms=True)
