"""Architecture families: how each puts its layers together. One file per family, one function `build` each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import gemma, gemma2, gemma3, llama, qwen2, qwen3
from uma_core.engine.graph.shape import Unsupported

Family = Callable[[Builder], Any]  # the logits (n_vocab, n_out), or None for a batch in which no row wants them

FAMILIES: dict[str, Family] = {
    "llama": llama.build,  # Llama, Mistral, and their mixtures of experts
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "qwen3moe": qwen3.build,
    "gemma": gemma.build,
    "gemma2": gemma2.build,
    "gemma3": gemma3.build,
}


def family_of(arch: str) -> Family:
    """Raises: Unsupported."""
    if arch not in FAMILIES:
        raise Unsupported(f"architecture {arch} (it knows {', '.join(FAMILIES)})")
    return FAMILIES[arch]
