"""DeepSeek 2 and 3, and others with their attention (MLA): a position stores one latent row, from which all heads get K
and V.

K of a head is a product of the latent with a matrix of that head, and so is V. Both products are moved to the other
side (absorbed): Q is multiplied with the head's matrix of K once per token, the result of attention with that of V. So
attention reads the latent rows themselves, as one KV head for all query heads. A part of K, the same in every head, is
rotated by its position and stored after the latent.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from uma_core.engine.graph.builder import Builder
from uma_core.engine.graph.families import mixture
from uma_core.engine.graph.families.mistral3 import growth_of_q
from uma_core.engine.graph.families.mixture import GATINGS, SIGMOID, Mixture, mixture_of
from uma_core.engine.graph.shape import YARN_UNUSED, Meta, Rules, Scaling, Shape, Unsupported, yarn_growth
from uma_core.engine.lib import lib

TEMPERATURE, TEMPERATURE_LENGTH = "attention.temperature_scale", "attention.temperature_length"
KEYS = frozenset({
    "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
    TEMPERATURE,
    TEMPERATURE_LENGTH,
})  # fmt: skip
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
GLM_4_7_FLASH = ((47, 48), 154880)  # layers and tokens; its first files do not name their gating


class Own(NamedTuple):
    """Facts of this family alone."""

    n_latent: int  # elements that K and V are made of
    n_rot: int  # elements of K that are rotated
    dim_k: int  # elements of a head's K: those that are not rotated, and n_rot
    dim_v: int
    mixture: Mixture


def adapt(shape: Shape, meta: Meta) -> Shape:
    if "attention.key_length_mla" not in meta:
        raise Unsupported("a file whose K and V are not split by head (converted for an old llama.cpp)")
    rope = shape.layers[0].rope
    assert rope is not None
    n_latent = meta.number("attention.kv_lora_rank")
    n_layers, n_vocab = GLM_4_7_FLASH
    is_glm = meta.n_layer in n_layers and shape.n_vocab == n_vocab
    experts = mixture_of(meta, SIGMOID if is_glm else min(GATINGS))
    own = Own(
        n_latent, rope.n, meta.number("attention.key_length_mla"), meta.number("attention.value_length_mla"), experts
    )
    if own.dim_k <= own.n_rot or any((x.n_head_kv, x.dim_k) != (1, n_latent + own.n_rot) for x in shape.layers):
        raise Unsupported("K of these lengths")
    layers = tuple(replace(layer, dim_v=n_latent, has_v=False) for layer in shape.layers)
    factor, n = meta.real(TEMPERATURE), meta.number(TEMPERATURE_LENGTH, 0)
    if factor and not n:
        raise Unsupported(f"{TEMPERATURE} without {TEMPERATURE_LENGTH}")
    scaling, scale = _scales(shape, meta, own.dim_k)
    return replace(shape, layers=layers, own=own, scaling=scaling, scale=scale, temperature=(factor, n))


def _scales(shape: Shape, meta: Meta, dim_k: int) -> tuple[Scaling, float]:
    """Move YaRN's growth from Q and K to the scores, as llama.cpp does: only parts of Q and K are rotated."""
    rope, scaling, weight = shape.layers[0].rope, shape.scaling, meta.real(LOG_MULTIPLIER) / 0.1
    assert rope is not None
    if scaling.ext_factor and weight:
        is_own = shape.arch == "deepseek2"  # in the others the numerator's multiplier is always 1
        growth = yarn_growth(1.0 / rope.scale, weight, weight if is_own else 1.0)
        scaling = scaling._replace(attn_factor=meta.real("rope.scaling.attn_factor", 1.0) * growth)
    log = math.log(1.0 / rope.scale)
    magnitude = scaling.attn_factor * (1.0 + 0.1 * log) * (1.0 + 0.1 * weight * log)
    return scaling, magnitude**2 / math.sqrt(dim_k)


RULES = Rules(KEYS | mixture.KEYS | YARN_UNUSED, adapt=adapt)


def build(b: Builder) -> Any:
    factor, n = b.shape.temperature
    growth, heads = growth_of_q(b, factor, n) if factor else None, _heads(b)
    x = b.embed()
    for layer in range(b.shape.n_layer):
        p = f"blk.{layer}"
        q, k = _project(b, b.norm(x, f"{p}.attn_norm"), layer, heads)
        y = b.attention(q if growth is None else lib.ggml_mul(b.context, q, growth), k, None, layer)
        if y is None:
            return None
        y = b.product(_values(b, b.wanted(y, layer), layer, heads), f"{p}.attn_output", b.shape.n_embd)
        x = b.add(y, b.wanted(x, layer))
        x = b.add(mixture.feed(b, b.norm(x, f"{p}.ffn_norm"), layer, b.shape.own.mixture), x)
    return b.logits(x)


def _project(b: Builder, x: Any, layer: int, heads: Any) -> tuple[Any, Any]:
    """Q (n_latent + n_rot, n_head, n) and K (n_latent + n_rot, 1, n)."""
    p, own, context = f"blk.{layer}", b.shape.own, b.context
    both = b.product(x, f"{p}.attn_kv_a_mqa", own.n_latent + own.n_rot)
    row, size = both.nb[1], both.nb[0]
    rotated = lib.ggml_view_3d(context, both, own.n_rot, 1, b.n, row, row, own.n_latent * size)
    latent = b.norm(lib.ggml_view_2d(context, both, own.n_latent, b.n, row, 0), f"{p}.attn_kv_a_norm")
    latent = lib.ggml_reshape_3d(context, latent, own.n_latent, 1, b.n)
    k = lib.ggml_concat(context, latent, b.rope(rotated, layer), 0)

    if b.weights.find(f"{p}.attn_q_a.weight"):
        n_rank = b.weights.get(f"{p}.attn_q_a.weight").ne[1]
        x = b.norm(b.product(x, f"{p}.attn_q_a", n_rank), f"{p}.attn_q_a_norm")
        q = b.heads(x, f"{p}.attn_q_b", b.layer(layer).n_head, own.dim_k)
    else:
        q = b.heads(x, f"{p}.attn_q", b.layer(layer).n_head, own.dim_k)
    n_plain, n_head = own.dim_k - own.n_rot, b.layer(layer).n_head
    plain = lib.ggml_cont(context, lib.ggml_view_3d(context, q, n_plain, n_head, b.n, q.nb[1], q.nb[2], 0))
    rotated = lib.ggml_view_3d(context, q, own.n_rot, n_head, b.n, q.nb[1], q.nb[2], n_plain * q.nb[0])
    absorbed = _by_heads(b, plain, f"{p}.attn_k_b", own.n_latent, heads)
    return lib.ggml_concat(context, absorbed, b.rope(rotated, layer), 0), k


def _values(b: Builder, y: Any, layer: int, heads: Any) -> Any:
    """(dim_v * n_head, rows) from attention's result over the latents, (n_latent * n_head, rows)."""
    own, n_head, n = b.shape.own, b.layer(layer).n_head, y.ne[1]
    y = lib.ggml_reshape_3d(b.context, y, own.n_latent, n_head, n)
    y = _by_heads(b, y, f"blk.{layer}.attn_v_b", own.dim_v, heads)
    return lib.ggml_reshape_2d(b.context, y, own.dim_v * n_head, n)


def _heads(b: Builder) -> Any:
    """(n_head, n) of s32: every token's heads by their numbers, which choose a matrix as if they were experts."""
    n_head = b.layer(0).n_head
    numbers = lib.ggml_repeat_4d(b.context, lib.ggml_arange(b.context, 0.0, n_head, 1.0), n_head, b.n, 1, 1)
    return lib.ggml_cast(b.context, numbers, lib.GGML_TYPE_I32)


def _by_heads(b: Builder, x: Any, name: str, n_out: int, heads: Any) -> Any:
    """(n_out, n_head, rows): each head's own matrix times x (n_in, n_head, rows)."""
    weight = b.weights.factor(f"{name}.weight", x.ne[0], n_out, x.ne[1])
    chosen = lib.ggml_view_2d(b.context, heads, x.ne[1], x.ne[2], heads.nb[1], 0)
    return lib.ggml_mul_mat_id(b.context, weight, x, chosen)
