"""Architecture families: how each puts its layers together. One file per family: `build`, and `RULES` where its metadata has more than most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import (
    gemma,
    gemma2,
    gemma3,
    gemma4,
    glm4,
    gpt_oss,
    granite,
    llama,
    mistral3,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from uma_core.engine.graph.shape import NO_RULES, Rules, Unsupported


class Family(NamedTuple):
    """One architecture of llama.cpp."""

    build: Callable[[Builder], Any]  # the logits (n_vocab, n_out), or None for a batch in which no row wants them
    models: str  # that have it
    notes: str  # what is special about it
    rules: Rules = NO_RULES


FAMILIES: dict[str, Family] = {
    "llama": Family(llama.build, "Llama 2 and 3, Mistral, Mixtral, and many fine-tunes", "experts; LongRoPE, YaRN"),
    "mistral3": Family(
        mistral3.build, "Mistral Small 3, Ministral 3, Devstral", "YaRN, Q that grows with its position", mistral3.RULES
    ),
    "phi3": Family(
        phi3.build, "Phi 3, 3.5 and 4, also mini", "joined matrices, LongRoPE, part of a head rotated", phi3.RULES
    ),
    "qwen2": Family(qwen2.build, "Qwen 2 and 2.5", "biases"),
    "qwen2moe": Family(qwen2.build_moe, "Qwen 1.5 MoE, Qwen 2 57B-A14B", "a shared expert", qwen2.MOE_RULES),
    "qwen3": Family(qwen3.build, "Qwen 3", "norms of Q and K"),
    "qwen3moe": Family(qwen3.build, "Qwen 3 30B-A3B, 235B-A22B, Coder", "norms of Q and K, experts"),
    "gemma": Family(gemma.build, "Gemma", ""),
    "gemma2": Family(gemma2.build, "Gemma 2", "windows, soft caps", gemma2.RULES),
    "gemma3": Family(gemma3.build, "Gemma 3 (text)", "windows with positions of their own", gemma3.RULES),
    "gemma4": Family(
        gemma4.build,
        "Gemma 4 (text)",
        "longer heads without a window, shared K and V, embeddings of each layer, experts",
        gemma4.RULES,
    ),
    "gpt-oss": Family(
        gpt_oss.build, "gpt-oss 20B and 120B", "windows, sinks, experts with biases (MXFP4)", gpt_oss.RULES
    ),
    "glm4": Family(
        glm4.build, "GLM 4 9B and 32B (0414), text", "norms after attention and feed-forward, part of a head rotated"
    ),
    "smollm3": Family(llama.build, "SmolLM 3", "every fourth layer without rotation", smollm3.RULES),
    "seed_oss": Family(llama.build_post_norm, "Seed-OSS 36B", "biases"),
    "granite": Family(
        granite.build, "Granite 3 and 4 (dense)", "scales of embedding, residuals, scores and logits", granite.RULES
    ),
    "granitemoe": Family(
        granite.build,
        "Granite 3 MoE, 4 (without recurrent layers)",
        "the same, experts and a shared one",
        granite.RULES,
    ),
}


def family_of(arch: str) -> Family:
    """Raises: Unsupported."""
    if arch not in FAMILIES:
        raise Unsupported(f"architecture {arch} (it knows {', '.join(FAMILIES)})")
    return FAMILIES[arch]
