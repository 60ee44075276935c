"""Drafters that read a model's hidden states, in a context of llama.cpp: the prediction heads (MTP) in the model's own
file, or an EAGLE 3 model in a file of its own.

Either is about one layer, and shares the matrices of embedding and output with the served model. With llama.cpp's
engine these are the engine's own. Beside the graph engine, llama.cpp maps the model's file once more, and the pages of
other layers are dropped, because nothing reads them again.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Engine, EngineInfo, MemoryUse
from uma_core.engine.header import Header, words_of_failure
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.estimate import context_bytes, lay_out_context
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.model import load_model
from uma_core.engine.llama.pages import read_only_mappings, release_mappings
from uma_core.engine.llama.params import decode_params, model_params
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import SeqId, TokenId

MTP, EAGLE = "engine.mtp", "speculation.draft_model"  # the options that ask for them
N_BATCH = 64  # most tokens of a text that are read at once: a stream never waits for more


class LlamaHeads:
    """See engine.api.Heads. Owns its contexts, and the models that it has loaded for them."""

    def __init__(self, path: str, options: EngineOptions, engine: Engine, option: str = MTP) -> None:
        """`path`: the file with the heads. `engine`: the one that verifies; it must outlive the heads. Blocks.

        Raises: CONFIG_INVALID (names `option`), MODEL_LOAD_FAILED.
        """
        info = engine.info
        self._owner = engine if isinstance(engine, LlamaEngine) else None
        self.name = os.path.basename(path) if option == EAGLE else f"the prediction heads of {os.path.basename(path)}"
        self.n_seq, self.n_batch = info.n_seq_max, N_BATCH
        self._is_broken = False  # if True, the contexts must be neither used nor freed
        self._models: list[Any] = []
        self._contexts: list[Any] = []
        mark, before = tap.pump(), read_only_mappings()
        try:
            self._open(path, options, info, option)
        except BaseException:
            self.close()
            raise
        if self._owner is None:
            release_mappings(read_only_mappings() - before)
        self._memory = lib.llama_get_memory(self._context)
        self.n_ctx_seq = int(lib.llama_n_ctx_seq(self._context))
        self._n_bytes = context_bytes(mark)

    def _open(self, path: str, options: EngineOptions, info: EngineInfo, option: str) -> None:
        owner = self._owner
        model = owner.model.handle if owner is not None and option == MTP else self._load(path, options)
        self.n_embd = int(lib.llama_model_n_embd_out(model))
        n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self.n_vocab = min(n_vocab, info.n_vocab)  # an EAGLE 3 model may have a few more tokens (draft.PADDING)
        self.state = np.zeros(self.n_embd, np.float32)
        self._view = ffi.from_buffer("float *", self.state)
        self._heads = ffi.new("uma_heads *", {"n_embd": self.n_embd, "state": self._view})
        params = _params(options, info.n_ctx, option)
        params.cb_eval, params.cb_eval_user_data = ffi.addressof(lib, "uma_heads_cb"), self._heads
        if option == EAGLE and needs_target(path):
            params.ctx_other = self._open_target(info.model_path, options)
        self._context = self._new_context(model, params, option)

    def _load(self, path: str, options: EngineOptions) -> Any:
        """Load the file for heads beside the graph engine, which computes on a CPU: mapped."""
        if self._owner is None:
            options = replace(options, load_mode="mmap", n_gpu_layers=0)
        model = _load(path, options)
        self._models.append(model)
        return model

    def _new_context(self, model: Any, params: Any, option: str) -> Any:
        mark = tap.pump()
        context = lib.llama_init_from_model(model, params)
        if not context:
            raise UmaError(
                ErrorCode.CONFIG_INVALID,
                f"{option}: llama.cpp cannot open a context for {self.name}: {words_of_failure(mark)}",
                option=option,
            )
        self._contexts.append(context)
        return context

    def _open_target(self, path: str, options: EngineOptions) -> Any:
        """Open a context of the served model, through which llama.cpp finds the shared matrices."""
        if self._owner is not None:
            assert self._owner.decoder is not None
            return self._owner.decoder.handle
        small = replace(options, n_ctx=options.n_seq, n_batch=1, n_ubatch=1, takes_back=False)
        return self._new_context(self._load(path, options), decode_params(small, 0), EAGLE)

    def read(self, seq_id: SeqId, tokens: np.ndarray, pos0: int, states: np.ndarray) -> tuple[int, TokenId]:
        if self._is_broken:
            return int(lib.UMA_BROKEN), -1
        data = np.ascontiguousarray(tokens, np.int32)
        rows = np.ascontiguousarray(states, np.float32)
        if rows.shape[1] != self.n_embd:
            rc, rows = self._fuse(rows)
            if rc:
                self._is_broken = rc == lib.UMA_BROKEN
                return rc, -1
        rc = lib.uma_heads_decode(
            self._context, self._heads, ffi.from_buffer("llama_token *", data), ffi.from_buffer("float *", rows),
            len(data), pos0, seq_id,
        )  # fmt: skip
        self._is_broken = rc == lib.UMA_BROKEN
        return int(rc), int(self._heads.token) if rc == 0 else -1

    def _fuse(self, states: np.ndarray) -> tuple[int, np.ndarray]:
        """Combine the states of several layers into one state for each row."""
        fused = np.empty((len(states), self.n_embd), np.float32)
        source, target = (ffi.from_buffer("float *", rows) for rows in (states, fused))
        return int(lib.uma_heads_fuse(self._context, self._heads, source, len(states), target)), fused

    def truncate(self, seq_id: SeqId, n: int) -> None:
        if not self._is_broken:
            lib.llama_memory_seq_rm(self._memory, seq_id, n, -1)

    def memory(self) -> MemoryUse:
        """Memory of the contexts; the weights are pages of the files."""
        return MemoryUse(0, self._n_bytes, 0)

    def close(self) -> None:
        if self._is_broken:  # the models are in use by the contexts
            return
        while self._contexts:
            lib.llama_free(self._contexts.pop())
        while self._models:
            lib.llama_model_free(self._models.pop())


def _load(path: str, options: EngineOptions, is_dry: bool = False) -> Any:
    """Load a llama_model, which the caller frees. `is_dry`: without its weights. Raises: MODEL_LOAD_FAILED."""
    params, kept = model_params(replace(options, moe_top_k=0, kv_type="f16", mtp=True), path)
    params.use_extra_bufts = False  # they would hold a second copy of a weight
    if is_dry:
        params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
    return load_model(path, params, kept)


def _params(options: EngineOptions, n_ctx: int, option: str) -> Any:
    """Return llama_context_params. `n_ctx`: cells of all sequences."""
    params = decode_params(replace(options, n_ctx=n_ctx, n_batch=N_BATCH, n_ubatch=N_BATCH, takes_back=False), 0)
    if option == MTP:
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
    params.n_outputs_max = max(options.n_seq, N_BATCH if option == EAGLE else 0)  # EAGLE's encoder gives every row
    return params


def estimate_heads(path: str, options: EngineOptions) -> MemoryUse:
    """Estimate the memory of prediction heads (MTP) without allocating it.

    Raises: MODEL_LOAD_FAILED; CONFIG_INVALID if there are no heads, or none that llama.cpp computes.
    """
    check_heads(path)
    with tap.quiet():
        model = _load(path, options, is_dry=True)
        try:
            n_ctx = options.n_ctx or int(lib.llama_model_n_ctx_train(model)) * options.n_seq
            (n_kv, n_compute), _ = lay_out_context(model, _params(options, n_ctx, MTP))
        except UmaError as error:
            raise UmaError(ErrorCode.CONFIG_INVALID, f"{MTP}: {error.message}", option=MTP) from error
        finally:
            lib.llama_model_free(model)
    return MemoryUse(0, n_kv, n_compute)


def check_heads(path: str) -> None:
    """Check for heads. Raises: MODEL_LOAD_FAILED; CONFIG_INVALID for a file without prediction heads."""
    with closing(Header(path)) as header:
        n_heads = header.of_arch().get("nextn_predict_layers", 0)
        has_tensors = any(name.endswith("nextn.eh_proj.weight") for name in header.tensors)
    if not n_heads or not has_tensors:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{MTP}: {path} has no prediction heads (MTP)", option=MTP, path=path)


def needs_target(path: str) -> bool:
    """Whether an EAGLE 3 file has no embedding or output matrix of its own, and uses the served model's."""
    with closing(Header(path)) as header:
        return not {"token_embd.weight", "output.weight"} <= header.tensors.keys()
