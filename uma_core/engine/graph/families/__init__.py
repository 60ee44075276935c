"""Architecture families: how each puts its layers together.

There is one file per family, with `build`, and with `RULES` if its metadata has further keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import (
    cohere,
    deepseek2,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    gemma4,
    glm4,
    glm4moe,
    gpt_oss,
    granite,
    granitehybrid,
    hunyuan,
    lfm2,
    llama,
    minimax,
    mistral3,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen35,
    smollm3,
    starcoder2,
)
from uma_core.engine.graph.shape import NO_RULES, Rules, Unsupported


class Family(NamedTuple):
    """One architecture of llama.cpp."""

    build: Callable[[Builder], Any]  # gives the logits (n_vocab, n_out), or None if no row of the batch wants them
    models: str  # models with this architecture
    notes: str  # its differences from Llama
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
    "qwen35": Family(
        qwen35.build,
        "Qwen 3.5 and 3.6 (text)",
        "gated delta nets, gated attention in every fourth layer; on the CPU",
        qwen35.RULES,
    ),
    "qwen35moe": Family(
        qwen35.build,
        "Qwen 3.5 and 3.6 35B-A3B, 122B-A10B, 397B-A17B",
        "the same, experts and a shared one",
        qwen35.RULES,
    ),
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
    "deepseek2": Family(
        deepseek2.build,
        "DeepSeek 2, 2.5, 3, 3.1 and R1, Kimi K2, GLM 4.7 Flash, Mistral Large 3, GigaChat 3",
        "one latent row of K and V per position (MLA), YaRN, groups of experts and shared ones",
        deepseek2.RULES,
    ),
    "mistral4": Family(deepseek2.build, "Mistral Small 4", "the same", deepseek2.RULES),
    "glm4moe": Family(
        glm4moe.build,
        "GLM 4.5, 4.6 and 4.7, also Air, text; Solar Open",
        "dense layers first, experts chosen with a bias, a shared one",
        glm4moe.RULES,
    ),
    "minimax-m2": Family(
        minimax.build, "MiniMax M2", "experts chosen with a bias, norms of whole rows of Q and K", minimax.RULES
    ),
    "olmo2": Family(
        olmo2.build, "OLMo 2 and 3", "norms after each half only and of whole rows of Q and K, windows", olmo2.RULES
    ),
    "exaone4": Family(exaone4.build, "EXAONE 4", "norms after each half only, windows", exaone4.RULES),
    "hunyuan-dense": Family(hunyuan.build, "Hunyuan 0.5B to 7B", "norms of Q and K after rotation", hunyuan.RULES),
    "command-r": Family(
        cohere.build, "Command R", "layer norms, attention and feed-forward side by side", cohere.RULES
    ),
    "cohere2": Family(cohere.build, "Command R7B, Command A, Aya", "the same, windows", cohere.RULES2),
    "starcoder2": Family(
        starcoder2.build, "StarCoder 2, Granite Code", "layer norms, biases, no gate", starcoder2.RULES
    ),
    "nemotron": Family(
        starcoder2.build_nemotron, "Nemotron 3 and 4, Minitron", "layer norms, squared ReLU", starcoder2.RULES
    ),
    "granitehybrid": Family(
        granitehybrid.build, "Granite 4 H", "Granite's, Mamba 2 in most layers; on the CPU", granitehybrid.RULES
    ),
    "lfm2": Family(lfm2.build, "LFM2 230M to 2.6B", "short convolutions in most layers; on the CPU", lfm2.RULES),
    "lfm2moe": Family(lfm2.build, "LFM2 8B-A1B, 24B-A2B", "the same, experts", lfm2.MOE_RULES),
}


def family_of(arch: str) -> Family:
    """Raises: Unsupported."""
    if arch not in FAMILIES:
        raise Unsupported(f"architecture {arch} (it knows {', '.join(FAMILIES)})")
    return FAMILIES[arch]
