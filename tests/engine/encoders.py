"""Small random embedding models and rerankers, with the metadata and tensor names of real ones.

They stand for real models, which are not available to the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from perf.gguf_file import add_vocabulary, save

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = [chr(c) for c in range(ord("!"), ord("~") + 1) if chr(c) != "["]
WORDS = ("the", "shell", "is", "socket", "cat", "dog", "tree", "query", "document", "of", "and")
WPM_TOKENS = [*SPECIAL, *(f"▁{piece}" for piece in (*WORDS, *LETTERS)), *LETTERS]
N_VOCAB_BPE = 320
N_LAYER, N_EMBD, N_FF, N_HEAD = 2, 64, 96, 4
N_CTX = 96


@dataclass(frozen=True)
class Encoder:
    """`pooling`: llama.h's number; None: the file does not say. `n_scores`: rows of a classifier, and labels."""

    arch: str
    pooling: int | None
    n_scores: int = 0
    has_head: bool = False  # a dense layer before the classifier
    has_classifier: bool = True  # False: there are only its labels
    n_ctx: int = N_CTX


ENCODERS = {
    "bert": Encoder("bert", 2),
    "bert-mean": Encoder("bert", 1),
    "bert-silent": Encoder("bert", None),
    "bert-rank": Encoder("bert", 4, n_scores=1, has_head=True),
    "bert-labels": Encoder("bert", 4, n_scores=3),
    "nomic-bert": Encoder("nomic-bert", 1),
    "qwen3-embedding": Encoder("qwen3", 3, n_ctx=512),
    "qwen3-reranker": Encoder("qwen3", 4, n_scores=2, n_ctx=512),
}
RERANK_PROMPT = "query: {query} document: {document} ?"  # as converters write it: tokenizer.chat_template.rerank


def write(model: Encoder, path: Path, seed: int = 1) -> str:
    """Write the model; the same seed gives the same weights."""
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_name(f"random {model.arch}")
    is_bert = model.arch != "qwen3"
    n_vocab = len(WPM_TOKENS) if is_bert else N_VOCAB_BPE
    _metadata(writer, model)
    if is_bert:
        _bert_vocabulary(writer)
    else:
        add_vocabulary(writer, n_vocab)
        if model.pooling == 4:
            writer.add_string("tokenizer.chat_template.rerank", RERANK_PROMPT)
    draw = np.random.default_rng(seed)
    for name, dims in (_bert_tensors(model) if is_bert else _qwen_tensors(model)).items():
        scale = 0.2 if "token_embd.weight" in name else dims[-1] ** -0.5 if len(dims) > 1 else 0.1
        writer.add_tensor(name, (draw.standard_normal(dims) * scale + ("norm.weight" in name)).astype(np.float32))
    save(writer)
    return str(path)


def _metadata(writer: gguf.GGUFWriter, model: Encoder) -> None:
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    if model.pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(model.pooling))
    if model.n_scores > 1:
        writer.add_array(f"{model.arch}.classifier.output_labels", [f"label {i}" for i in range(model.n_scores)])
    if model.arch == "qwen3":
        writer.add_head_count_kv(N_HEAD // 2)
        writer.add_key_length(N_EMBD // N_HEAD)
        writer.add_value_length(N_EMBD // N_HEAD)
        writer.add_layer_norm_rms_eps(1e-6)
    else:
        writer.add_causal_attention(False)
        writer.add_layer_norm_eps(1e-12)
    if model.arch == "nomic-bert":
        writer.add_rope_freq_base(1000.0)


def _bert_vocabulary(writer: gguf.GGUFWriter) -> None:
    """WordPiece as the converter writes it: words begin with a low line, and their continuations do not."""
    writer.add_tokenizer_model("bert")
    writer.add_token_list(WPM_TOKENS)
    kinds = [gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in WPM_TOKENS]
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_type_count(2)
    for add, name in (
        (writer.add_pad_token_id, "[PAD]"),
        (writer.add_unk_token_id, "[UNK]"),
        (writer.add_bos_token_id, "[CLS]"),
        (writer.add_eos_token_id, "[SEP]"),
        (writer.add_sep_token_id, "[SEP]"),
        (writer.add_mask_token_id, "[MASK]"),
    ):
        add(SPECIAL.index(name))


def _bert_tensors(model: Encoder) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(WPM_TOKENS), N_EMBD),
        "token_types.weight": (2, N_EMBD),
        "token_embd_norm.weight": (N_EMBD,),
        "token_embd_norm.bias": (N_EMBD,),
    }
    if model.arch == "bert":
        out["position_embd.weight"] = (model.n_ctx, N_EMBD)
    if model.has_head:
        out |= {"cls.weight": (N_EMBD, N_EMBD), "cls.bias": (N_EMBD,)}
    if model.n_scores and model.has_classifier:
        out |= {"cls.output.weight": (model.n_scores, N_EMBD), "cls.output.bias": (model.n_scores,)}
    for i in range(N_LAYER):
        p = f"blk.{i}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            out[f"{p}{name}.weight"] = (N_EMBD, N_EMBD)
        ups = ("ffn_up",) if model.arch == "bert" else ("ffn_up", "ffn_gate")
        out |= {f"{p}{name}.weight": (N_FF, N_EMBD) for name in ups}
        out[f"{p}ffn_down.weight"] = (N_EMBD, N_FF)
        for name in ("attn_output_norm", "layer_output_norm"):
            out |= {f"{p}{name}.weight": (N_EMBD,), f"{p}{name}.bias": (N_EMBD,)}
        if model.arch == "bert":
            out |= {f"{p}{name}.bias": (N_EMBD,) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down")}
            out[f"{p}ffn_up.bias"] = (N_FF,)
    return out


def _qwen_tensors(model: Encoder) -> dict[str, tuple[int, ...]]:
    dim = N_EMBD // N_HEAD
    out: dict[str, tuple[int, ...]] = {"token_embd.weight": (N_VOCAB_BPE, N_EMBD), "output_norm.weight": (N_EMBD,)}
    if model.n_scores and model.has_classifier:
        out["cls.output.weight"] = (model.n_scores, N_EMBD)
    for i in range(N_LAYER):
        p = f"blk.{i}."
        out |= {f"{p}{name}.weight": (N_EMBD,) for name in ("attn_norm", "ffn_norm")}
        out |= {f"{p}{name}.weight": (dim,) for name in ("attn_q_norm", "attn_k_norm")}
        out |= {p + "attn_q.weight": (N_EMBD, N_EMBD), p + "attn_output.weight": (N_EMBD, N_EMBD)}
        out |= {f"{p}attn_{name}.weight": (N_EMBD // 2, N_EMBD) for name in "kv"}
        out |= {f"{p}ffn_{name}.weight": (N_FF, N_EMBD) for name in ("gate", "up")}
        out[f"{p}ffn_down.weight"] = (N_EMBD, N_FF)
    return out
