"""A model's shape from its metadata, or why this engine does not compute it.

Rules: what is not known is refused, never ignored. A metadata key that changes the result and that nobody here reads
would otherwise give fluent nonsense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from uma_core.engine.header import Header, Scalar


class Unsupported(Exception):
    """Why the graph engine does not compute a model; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts as the metadata states them."""

    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    dim: int  # of a head, K and V alike
    n_rot: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    rope_base: float
    rope_scale: float  # of positions: 1 / linear scaling factor
    n_expert: int
    n_expert_used: int
    expert_scale: float
    scale: float  # of attention scores
    softcap: float = 0.0  # of attention scores; 0: none
    final_softcap: float = 0.0  # of logits; 0: none
    window: int = 0  # positions that a row of a windowed layer sees; 0: every layer sees all
    window_pattern: int = 0  # layers of which the last one sees all; 0: none does
    window_rope: tuple[float, float] = (10_000.0, 1.0)  # base and scale of windowed layers' positions

    @property
    def n_embd_q(self) -> int:
        return self.n_head * self.dim

    def is_windowed(self, layer: int) -> bool:
        return self.window > 0 and (self.window_pattern == 0 or layer % self.window_pattern < self.window_pattern - 1)

    def rope(self, layer: int) -> tuple[float, float]:
        """Base and scale of the layer's positions."""
        return self.window_rope if self.is_windowed(layer) else (self.rope_base, self.rope_scale)


KNOWN = {
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
    "rope.scaling.original_context_length", "rope.scaling.finetuned", "expert_count", "expert_used_count", "expert_feed_forward_length",
    "expert_weights_scale", "tensor_data_layout",
}  # fmt: skip
GEMMA = {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa", "final_logit_softcapping"}
KNOWN_OF = {"gemma2": GEMMA | {"attn_logit_softcapping"}, "gemma3": GEMMA}  # beside those, by architecture
WIDEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B: its scores are scaled by n_embd / n_head
MAX_GROUP = 64  # query heads per KV head that the attention kernel takes at once
MAX_DIM = 256


def shape_of(header: Header, moe_top_k: int = 0) -> Shape:
    """Raises: Unsupported."""
    meta = header.of_arch()
    _check_known(header, meta)
    n_head = _int(meta, "attention.head_count")
    n_embd = _int(meta, "embedding_length")
    n_head_kv = _int(meta, "attention.head_count_kv", n_head)
    dim = _int(meta, "attention.key_length", n_embd // max(1, n_head))
    if _int(meta, "attention.value_length", n_embd // max(1, n_head)) != dim:
        raise Unsupported("heads whose K and V differ in length")
    if n_head_kv < 1 or n_head % n_head_kv or n_head // n_head_kv > MAX_GROUP or not 0 < dim <= MAX_DIM:
        raise Unsupported(f"{n_head} query heads over {n_head_kv} KV heads of length {dim}")
    n_rot = _int(meta, "rope.dimension_count", dim)
    if not 0 < n_rot <= dim or n_rot % 2:
        raise Unsupported(f"rotary positions over {n_rot} of {dim} elements")
    n_expert, n_expert_used = _int(meta, "expert_count", 0), moe_top_k or _int(meta, "expert_used_count", 0)
    if n_expert and not 0 < n_expert_used <= n_expert:
        raise Unsupported(f"{n_expert_used} of {n_expert} experts")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise Unsupported("a file without token_embd.weight")
    return Shape(
        arch=header.arch,
        n_layer=_int(meta, "block_count"),
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        dim=dim,
        n_rot=n_rot,
        n_vocab=embedding.ne[1],
        n_ctx_train=_int(meta, "context_length"),
        eps=float(meta.get("attention.layer_norm_rms_epsilon", 0.0)),
        rope_base=float(meta.get("rope.freq_base", 10_000.0)),
        rope_scale=_rope_scale(meta),
        n_expert=n_expert,
        n_expert_used=n_expert_used if n_expert else 0,
        expert_scale=float(meta.get("expert_weights_scale", 0.0)),
        scale=1.0 / math.sqrt(n_embd // n_head if _int(meta, "block_count") == WIDEST.get(header.arch) else dim),
        **_gemma(header.arch, meta),
    )


def _check_known(header: Header, meta: dict[str, Scalar]) -> None:
    if "split.count" in header.meta and int(header.meta["split.count"]) > 1:
        raise Unsupported("a model split over several files")
    prefix = header.arch + "."
    unknown = sorted({*meta, *(key.removeprefix(prefix) for key in header.arrays() if key.startswith(prefix))} - KNOWN - KNOWN_OF.get(header.arch, set()))
    if unknown:
        raise Unsupported(f"metadata {prefix}{unknown[0]}")
    arrays = [key for key in header.arrays() if key.startswith(prefix)]
    if arrays:
        raise Unsupported(f"metadata {arrays[0]} that differs by layer")
    if "attention.layer_norm_rms_epsilon" not in meta:
        raise Unsupported("a norm other than RMS")


def _gemma(arch: str, meta: dict[str, Scalar]) -> dict[str, Any]:
    """Soft caps and windows, with the defaults that llama.cpp has by architecture."""
    is_2, is_either = arch == "gemma2", arch in KNOWN_OF
    rope = (float(meta.get("rope.freq_base", 10_000.0)), _rope_scale(meta)) if is_2 else (10_000.0, 1.0)
    return {
        "softcap": float(meta.get("attn_logit_softcapping", 50.0)) if is_2 else 0.0,
        "final_softcap": float(meta.get("final_logit_softcapping", 30.0 if is_2 else 0.0)),
        "window": _int(meta, "attention.sliding_window", 4096 if is_2 else 0) if is_either else 0,
        "window_pattern": _int(meta, "attention.sliding_window_pattern", 2 if is_2 else 6),
        "window_rope": (float(meta.get("rope.freq_base_swa", rope[0])), rope[1]),
    }


def _rope_scale(meta: dict[str, Scalar]) -> float:
    kind = str(meta.get("rope.scaling.type", "linear"))
    factor = float(meta.get("rope.scaling.factor", meta.get("rope.scale_linear", 0.0)))
    if kind == "none" or factor in (0.0, 1.0):
        return 1.0
    if kind != "linear":
        raise Unsupported(f"rope scaling {kind}")
    return 1.0 / factor


def _int(meta: dict[str, Scalar], key: str, default: int | None = None) -> int:
    value = meta.get(key, default)
    if not isinstance(value, int):
        raise Unsupported(f"a file without {key}")
    if not 0 <= value < 1 << 31:
        raise Unsupported(f"{key} of {value}")
    return value
