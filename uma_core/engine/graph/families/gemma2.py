"""Gemma 2: Gemma's layers with norms after attention and feed-forward too; every other layer has a window, scores and logits soft caps."""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import gemma


def build(b: Builder) -> Any:
    return gemma.build(b, has_post_norms=True)
