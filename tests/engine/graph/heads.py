"""Models whose prediction heads (MTP) or EAGLE 3 model are known to draft the model's next token, or its last one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from perf.gguf_file import add_vocabulary, save
from tests.engine.graph.models import MODELS, N_VOCAB, RECURRENT, Model, write

WITH_HEADS = {
    "qwen35": replace(RECURRENT["qwen35-next"], is_tied=False),
    "glm4moe": MODELS["glm4moe-drafting"],
}


# the model's step takes much longer than its heads, so that drafts pay on any machine
DEEP = replace(
    WITH_HEADS["glm4moe"],
    n_layer=33,
    model_tensors={name.replace("blk.3.", "blk.32."): n for name, n in WITH_HEADS["glm4moe"].model_tensors.items()},
)


def with_heads(model: Model, path: Path, says_next: bool) -> str:
    """Write a model in which each token follows only from the one before, because no layer adds anything.

    Its heads either go by the token, and so draft the model's next token, or go by the state, and so draft its last
    one.
    """
    write(replace(model, quant="f32"), path)
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if any(part in tensor.name for part in ("attn_output", "ffn_down", "ssm_out")):
            tensor.data[:] = 0
        elif tensor.name.endswith(("enorm.weight", "hnorm.weight", "output_norm.weight")):
            tensor.data[:] = 1
        elif tensor.name.endswith("eh_proj.weight"):
            n = tensor.data.shape[0]
            tensor.data[:] = 0
            tensor.data[:, :n] = np.eye(n) * says_next
            tensor.data[:, n:] = np.eye(n) * (not says_next)
    reader.data.flush()
    return str(path)


N_LAYER = 33  # a step takes much longer than its draft, so that drafts pay on any machine
EAGLE_LAYERS = [1, 16, 32]


def with_eagle(folder: Path, says_next: bool, has_own: bool = True) -> tuple[str, str]:
    """Write a model in which each token follows only from the one before, and an EAGLE 3 model that recognizes tokens
    by the states.

    Each row of the EAGLE 3 model reads the state of the token before its own. So its output gives the token two places
    after that one or, with `says_next` false, one place after it, which is the row's own token. `has_own`: it has its
    own embedding and output; otherwise it uses the model's.
    """
    target = with_heads(replace(MODELS["llama"], quant="f32", n_layer=N_LAYER), folder / "target.gguf", says_next)
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(target).tensors}
    embedding, output = tensors["token_embd.weight"], tensors["output.weight"]
    normed = embedding / np.sqrt((embedding**2).mean(axis=1, keepdims=True))
    follows = (normed @ output.T).argmax(axis=1)
    known = np.zeros_like(output)
    np.add.at(known, follows[follows] if says_next else follows, normed)
    draw = np.random.default_rng(5)
    drawn = {"attn_q": (128, 256), "attn_k": (64, 256), "attn_v": (64, 256), "ffn_gate": (64, 128), "ffn_up": (64, 128)}
    made = {f"blk.0.{name}.weight": draw.standard_normal(dims) / 16 for name, dims in drawn.items()}
    made |= {f"blk.0.{name}.weight": np.ones(128) for name in ("attn_norm", "attn_norm_2", "ffn_norm")}
    made |= {"blk.0.attn_output.weight": np.zeros((128, 128)), "blk.0.ffn_down.weight": np.zeros((128, 64))}
    made |= {"fc.weight": np.hstack([np.zeros((128, 128)), np.eye(128), np.zeros((128, 128))])}
    made |= {"output_norm.weight": np.ones(128)}
    if has_own:
        made |= {"token_embd.weight": embedding, "output.weight": known}
    path = folder / "eagle.gguf"
    _write_eagle(path, {name: data.astype(np.float32) for name, data in made.items()})
    return target, str(path)


def some_tokens(folder: Path, tokens: list[int]) -> str:
    """Return the EAGLE 3 model in the folder, with an output for these tokens only."""
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(folder / "eagle.gguf").tensors}
    tensors["output.weight"] = tensors["output.weight"][: len(tokens)]
    path = folder / "some.gguf"
    _write_eagle(path, tensors | {"d2t": np.array(tokens, np.int64)})
    return str(path)


def one_token_more(folder: Path) -> str:
    """Return the EAGLE 3 model in the folder, with a token that the model does not have: it drafts no other."""
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(folder / "eagle.gguf").tensors}
    tensors["token_embd.weight"] = np.vstack([tensors["token_embd.weight"], np.zeros((1, 128), np.float32)])
    tensors["output.weight"] = tensors["output.weight"][:1]
    path = folder / "more.gguf"
    _write_eagle(path, tensors | {"d2t": np.array([N_VOCAB], np.int64)}, N_VOCAB + 1)
    return str(path)


def _write_eagle(path: Path, tensors: dict[str, np.ndarray], n_vocab: int = N_VOCAB) -> None:
    writer = gguf.GGUFWriter(path, "eagle3")
    add_vocabulary(writer, n_vocab)
    writer.add_context_length(512)
    writer.add_embedding_length(128)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(32)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_array("eagle3.target_layers", EAGLE_LAYERS)
    writer.add_uint32("eagle3.target_hidden_size", 128)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    save(writer)
