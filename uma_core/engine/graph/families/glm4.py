"""GLM 4 (dense): Llama's layers with norms after attention and feed-forward too; gate and up are one matrix, part of
a head is rotated.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import llama, phi3


def build(b: Builder) -> Any:
    return llama.build(b, llama.Parts(feed=phi3.feed, has_post_norms=True))
