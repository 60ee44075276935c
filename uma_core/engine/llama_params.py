"""From the engine's options to llama.cpp's parameters. Whoever opens or only measures contexts takes them from here."""

from __future__ import annotations

import os
from typing import Any

from gguf import GGUFReader

from uma_core.config import EngineOptions
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError

LOAD_MODES = {
    "auto": "LLAMA_LOAD_MODE_AUTO",
    "none": "LLAMA_LOAD_MODE_NONE",
    "mmap": "LLAMA_LOAD_MODE_MMAP",
    "mlock": "LLAMA_LOAD_MODE_MLOCK",
    "mmap+mlock": "LLAMA_LOAD_MODE_MMAP_MLOCK",
    "direct-io": "LLAMA_LOAD_MODE_DIRECT_IO",
}
KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0", "q4_0": "GGML_TYPE_Q4_0"}
FLASH = {"auto": "LLAMA_FLASH_ATTN_TYPE_AUTO", "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED", "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED"}
N_OUTPUTS_MIN = 16  # rows with logits per decode call; the compute buffer grows with it


def model_params(options: EngineOptions, path: str) -> tuple[Any, Any]:
    """llama_model_params, and what they point at: to be kept until the model is loaded."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.load_mode = getattr(lib, LOAD_MODES[options.load_mode])
    if not options.moe_top_k:
        return params, None
    overrides = ffi.new("struct llama_model_kv_override[2]")  # the second one, without a key, ends the list
    overrides[0].tag = lib.LLAMA_KV_OVERRIDE_TYPE_INT
    overrides[0].key = f"{architecture(path)}.expert_used_count".encode()
    overrides[0].val_i64 = options.moe_top_k
    params.kv_overrides = overrides
    return params, overrides


def architecture(path: str) -> str:
    """`general.architecture` of a GGUF that is not loaded: metadata keys begin with it. Raises: MODEL_LOAD_FAILED."""
    try:
        field = GGUFReader(path).get_field("general.architecture")
        return str(field.contents()) if field else "unknown"
    except (OSError, ValueError, IndexError) as error:
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {error}", path=path) from error


def is_unified(options: EngineOptions) -> bool:
    return options.kv_mode == "unified" and options.n_seq > 1


def decode_params(options: EngineOptions, n_ctx_train: int) -> Any:
    """llama_context_params of the context that all sequences share."""
    return _context_params(
        options,
        n_ctx=options.n_ctx or n_ctx_train * options.n_seq,
        n_seq_max=options.n_seq,
        kv_unified=is_unified(options),
        n_outputs_max=max(N_OUTPUTS_MIN, options.n_seq),
        n_batch=options.n_batch,
    )


def lane_params(options: EngineOptions, n_ctx_seq: int) -> Any:
    """llama_context_params of a prefill lane: one sequence, one chunk at a time."""
    return _context_params(options, n_ctx=n_ctx_seq, n_seq_max=1, kv_unified=True, n_outputs_max=1, n_batch=options.n_ubatch)


def _context_params(options: EngineOptions, **values: Any) -> Any:
    n_threads = n_threads_of(options)
    return context_params(
        n_ubatch=options.n_ubatch,
        n_threads=n_threads,
        n_threads_batch=n_threads,
        flash_attn_type=getattr(lib, FLASH[options.flash_attn]),
        type_k=getattr(lib, KV_TYPES[options.kv_type]),
        type_v=getattr(lib, KV_TYPES[options.kv_type]),
        no_perf=True,
        **values,
    )


def context_params(**values: Any) -> Any:
    """llama_context_params with the given fields set over llama.cpp's defaults."""
    params = lib.llama_context_default_params()
    for name, value in values.items():
        setattr(params, name, value)
    return params


def n_threads_of(options: EngineOptions) -> int:
    """As configured, or the cores that this process may use."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return options.threads or max(1, n_cores)
