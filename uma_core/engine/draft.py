"""A draft model: a small model that shares the served one's vocabulary, in an engine of its own.

A model that does not fit is refused by its header, before anything is loaded.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace

import numpy as np

from uma_core.config.options import EngineOptions, SpeculationOptions
from uma_core.engine.api import Engine, Heads, MemoryUse
from uma_core.engine.header import Header
from uma_core.engine.lib import lib
from uma_core.engine.llama.encoder import is_encoder
from uma_core.engine.llama.heads import EAGLE, LlamaHeads, check_heads, estimate_heads
from uma_core.engine.llama.params import check_model
from uma_core.engine.select.choose import missing_in_graph
from uma_core.engine.select.open import as_trained, estimate_engine, open_engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.models import default_model_path

OPTION = "speculation.draft_model"
N_SEQ = 2  # streams for which it drafts at a time, see policy/stages/speculate.py
N_BATCH = 64  # most tokens of a prompt that it reads at once: a stream never waits for more
# most tokens by which the two vocabularies may differ in length, as in llama.cpp (common/speculative.cpp)
PADDING = 128
EAGLE_ARCH = "eagle3"
# an EAGLE model's own embedding, and the list of tokens that its output covers; either may be missing
EAGLE_TOKENS = ("token_embd.weight", "d2t")
EAGLE_COUNTS = ("embedding_length", "attention.head_count", "attention.head_count_kv", "context_length")
F16_BYTES = 2
SPECIAL = ("bos", "eos", "eot")
NO_ROLLBACK = "its memory cannot drop rejected draft tokens"
# metadata keys of models whose memory, in llama.cpp's engine, cannot drop its last tokens
NO_WAY_BACK = (".ssm.", ".wkv.", "attention.sliding_window")
STATES = (".ssm.", ".shortconv.")  # the same in the graph engine: its recurrent layers


def open_draft(engine: EngineOptions, path: str) -> Engine:
    """Load the draft model for the engine that these options open.

    Blocks. Raises as `check_draft` and `open_engine` do.
    """
    check_draft(engine, path)
    draft = open_engine(_options(engine, path))
    if not draft.info.capabilities.can_rollback or not draft.info.can_generate:
        draft.close()
        raise _unfit(path, NO_ROLLBACK)
    return draft


def is_eagle(engine: EngineOptions, path: str) -> bool:
    """Whether the draft model reads the served one's hidden states (EAGLE 3). Raises: MODEL_LOAD_FAILED."""
    if not path or engine.engine == "fake":
        return False
    with closing(Header(path)) as header:
        return header.arch == EAGLE_ARCH


def for_drafts(engine: EngineOptions, speculation: SpeculationOptions) -> EngineOptions:
    """Change the options so that the engine verifies drafts if it can, and keeps the states that a draft model reads.

    Raises: MODEL_LOAD_FAILED.
    """
    path = speculation.draft_model
    engine = replace(engine, takes_back=engine.mtp or bool(path) or speculation.mode != "off")
    if not path or engine.engine == "fake":
        return engine
    with closing(Header(path)) as header:
        return replace(engine, hidden_layers=_target_layers(header)) if header.arch == EAGLE_ARCH else engine


def _target_layers(header: Header) -> tuple[int, ...]:
    listed = header.of_arch().get("target_layers")
    return tuple(each for each in listed if isinstance(each, int)) if isinstance(listed, (list, tuple)) else ()


def open_heads(options: EngineOptions, path: str, engine: Engine) -> Heads:
    """Open the drafter that reads the engine's hidden states: an EAGLE 3 model, or with an empty `path` the model's own
    prediction heads. Close it before the engine.

    Blocks. Raises as `check_draft`, `check_heads` and `LlamaHeads` do.
    """
    if path:
        check_draft(options, path)
        return LlamaHeads(path, options, engine, EAGLE)
    check_heads(engine.info.model_path)
    return LlamaHeads(engine.info.model_path, options, engine)


def estimate_with_draft(engine: EngineOptions, speculation: SpeculationOptions, in_use: str = "llama") -> MemoryUse:
    """Estimate the memory of the engine and of its draft model, if there is one, without allocating it.

    `in_use`: as for `open_engine`.

    Raises as `check_draft` and `estimate_engine` do, and CONFIG_INVALID if the heads for `engine.mtp` are missing.
    """
    path = speculation.draft_model
    if path:  # first: the engine's own refusal of layers that a misfit would read misleads
        check_draft(engine, path)
    need = estimate_engine(for_drafts(engine, speculation), in_use=in_use)
    if not path and not engine.mtp:
        return need
    if engine.engine != "fake":
        with closing(Header(_served(engine))) as header:
            engine, _ = as_trained(engine, header.n_ctx_trained)
    if engine.mtp:
        need = _sum(need, _estimate_heads(engine))
    if not path:
        return need
    if is_eagle(engine, path):  # its file is mapped, and its KV is that of one layer
        return need._replace(weights=need.weights + os.path.getsize(path), kv=need.kv + _one_layer(engine, path))
    return _sum(need, estimate_engine(_options(engine, path)))


def _one_layer(engine: EngineOptions, path: str) -> int:
    """Bytes of an EAGLE model's K and V, for all cells."""
    with closing(Header(path)) as header:
        n_embd, n_head, n_kv, n_ctx = (_count(header, key) for key in EAGLE_COUNTS)
    n_each = (n_kv or n_head) * (n_embd // max(1, n_head))
    return 2 * F16_BYTES * n_each * (engine.n_ctx or n_ctx * engine.n_seq)


def _count(header: Header, key: str) -> int:
    """Return a metadata value, that of the first layer if the file lists it by layer; 0: the file has no such value."""
    value = header.of_arch().get(key)
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) else 0


def _sum(one: MemoryUse, other: MemoryUse) -> MemoryUse:
    return MemoryUse(*map(sum, zip(one, other, strict=True)))


def _estimate_heads(engine: EngineOptions) -> MemoryUse:
    """Estimate the heads. Raises: MODEL_LOAD_FAILED; CONFIG_INVALID for a model without prediction heads."""
    if engine.engine == "fake":
        raise UmaError(
            ErrorCode.CONFIG_INVALID, "engine.mtp: a simulated model has no prediction heads", option="engine.mtp"
        )
    return estimate_heads(_served(engine), engine)


def check_draft(engine: EngineOptions, path: str) -> None:
    """Compare the headers of both models.

    Raises: MODEL_LOAD_FAILED; CONFIG_INVALID for a model that cannot draft for the other.
    """
    if engine.engine == "fake":
        return
    with closing(Header(path)) as draft, closing(Header(_served(engine))) as target:
        if is_encoder(draft):
            raise _unfit(path, "it does not generate text")
        _compare(draft, target, path)
        if draft.arch == EAGLE_ARCH:
            _check_eagle(draft, target, path)
            return
        _check_kv(engine, path)
        parts = NO_WAY_BACK if _engine(engine, draft) == "llama" else STATES
        if any(part in key for part in parts for key in draft.meta):
            raise _unfit(path, NO_ROLLBACK)


def _check_kv(engine: EngineOptions, path: str) -> None:
    """Check that the draft model can use the served model's KV type. Raises: CONFIG_INVALID, naming the draft model."""
    try:
        check_model(replace(engine, moe_top_k=0), path)
    except UmaError as error:
        raise _unfit(path, error.message) from error


def _check_eagle(draft: Header, target: Header, path: str) -> None:
    """Check that the layers whose inputs it reads exist in the served model, and have the width that it expects."""
    width, n_layer = (target.of_arch().get(key) for key in ("embedding_length", "block_count"))
    wanted = draft.of_arch().get("target_hidden_size")
    if wanted != width:
        raise _unfit(path, f"it reads {wanted} numbers per layer, the model has {width}")
    layers = _target_layers(draft)
    if not layers or not isinstance(n_layer, int) or not all(0 <= layer <= n_layer for layer in layers):
        raise _unfit(path, f"it reads layers {list(layers)}, the model has {n_layer}")

    n_vocab, embedding, listed = len(draft.strings("tokenizer.ggml.tokens")), *map(draft.tensors.get, EAGLE_TOKENS)
    if embedding is not None and embedding.ne[1] < n_vocab:
        raise _unfit(path, f"it has {embedding.ne[1]} embeddings for {n_vocab} tokens")
    if listed is None:
        return
    n, file = listed.ne[0], draft.paths[listed.file]
    is_whole = listed.type == lib.GGML_TYPE_I64 and 0 < n == listed.n_bytes // 8 <= os.path.getsize(file) // 8
    tokens = np.fromfile(file, np.int64, n if is_whole else 0, offset=listed.offset)
    if len(tokens) < n or not n or tokens.min() < 0 or tokens.max() >= n_vocab:
        raise _unfit(path, f"its list of tokens is damaged, or names tokens beyond the vocabulary of {n_vocab}")


def _compare(draft: Header, target: Header, path: str) -> None:
    """Check that each token means the same in both models."""
    kinds = [header.meta.get("tokenizer.ggml.model") for header in (draft, target)]
    if kinds[0] != kinds[1]:
        raise _unfit(path, f"its tokenizer is {kinds[0]!r}, that of the model is {kinds[1]!r}")
    for name in SPECIAL:
        key = f"tokenizer.ggml.{name}_token_id"
        if draft.meta.get(key) != target.meta.get(key):
            raise _unfit(
                path, f"its {name} token is {draft.meta.get(key)}, that of the model is {target.meta.get(key)}"
            )
    ours, theirs = (header.strings("tokenizer.ggml.tokens") for header in (draft, target))
    if not ours or abs(len(ours) - len(theirs)) > PADDING:
        raise _unfit(path, f"it has {len(ours)} tokens, the model has {len(theirs)}")
    for token, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            raise _unfit(path, f"its token {token} is {mine!r:.60}, that of the model is {other!r:.60}")


def _unfit(path: str, why: str) -> UmaError:
    return UmaError(ErrorCode.CONFIG_INVALID, f"{OPTION}: {path} cannot draft for this model: {why}", option=OPTION)


def _served(engine: EngineOptions) -> str:
    return engine.model or str(default_model_path())


def _engine(engine: EngineOptions, draft: Header) -> str:
    return "llama" if missing_in_graph(draft, replace(engine, moe_top_k=0)) else "graph"


def _options(engine: EngineOptions, path: str) -> EngineOptions:
    """Return the options of the draft model's engine. Each text has as large a context as in the served model; features
    that the draft model does not need are off.
    """
    name, n_each = "fake", engine.n_ctx if engine.kv_mode == "unified" else engine.n_ctx // max(1, engine.n_seq)
    if engine.engine != "fake":
        with closing(Header(path)) as draft, closing(Header(_served(engine))) as target:
            name = _engine(engine, draft)
            n_known = (n_each, target.n_ctx_trained, draft.n_ctx_trained)
        n_each = min((n for n in n_known if n), default=0)
    return replace(
        engine,
        engine=name,
        model=path,
        n_ctx=N_SEQ * n_each,
        n_seq=N_SEQ,
        n_batch=N_BATCH,
        n_ubatch=N_BATCH,
        kv_mode="stream",
        prefill_lanes=0,
        lora={},
        lora_scale={},
        moe_top_k=0,
        deterministic=False,
    )
