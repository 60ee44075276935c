"""Estimates a model's memory before a byte of its weights is read: llama.cpp lays out model and contexts without
allocating.

This is also the cheapest proof that a GGUF is whole: llama.cpp compares every tensor's place with the file's size.
"""

from __future__ import annotations

import re

from uma_core.config.options import EngineOptions
from uma_core.engine.api import MemoryUse
from uma_core.engine.header import check_file, words_of_failure
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.log import Line, tap
from uma_core.engine.llama.model import load_model
from uma_core.engine.llama.params import (
    decode_params,
    encoder_params,
    is_unified,
    keep_experts_in_place,
    model_params,
    prefill_params,
)
from uma_core.errors import ErrorCode, UmaError

_MIB = 1 << 20
_KV_SIZE = re.compile(r"^llama_(?:kv_cache|memory)\w*: size = +([\d.]+) MiB")
_COMPUTE_SIZE = re.compile(r"compute buffer size = +([\d.]+) MiB")


def estimate(path: str, options: EngineOptions, is_encoding: bool = False) -> MemoryUse:
    """Estimate weights, KV and compute buffers of the model at `path` with these options. Blocks: reads the header and
    vocabulary.

    Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY.
    """
    check_file(path)
    with tap.quiet():
        params, kept = model_params(options, path)
        params.no_alloc = True
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        model = load_model(path, params, kept)
        try:
            return _lay_out(model, options, is_encoding)
        finally:
            lib.llama_model_free(model)


def _lay_out(model: object, options: EngineOptions, is_encoding: bool) -> MemoryUse:
    if is_encoding:
        return _lay_out_encoder(model, options)
    decode = decode_params(options, int(lib.llama_model_n_ctx_train(model)))
    decode_sizes, n_ctx_seq = lay_out_context(model, decode)
    prefill_sizes = (0, 0)
    n_prefill_slots = 0 if is_unified(options) or not _can_have_slots(model) else options.prefill_lanes
    if n_prefill_slots:
        n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        prefill_sizes, _ = lay_out_context(model, prefill_params(options, n_ctx_seq, n_vocab))
    kv, compute = (d + n_prefill_slots * slot for d, slot in zip(decode_sizes, prefill_sizes, strict=True))
    return MemoryUse(int(lib.llama_model_size(model)), kv, compute)


def _can_have_slots(model: object) -> bool:
    """Whether prompts can be read in slots of their own. False: the memory is recurrent, or has windows."""
    is_stateful = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
    return not is_stateful and int(lib.llama_model_n_swa(model)) == 0


def _lay_out_encoder(model: object, options: EngineOptions) -> MemoryUse:
    n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
    params = encoder_params(options, int(lib.llama_model_n_ctx_train(model)), n_vocab)
    (kv, compute), _ = lay_out_context(model, params)
    n_rows = int(params.n_batch) * (n_vocab + int(lib.llama_model_n_embd_out(model))) * 4
    return MemoryUse(int(lib.llama_model_size(model)), kv, compute + n_rows)


def lay_out_context(model: object, params: object) -> tuple[tuple[int, int], int]:
    """(KV bytes, compute bytes) of one context, and the cells of one of its sequences."""
    mark = tap.pump()
    keep_experts_in_place(model, params)
    context = lib.llama_init_from_model(model, params)
    if context == ffi.NULL:
        error = ErrorCode.INSUFFICIENT_MEMORY if lib.uma_guard_is_short() else ErrorCode.MODEL_LOAD_FAILED
        raise UmaError(error, f"llama.cpp cannot serve this model with these options: {words_of_failure(mark)}")
    n_ctx_seq = int(lib.llama_n_ctx_seq(context))
    lib.llama_free(context)
    lines = tap.since(mark)
    return (sizes(lines, _KV_SIZE), sizes(lines, _COMPUTE_SIZE)), n_ctx_seq


def sizes(lines: list[Line], pattern: re.Pattern[str]) -> int:
    """Sum of the MiB figures in the lines that match."""
    return round(sum(float(found[1]) for line in lines if (found := pattern.search(line.text))) * _MIB)


def context_bytes(mark: int) -> int:
    """KV and compute buffers of the contexts that were made since the log line `mark`."""
    return kv_bytes(mark) + compute_bytes(mark)


def kv_bytes(mark: int) -> int:
    """KV, and states of recurrent layers, of the contexts that were made since the log line `mark`."""
    return sizes(tap.since(mark), _KV_SIZE)


def compute_bytes(mark: int) -> int:
    """Compute buffers of the contexts that were made since the log line `mark`."""
    return sizes(tap.since(mark), _COMPUTE_SIZE)
