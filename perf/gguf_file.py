"""Writes a shape as a GGUF file that llama.cpp loads: random weights, one token per byte of text."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np

from native.cache import cache_root
from perf.blocks import BlockPool, byte_dims
from perf.shapes import Shape, TensorSpec, find, tensors

EOS_ID = 256
N_BYTES = 256
_NORMAL, _CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
_FTYPE = {
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q4_k_m": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "q5_k_m": gguf.LlamaFileType.MOSTLY_Q5_K_M,
    "q6_k": gguf.LlamaFileType.MOSTLY_Q6_K,
    "iq4_xs": gguf.LlamaFileType.MOSTLY_IQ4_XS,
    "mxfp4": gguf.LlamaFileType.MOSTLY_MXFP4_MOE,
}
_TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


def byte_symbols() -> list[str]:
    """Return the printable stand-in that byte-level BPE uses for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(N_BYTES)]


def vocabulary(n_vocab: int) -> tuple[list[str], list[int]]:
    """Return tokens and types: 256 bytes, one end token, then words that no merge can form (text of printable
    ASCII).
    """
    words = [f"_{i:x}" for i in range(n_vocab - N_BYTES - 1)]
    tokens = [*byte_symbols(), "<|end|>", *words]
    types = [int(_NORMAL)] * n_vocab
    types[EOS_ID] = int(_CONTROL)
    return tokens, types


def dead_tokens() -> np.ndarray:
    """Return tokens that random logits must never choose: the end token, and bytes that are not printable ASCII.

    Their head rows are zero, so that every generated token is one whole event of text and no stream ends early.
    """
    return np.array([*range(0x20), *range(0x7F, N_BYTES), EOS_ID])


def write(shape: Shape, path: Path) -> None:
    """Write the file whole or not at all (a temporary name, then a rename)."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(part, shape.arch)
    _add_metadata(writer, shape)
    add_vocabulary(writer, shape.n_vocab)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)
    specs = tensors(shape)
    for spec in specs:
        _declare(writer, spec)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        pool, dead = BlockPool(), dead_tokens()
        for spec in specs:
            writer.write_tensor_data(pool.make(spec, dead))
        writer.close()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _declare(writer: gguf.GGUFWriter, spec: TensorSpec) -> None:
    dims = byte_dims(spec)
    if spec.kind == "f32":
        writer.add_tensor_info(spec.name, dims, np.dtype(np.float32), 4 * int(np.prod(dims)))
    else:
        writer.add_tensor_info(
            spec.name, dims, np.dtype(np.uint8), int(np.prod(dims)), gguf.GGMLQuantizationType[spec.kind.upper()]
        )


def _add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"random {shape.name}")
    writer.add_file_type(_FTYPE[shape.quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(shape.n_ctx_train)
    writer.add_block_count(shape.n_layer)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_rope_dimension_count(shape.n_rot or shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
    if shape.n_state_head:
        _add_state(writer, shape)


def _add_state(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Add the keys of qwen35's layers; the rotary positions of text are one third each."""
    n, dim, pairs = shape.n_state_head, shape.n_state_dim, shape.n_rot // 2
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_sections([-(-pairs // 3), -(-(pairs - 1) // 3), pairs // 3, 0])
    for key, value in (
        ("full_attention_interval", 4), ("ssm.conv_kernel", 4), ("ssm.inner_size", n * dim), ("ssm.state_size", dim),
        ("ssm.time_step_rank", n), ("ssm.group_count", n),
    ):  # fmt: skip
        writer.add_uint32(f"{shape.arch}.{key}", value)


def add_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Add a tokenizer of `vocabulary`, for any model."""
    tokens, types = vocabulary(n_vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # llama.cpp requires a merge: this one joins two NUL bytes, which no prompt contains
    writer.add_token_merges([f"{tokens[0]} {tokens[0]}"])
    writer.add_bos_token_id(EOS_ID)
    writer.add_eos_token_id(EOS_ID)


def save(writer: gguf.GGUFWriter) -> None:
    """Write the metadata and the tensors that were added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cache_dir() -> Path:
    """Return the folder in which generated models are kept, outside the source tree."""
    return cache_root() / "perf"


def model_file(model: str) -> Path:
    """Return the path of a model: a GGUF, or a shape, whose file is made if the cache does not have it."""
    return Path(model) if model.endswith(".gguf") else ensure(model)


def ensure(name: str, folder: Path | None = None) -> Path:
    """Return the path of the shape's file; makes the file first if the cache does not have it."""
    shape = find(name)
    path = (folder or cache_dir()) / shape.file_name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(shape, path)
    return path
