"""Tiny random models whose memory cannot be rolled back or copied in part: sliding window, recurrent, hybrid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from perf.gguf_file import add_vocabulary, save

N_VOCAB, N_EMBD, N_FF, N_LAYER, N_HEAD = 320, 64, 128, 2, 2
D_CONV, D_INNER, D_STATE, DT_RANK = 4, 2 * N_EMBD, 16, 8
WINDOW = 32

Tensor = tuple[str, tuple[int, ...]]

_FFN: list[Tensor] = [
    ("ffn_norm.weight", (N_EMBD,)),
    ("ffn_gate.weight", (N_FF, N_EMBD)),
    ("ffn_up.weight", (N_FF, N_EMBD)),
    ("ffn_down.weight", (N_EMBD, N_FF)),
]
_ATTENTION: list[Tensor] = [(f"attn_{x}.weight", (N_EMBD, N_EMBD)) for x in ("q", "k", "v", "output")]
_SSM: list[Tensor] = [
    ("ssm_in.weight", (2 * D_INNER, N_EMBD)),
    ("ssm_conv1d.weight", (D_INNER, D_CONV)),
    ("ssm_conv1d.bias", (D_INNER,)),
    ("ssm_x.weight", (DT_RANK + 2 * D_STATE, D_INNER)),
    ("ssm_dt.weight", (D_INNER, DT_RANK)),
    ("ssm_dt.bias", (D_INNER,)),
    ("ssm_a", (D_INNER, D_STATE)),
    ("ssm_d", (D_INNER,)),
    ("ssm_out.weight", (N_EMBD, D_INNER)),
]
_HYBRID_NORMS: list[Tensor] = [
    ("ssm_dt_norm.weight", (DT_RANK,)),
    ("ssm_b_norm.weight", (D_STATE,)),
    ("ssm_c_norm.weight", (D_STATE,)),
]
_WINDOW_NORMS: list[Tensor] = [
    ("post_attention_norm.weight", (N_EMBD,)),
    ("attn_q_norm.weight", (N_EMBD // N_HEAD,)),
    ("attn_k_norm.weight", (N_EMBD // N_HEAD,)),
    ("post_ffw_norm.weight", (N_EMBD,)),
]
LAYERS: dict[str, list[list[Tensor]]] = {  # by architecture: the tensors of each layer, besides its first norm
    "gemma3": [_ATTENTION + _WINDOW_NORMS + _FFN] * N_LAYER,
    "mamba": [_SSM] * N_LAYER,
    "jamba": [_SSM + _HYBRID_NORMS + _FFN, _ATTENTION + _FFN],
}


def write(arch: str, path: Path) -> None:
    """Write a model of that architecture, the same one every time."""
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, arch)
    rng = np.random.default_rng(3)
    for name, dims in _tensors(arch):
        writer.add_tensor(name, _values(name, dims, rng))
    save(writer)


def _tensors(arch: str) -> Iterator[Tensor]:
    yield "token_embd.weight", (N_VOCAB, N_EMBD)
    for i, layer in enumerate(LAYERS[arch]):
        yield f"blk.{i}.attn_norm.weight", (N_EMBD,)
        yield from ((f"blk.{i}.{name}", dims) for name, dims in layer)
    yield "output_norm.weight", (N_EMBD,)


def _values(name: str, dims: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.endswith("ssm_a"):  # the decay is negative and covers many time scales
        return -np.broadcast_to(np.linspace(0.2, 4.0, dims[1], dtype=np.float32), dims).copy()
    if "norm" in name or name.endswith("ssm_d"):
        return np.ones(dims, np.float32)
    scale = 1.0 if "embd" in name else dims[-1] ** -0.5
    return (rng.standard_normal(dims) * scale).astype(np.float32)


def _add_metadata(writer: gguf.GGUFWriter, arch: str) -> None:
    writer.add_name(f"random {arch}")
    writer.add_context_length(4096)
    writer.add_block_count(N_LAYER)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0 if arch == "mamba" else N_FF)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_head_count(0 if arch == "mamba" else N_HEAD)
    if arch == "jamba":
        writer.add_head_count_kv([0, N_HEAD])  # a layer without a head is recurrent
    elif arch == "gemma3":
        writer.add_head_count_kv(N_HEAD)
        writer.add_sliding_window(WINDOW)
        writer.add_rope_freq_base(1e4)
    if arch != "gemma3":
        writer.add_ssm_conv_kernel(D_CONV)
        writer.add_ssm_inner_size(D_INNER)
        writer.add_ssm_state_size(D_STATE)
        writer.add_ssm_time_step_rank(DT_RANK)
    add_vocabulary(writer, N_VOCAB)
