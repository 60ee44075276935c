"""The shapes of real models that random weights are made in. Values only.

Step times depend on a model's shape and its quantisation, not on what its weights say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FORMAT_VERSION = 1  # part of the cache key: raise it when the same shape gives other bytes
BLOCK = 32  # weights per quantisation block of Q8_0 and Q4_0


@dataclass(frozen=True, slots=True)
class Shape:
    """One model. All counts as its GGUF metadata states them."""

    name: str
    arch: str  # "qwen2" or "llama"
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
    quant: str = "q8_0"  # of the matrices; an output head or tied embedding stays q8_0

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def n_embd_kv(self) -> int:
        return self.head_dim * self.n_head_kv

    @property
    def file_name(self) -> str:
        return f"{self.name}-v{FORMAT_VERSION}.gguf"


_DENSE_05B = Shape("0.5b-q8_0", "qwen2", 24, 896, 4864, 14, 2, 151_936, True, 32_768, 1e6)
_DENSE_1B = Shape("1b-q8_0", "llama", 16, 2048, 8192, 32, 8, 128_256, True, 131_072, 5e5)
_MOE_1B = Shape("1b-moe-q8_0", "llama", 24, 1024, 512, 16, 8, 49_152, True, 131_072, 1e4, n_expert=32, n_expert_used=8)
_DENSE_8B = Shape("8b-q8_0", "llama", 32, 4096, 14_336, 32, 8, 128_256, False, 131_072, 5e5)
_TINY = Shape("tiny-q8_0", "qwen2", 2, 64, 128, 2, 1, 512, True, 32_768, 1e4)
_TINY_MOE = Shape("tiny-moe-q8_0", "llama", 2, 64, 64, 2, 1, 512, True, 32_768, 1e4, n_expert=4, n_expert_used=2)

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _DENSE_05B,
        replace(_DENSE_05B, name="0.5b-q4_0", quant="q4_0"),
        _DENSE_1B,
        replace(_DENSE_1B, name="1b-q4_0", quant="q4_0"),
        _MOE_1B,
        _DENSE_8B,
        _TINY,
        replace(_TINY, name="tiny-q4_0", quant="q4_0"),
        _TINY_MOE,
    )
}


def find(name: str) -> Shape:
    """The shape of that name. Raises KeyError that lists the names there are."""
    if name not in SHAPES:
        raise KeyError(f"no shape {name!r}; there are: {', '.join(SHAPES)}")
    return SHAPES[name]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the file. `dims` are rows-first (numpy order); `std` is that of its weights, 0 for all ones."""

    name: str
    dims: tuple[int, ...]
    kind: str  # "q8_0", "q4_0" or "f32"
    std: float
    is_vocab: bool = False  # rows are tokens: those of unreachable tokens are zero


def tensors(shape: Shape) -> list[TensorSpec]:
    """Every tensor, in file order.

    Standard deviations keep activations near 1 after each norm: 1/sqrt(inputs); the head gives logits of std 1.5.
    """
    embd, kv = shape.n_embd, shape.n_embd_kv
    head = 1.5 / embd**0.5
    out = [TensorSpec("token_embd.weight", (shape.n_vocab, embd), "q8_0" if shape.is_tied else shape.quant, head, shape.is_tied)]
    for i in range(shape.n_layer):
        p = f"blk.{i}."
        out.append(TensorSpec(p + "attn_norm.weight", (embd,), "f32", 0.0))
        out += _attention(p, shape, kv)
        out.append(TensorSpec(p + "ffn_norm.weight", (embd,), "f32", 0.0))
        out += _experts(p, shape) if shape.n_expert else _dense(p, shape)
    out.append(TensorSpec("output_norm.weight", (embd,), "f32", 0.0))
    if not shape.is_tied:
        out.append(TensorSpec("output.weight", (shape.n_vocab, embd), "q8_0", head, True))
    return out


def _attention(p: str, shape: Shape, kv: int) -> list[TensorSpec]:
    embd, std = shape.n_embd, shape.n_embd**-0.5
    sizes = {"q": embd, "k": kv, "v": kv}
    out = [TensorSpec(f"{p}attn_{x}.weight", (n, embd), shape.quant, std) for x, n in sizes.items()]
    if shape.arch == "qwen2":
        out += [TensorSpec(f"{p}attn_{x}.bias", (n,), "f32", 0.1) for x, n in sizes.items()]
    return [*out, TensorSpec(p + "attn_output.weight", (embd, embd), shape.quant, std)]


def _dense(p: str, shape: Shape) -> list[TensorSpec]:
    embd, ff = shape.n_embd, shape.n_ff
    return [
        TensorSpec(p + "ffn_gate.weight", (ff, embd), shape.quant, embd**-0.5),
        TensorSpec(p + "ffn_up.weight", (ff, embd), shape.quant, embd**-0.5),
        TensorSpec(p + "ffn_down.weight", (embd, ff), shape.quant, ff**-0.5),
    ]


def _experts(p: str, shape: Shape) -> list[TensorSpec]:
    embd, ff, n = shape.n_embd, shape.n_ff, shape.n_expert
    return [
        TensorSpec(p + "ffn_gate_inp.weight", (n, embd), "f32", embd**-0.5),
        TensorSpec(p + "ffn_gate_exps.weight", (n, ff, embd), shape.quant, embd**-0.5),
        TensorSpec(p + "ffn_up_exps.weight", (n, ff, embd), shape.quant, embd**-0.5),
        TensorSpec(p + "ffn_down_exps.weight", (n, embd, ff), shape.quant, ff**-0.5),
    ]
