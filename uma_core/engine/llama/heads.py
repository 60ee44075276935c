"""Prediction heads (MTP) of a model's file, in a context of llama.cpp's over the file's own weights.

A head is one more layer behind the model's. llama.cpp maps the file, of which only that layer, the embedding and the
output's matrix are read.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from uma_core.config.options import EngineOptions
from uma_core.engine.api import EngineInfo, MemoryUse
from uma_core.engine.header import Header, refusal, words_of_failure
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.estimate import context_bytes, lay_out_context
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.params import decode_params, model_params
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import SeqId, TokenId

OPTION = "engine.mtp"
N_BATCH = 64  # of a text read at once: a stream waits for no more


class LlamaHeads:
    """See engine.api.Heads. Owns a llama_model that is mapped, and a context on it."""

    def __init__(self, path: str, options: EngineOptions, info: EngineInfo) -> None:
        """`info`: of the engine that verifies. Blocks.

        Raises: CONFIG_INVALID, MODEL_LOAD_FAILED.
        """
        check_heads(path)
        self.name = f"the prediction heads of {os.path.basename(path)}"
        self.n_seq, self.n_batch = info.n_seq_max, N_BATCH
        mark = tap.pump()
        self._context = ffi.NULL
        self._model = _load(path, options)
        self.n_embd = int(lib.llama_model_n_embd_out(self._model))
        self.n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        self.state = np.zeros(self.n_embd, np.float32)
        view = ffi.from_buffer("float *", self.state)
        self._heads = ffi.new("uma_heads *", {"n_embd": self.n_embd, "state": view})
        self._kept = view
        self._open(options, info, mark)

    def _open(self, options: EngineOptions, info: EngineInfo, mark: int) -> None:
        params = _params(options, info.n_ctx)
        params.cb_eval, params.cb_eval_user_data = ffi.addressof(lib, "uma_heads_cb"), self._heads
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            self.close()
            raise UmaError(
                ErrorCode.CONFIG_INVALID,
                f"{OPTION}: llama.cpp opens no context for {self.name}: {words_of_failure(mark)}",
                option=OPTION,
            )
        self._memory = lib.llama_get_memory(self._context)
        self.n_ctx_seq = int(lib.llama_n_ctx_seq(self._context))
        self._n_bytes = context_bytes(mark)

    def read(self, seq_id: SeqId, tokens: np.ndarray, pos0: int, states: np.ndarray) -> tuple[int, TokenId]:
        data = np.ascontiguousarray(tokens, np.int32)
        rows = np.ascontiguousarray(states, np.float32)
        rc = lib.uma_heads_decode(
            self._context, self._heads, ffi.from_buffer("llama_token *", data), ffi.from_buffer("float *", rows),
            len(data), pos0, seq_id,
        )  # fmt: skip
        return int(rc), int(self._heads.token) if rc == 0 else -1

    def truncate(self, seq_id: SeqId, n: int) -> None:
        lib.llama_memory_seq_rm(self._memory, seq_id, n, -1)

    def memory(self) -> MemoryUse:
        """The context's; the weights are pages of the file."""
        return MemoryUse(0, self._n_bytes, 0)

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = ffi.NULL
        if self._model:
            lib.llama_model_free(self._model)
            self._model = ffi.NULL


def _load(path: str, options: EngineOptions, is_dry: bool = False) -> Any:
    """The llama_model; the caller's to free. `is_dry`: without its weights. Raises: MODEL_LOAD_FAILED."""
    params, kept = model_params(replace(options, load_mode="mmap", n_gpu_layers=0), path)
    params.load_mtp, params.use_extra_bufts = True, False
    if is_dry:
        params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
    mark = tap.pump()
    model = lib.llama_model_load_from_file(path.encode(), params)
    del kept
    if not model:
        raise refusal(path, mark)
    return model


def _params(options: EngineOptions, n_ctx: int) -> Any:
    """llama_context_params. `n_ctx`: of all sequences."""
    params = decode_params(replace(options, n_ctx=n_ctx, n_batch=N_BATCH, n_ubatch=N_BATCH, mtp=False), 0)
    params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
    params.n_outputs_max = options.n_seq  # less is refused
    return params


def estimate_heads(path: str, options: EngineOptions) -> MemoryUse:
    """What `LlamaHeads` would take, found without taking it.

    Raises: MODEL_LOAD_FAILED; CONFIG_INVALID where there are no heads, or none that llama.cpp computes.
    """
    check_heads(path)
    with tap.quiet():
        model = _load(path, options, is_dry=True)
        try:
            n_ctx = options.n_ctx or int(lib.llama_model_n_ctx_train(model)) * options.n_seq
            (n_kv, n_compute), _ = lay_out_context(model, _params(options, n_ctx))
        except UmaError as error:
            raise UmaError(ErrorCode.CONFIG_INVALID, f"{OPTION}: {error.message}", option=OPTION) from error
        finally:
            lib.llama_model_free(model)
    return MemoryUse(0, n_kv, n_compute)


def check_heads(path: str) -> None:
    """Raises: MODEL_LOAD_FAILED; CONFIG_INVALID for a file without prediction heads."""
    header = Header(path)
    try:
        n_heads = header.of_arch().get("nextn_predict_layers", 0)
        has_tensors = any(name.endswith("nextn.eh_proj.weight") for name in header.tensors)
    finally:
        header.close()
    if not n_heads or not has_tensors:
        raise UmaError(
            ErrorCode.CONFIG_INVALID, f"{OPTION}: {path} has no prediction heads (MTP)", option=OPTION, path=path
        )
