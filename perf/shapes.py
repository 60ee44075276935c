"""Shapes of real models, which are filled with random weights. Values only.

Step times depend on a model's shape and its quantisation, not on the values of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FORMAT_VERSION = 1  # part of the cache key: increase it when the same shape gives other bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """One model. All counts are as in its GGUF metadata."""

    name: str
    arch: str  # "qwen2", "llama" or "qwen35"
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    is_tied: bool  # the output head is the embedding
    n_ctx_train: int
    rope_base: float
    n_expert: int = 0
    n_expert_used: int = 0
    quant: str = "q8_0"  # of the file: a type, or one of MIXES
    n_head_dim: int = 0  # size of an attention head, if that is not n_embd / n_head
    n_rot: int = 0  # rotated dimensions of a head, if not all are
    n_state_head: int = 0  # heads of the delta nets that qwen35 has instead of attention in three of four layers
    n_state_dim: int = 0  # size of their keys and values

    @property
    def head_dim(self) -> int:
        return self.n_head_dim or self.n_embd // self.n_head

    @property
    def n_embd_kv(self) -> int:
        return self.head_dim * self.n_head_kv

    @property
    def file_name(self) -> str:
        return f"{self.name}-v{FORMAT_VERSION}.gguf"


# Quantisations that give some tensors another type, as llama.cpp's quantiser does (llama_tensor_get_type): the type of
# most tensors, of the output head or a tied embedding, and of attn_v and ffn_down in the layers that get more bits.
MIXES = {
    "q8_0": ("q8_0", "q8_0", "q8_0"),
    "q4_0": ("q4_0", "q8_0", "q4_0"),
    "q4_k_m": ("q4_k", "q6_k", "q6_k"),
    "q5_k_m": ("q5_k", "q6_k", "q6_k"),
    "q6_k": ("q6_k", "q6_k", "q6_k"),
    "iq4_xs": ("iq4_xs", "q6_k", "iq4_xs"),
    "mxfp4": ("mxfp4", "q8_0", "mxfp4"),
}

_DENSE_05B = Shape("0.5b-q8_0", "qwen2", 24, 896, 4864, 14, 2, 151_936, True, 32_768, 1e6)
_DENSE_1B = Shape("1b-q8_0", "llama", 16, 2048, 8192, 32, 8, 128_256, True, 131_072, 5e5)
_MOE_1B = Shape("1b-moe-q8_0", "llama", 24, 1024, 512, 16, 8, 49_152, True, 131_072, 1e4, n_expert=32, n_expert_used=8)
_MOE64_1B = Shape(
    "1b-moe64-q8_0", "llama", 12, 1024, 512, 16, 8, 49_152, True, 131_072, 1e4, n_expert=64, n_expert_used=8
)
# Qwen 3.5 0.8B
_HYBRID_08B = Shape(
    "0.8b-hybrid-q8_0", "qwen35", 24, 1024, 3584, 8, 2, 248_320, True, 262_144, 1e7,
    n_head_dim=256, n_rot=64, n_state_head=16, n_state_dim=128,
)  # fmt: skip
_DENSE_8B = Shape("8b-q8_0", "llama", 32, 4096, 14_336, 32, 8, 128_256, False, 131_072, 5e5)
_TINY = Shape("tiny-q8_0", "qwen2", 2, 64, 128, 2, 1, 512, True, 32_768, 1e4)
_TINY_HYBRID = Shape(
    "tiny-hybrid-q8_0", "qwen35", 4, 64, 128, 2, 1, 512, True, 32_768, 1e4,
    n_head_dim=32, n_rot=16, n_state_head=2, n_state_dim=32,
)  # fmt: skip
_TINY_MOE = Shape("tiny-moe-q8_0", "llama", 2, 64, 64, 2, 1, 512, True, 32_768, 1e4, n_expert=4, n_expert_used=2)

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _DENSE_05B,
        replace(_DENSE_05B, name="0.5b-q4_0", quant="q4_0"),
        _DENSE_1B,
        replace(_DENSE_1B, name="1b-q4_0", quant="q4_0"),
        *(replace(_DENSE_1B, name=f"1b-{quant}", quant=quant) for quant in ("q4_k_m", "q5_k_m", "q6_k", "iq4_xs")),
        _MOE_1B,
        _MOE64_1B,
        *(replace(_MOE64_1B, name=f"1b-moe64-{quant}", quant=quant) for quant in ("q4_k_m", "mxfp4")),
        _HYBRID_08B,
        _DENSE_8B,
        replace(_DENSE_8B, name="8b-q4_k_m", quant="q4_k_m"),
        _TINY,
        replace(_TINY, name="tiny-q4_0", quant="q4_0"),
        replace(_TINY, name="tiny-q4_k_m", quant="q4_k_m", n_embd=256, n_ff=512, n_layer=8),
        _TINY_MOE,
        _TINY_HYBRID,
    )
}


def find(name: str) -> Shape:
    """Return the shape of that name. Raises: KeyError that lists the known names."""
    if name not in SHAPES:
        raise KeyError(f"no shape {name!r}; choose from {', '.join(SHAPES)}")
    return SHAPES[name]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the file. `dims` are rows-first (numpy order). `std` is the standard deviation of its weights; 0 if
    all are `fill`.
    """

    name: str
    dims: tuple[int, ...]
    kind: str  # a type of blocks.BLOCKS, or "f32"
    std: float
    is_vocab: bool = False  # rows are tokens; those of unreachable tokens are zero
    fill: float = 1.0


def tensors(shape: Shape) -> list[TensorSpec]:
    """Return every tensor, in file order.

    Standard deviations keep activations near 1 after each norm: 1/sqrt(inputs); the head gives logits of std 1.5.
    """
    embd, kv = shape.n_embd, shape.n_embd_kv
    head = 1.5 / embd**0.5
    most, output, _ = MIXES[shape.quant]
    out = [
        TensorSpec("token_embd.weight", (shape.n_vocab, embd), output if shape.is_tied else most, head, shape.is_tied)
    ]
    for i in range(shape.n_layer):
        p = f"blk.{i}."
        out.append(TensorSpec(p + "attn_norm.weight", (embd,), "f32", 0.0))
        out += _delta_net(p, shape, i) if shape.n_state_head and (i + 1) % 4 else _attention(p, shape, kv, i)
        norm = "post_attention_norm" if shape.arch == "qwen35" else "ffn_norm"
        out.append(TensorSpec(f"{p}{norm}.weight", (embd,), "f32", 0.0))
        out += _experts(p, shape, i) if shape.n_expert else _dense(p, shape, i)
    out.append(TensorSpec("output_norm.weight", (embd,), "f32", 0.0))
    if not shape.is_tied:
        out.append(TensorSpec("output.weight", (shape.n_vocab, embd), output, head, True))
    return out


def kinds(shape: Shape, layer: int) -> tuple[str, str]:
    """Return the type of a layer's matrices, and that of attn_v and ffn_down.

    In about half of the layers these two get more bits.
    """
    most, _, more = MIXES[shape.quant]
    eighth = shape.n_layer // 8
    has_more = layer < eighth or layer >= 7 * shape.n_layer // 8 or (layer - eighth) % 3 == 2
    return most, more if has_more else most


def _attention(p: str, shape: Shape, kv: int, layer: int) -> list[TensorSpec]:
    embd, std = shape.n_embd, shape.n_embd**-0.5
    most, more = kinds(shape, layer)
    width, is_gated = shape.n_head * shape.head_dim, shape.arch == "qwen35"  # qwen35's Q has a gate beside each head
    sizes = {"q": (2 * width if is_gated else width, most), "k": (kv, most), "v": (kv, more)}
    out = [TensorSpec(f"{p}attn_{x}.weight", (n, embd), kind, std) for x, (n, kind) in sizes.items()]
    if shape.arch == "qwen2":
        out += [TensorSpec(f"{p}attn_{x}.bias", (n,), "f32", 0.1) for x, (n, _) in sizes.items()]
    if is_gated:
        out += [TensorSpec(f"{p}attn_{x}_norm.weight", (shape.head_dim,), "f32", 0.0) for x in "qk"]
    return [*out, TensorSpec(p + "attn_output.weight", (embd, width), most, std)]


def _delta_net(p: str, shape: Shape, layer: int) -> list[TensorSpec]:
    """Return the tensors of a delta net with as many heads of keys as of values; each token roughly halves a
    state.
    """
    n, dim, embd = shape.n_state_head, shape.n_state_dim, shape.n_embd
    most, _ = kinds(shape, layer)
    sizes = {"attn_qkv": 3 * n * dim, "attn_gate": n * dim, "ssm_beta": n, "ssm_alpha": n}
    return [
        *(TensorSpec(f"{p}{name}.weight", (rows, embd), most, embd**-0.5) for name, rows in sizes.items()),
        TensorSpec(p + "ssm_conv1d.weight", (3 * n * dim, 4), "f32", 0.5),
        TensorSpec(p + "ssm_dt.bias", (n,), "f32", 0.1),
        TensorSpec(p + "ssm_a", (n,), "f32", 0.0, fill=-1.0),
        TensorSpec(p + "ssm_norm.weight", (dim,), "f32", 0.0),
        TensorSpec(p + "ssm_out.weight", (embd, n * dim), most, (n * dim) ** -0.5),
    ]


def _dense(p: str, shape: Shape, layer: int) -> list[TensorSpec]:
    embd, ff = shape.n_embd, shape.n_ff
    most, more = kinds(shape, layer)
    return [
        TensorSpec(p + "ffn_gate.weight", (ff, embd), most, embd**-0.5),
        TensorSpec(p + "ffn_up.weight", (ff, embd), most, embd**-0.5),
        TensorSpec(p + "ffn_down.weight", (embd, ff), more, ff**-0.5),
    ]


def _experts(p: str, shape: Shape, layer: int) -> list[TensorSpec]:
    embd, ff, n = shape.n_embd, shape.n_ff, shape.n_expert
    most, more = kinds(shape, layer)
    return [
        TensorSpec(p + "ffn_gate_inp.weight", (n, embd), "f32", embd**-0.5),
        TensorSpec(p + "ffn_gate_exps.weight", (n, ff, embd), most, embd**-0.5),
        TensorSpec(p + "ffn_up_exps.weight", (n, ff, embd), most, embd**-0.5),
        TensorSpec(p + "ffn_down_exps.weight", (n, embd, ff), more, ff**-0.5),
    ]
