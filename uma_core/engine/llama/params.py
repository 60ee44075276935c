"""Turns the engine's options into llama.cpp's parameters, both for opening contexts and for measuring them only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from uma_core.config.options import EngineOptions
from uma_core.engine.header import Header, Value
from uma_core.engine.lib import ffi, lib, text
from uma_core.errors import ErrorCode, UmaError
from uma_core.machine import n_compute_threads

LOAD_MODES = {
    "auto": "LLAMA_LOAD_MODE_AUTO",
    "none": "LLAMA_LOAD_MODE_NONE",
    "mmap": "LLAMA_LOAD_MODE_MMAP",
    "mlock": "LLAMA_LOAD_MODE_MLOCK",
    "mmap+mlock": "LLAMA_LOAD_MODE_MMAP_MLOCK",
    "direct-io": "LLAMA_LOAD_MODE_DIRECT_IO",
}
KV_TYPES = {
    "f16": "GGML_TYPE_F16",
    "bf16": "GGML_TYPE_BF16",
    "q8_0": "GGML_TYPE_Q8_0",
    "q4_0": "GGML_TYPE_Q4_0",
}
FLASH = {
    "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO",
    "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED",
    "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED",
}
KV_BLOCK = 32  # elements that q8_0 and q4_0 quantize together
# drafts of a call that a recurrent memory can take back, if speculation is on: llama.cpp keeps that many states of each
# sequence
N_UNDO = 7
N_OUTPUTS_MIN = 16  # fewest rows with logits per decode call; the compute buffer grows with it
ENCODER_BYTES = 1 << 30  # most bytes of rows that llama.cpp sets aside for an encoder's call
ENCODER_LEAST = 64  # fewest tokens of a call, however large the vocabulary is
ENCODER_INPUTS = 64  # most inputs of one call: more inputs are not computed any faster
OUTPUT_BYTES = 16 << 20  # most bytes of logits set aside beside hidden states, whose copy in one go takes about 3 ms


def model_params(options: EngineOptions, path: str) -> tuple[Any, Any]:
    """Return llama_model_params, and the objects they point at, which must be kept until the model is loaded.

    Raises: MODEL_LOAD_FAILED, CONFIG_INVALID for options that this model cannot have.
    """
    arch, n_expert = check_model(options, path)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.load_mode = getattr(lib, LOAD_MODES[options.load_mode])
    params.load_mtp = options.mtp
    if not n_expert:
        return params, None
    overrides = ffi.new("struct llama_model_kv_override[2]")  # the second one, without a key, ends the list
    overrides[0].tag = lib.LLAMA_KV_OVERRIDE_TYPE_INT
    overrides[0].key = f"{arch}.expert_used_count".encode()
    overrides[0].val_i64 = options.moe_top_k
    params.kv_overrides = overrides
    return params, overrides


def check_model(options: EngineOptions, path: str) -> tuple[str, int]:
    """Return the architecture, and how many experts a layer has, if an option asks for that; ("", 0) if none does.

    llama.cpp would fail an assertion on these errors, or tell them from a lack of memory only in a log line.

    Raises: MODEL_LOAD_FAILED, CONFIG_INVALID.
    """
    if not options.moe_top_k and options.kv_type == "f16":
        return "", 0
    with closing(Header(path)) as header:
        meta = header.of_arch()
        n_expert = _count(meta, "expert_count")
        if n_expert and options.moe_top_k > n_expert:
            raise _refusal(
                "moe_top_k", f"must be at most {n_expert}, the experts of this model, not {options.moe_top_k}"
            )
        n_each = _count(meta, "embedding_length") // max(1, _count(meta, "attention.head_count"))
        for length in (_count(meta, f"attention.{part}_length") or n_each for part in ("key", "value")):
            if "q" in options.kv_type and length % KV_BLOCK:
                raise _refusal(
                    "kv_type",
                    f"must be f16 or bf16 for heads of length {length}: "
                    f"{options.kv_type} takes multiples of {KV_BLOCK}",
                )
        return header.arch, n_expert if options.moe_top_k else 0


def _count(meta: Mapping[str, Value], key: str) -> int:
    value = meta.get(key)
    return value if isinstance(value, int) else 0


def _refusal(name: str, complaint: str) -> UmaError:
    return UmaError(ErrorCode.CONFIG_INVALID, f"engine.{name} {complaint}", option=f"engine.{name}")


def is_unified(options: EngineOptions) -> bool:
    return options.kv_mode == "unified" and options.n_seq > 1


def n_outputs(options: EngineOptions) -> int:
    """Most rows with logits in a decode call."""
    return max(N_OUTPUTS_MIN, options.n_seq)


def decode_params(options: EngineOptions, n_ctx_train: int) -> Any:
    """Return llama_context_params of the context that all sequences share."""
    n_ctx = options.n_ctx or n_ctx_train * options.n_seq
    # llama.cpp keeps one row more than it can take back; this piece must be shorter than its batch
    n_piece = min(options.n_ubatch, options.n_batch, n_ctx // options.n_seq * options.n_seq)
    return _context_params(
        options,
        n_ctx=n_ctx,
        n_seq_max=options.n_seq,
        kv_unified=is_unified(options),
        n_outputs_max=n_outputs(options),
        n_batch=options.n_batch,
        n_rs_seq=max(0, min(N_UNDO, n_piece - 2)) if options.takes_back else 0,
    )


def prefill_params(options: EngineOptions, n_ctx_seq: int, n_vocab: int) -> Any:
    """Return llama_context_params of a prefill slot: one sequence, one chunk at a time."""
    n_outputs = prefill_outputs(options, n_vocab)
    return _context_params(
        options, n_ctx=n_ctx_seq, n_seq_max=1, kv_unified=True, n_outputs_max=n_outputs, n_batch=options.n_ubatch
    )


def prefill_outputs(options: EngineOptions, n_vocab: int) -> int:
    """Most tokens of a slot's chunk that can give hidden states: llama.cpp sets aside a row of logits for each."""
    return max(1, min(options.n_ubatch, max(N_OUTPUTS_MIN, OUTPUT_BYTES // (4 * n_vocab))))


def encoder_shape(options: EngineOptions, n_ctx_train: int, n_vocab: int) -> tuple[int, int, int]:
    """Most tokens of an encoder's input, tokens of one call, and inputs of one call.

    Without `engine.encoder_ctx`, ENCODER_BYTES limit an input: llama.cpp allocates a row of logits for each of its
    tokens, though an encoder has no logits.
    """
    n_most = max(ENCODER_LEAST, ENCODER_BYTES // (4 * n_vocab))
    n_input = min(n_ctx_train, options.encoder_ctx or n_most)
    n_batch = max(n_input, min(options.n_ubatch, n_most))
    n_inputs = min(ENCODER_INPUTS, n_batch)
    # llama.cpp lays out such a batch with equal shares for all sequences
    return n_input, -(-n_batch // n_inputs) * n_inputs, n_inputs


def encoder_params(options: EngineOptions, n_ctx_train: int, n_vocab: int) -> Any:
    """Return llama_context_params of an encoder: whole inputs, all in one call."""
    _, n_batch, n_inputs = encoder_shape(options, n_ctx_train, n_vocab)
    params = _context_params(
        options, n_ctx=n_batch, n_seq_max=n_inputs, kv_unified=True, n_outputs_max=n_batch, n_batch=n_batch
    )
    params.n_ubatch = n_batch
    params.embeddings = True
    return params


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
    """Return llama.cpp's default llama_context_params with the given fields set."""
    params = lib.llama_context_default_params()
    for name, value in values.items():
        setattr(params, name, value)
    return params


def check_threads(n_threads: int) -> None:
    """Check, before anything is computed, that OpenMP can start its threads: otherwise it would end the process.

    The thread that loads and the thread that serves each have a team of their own. Raises: INSUFFICIENT_MEMORY.
    """
    if not lib.uma_threads_fit(2 * (n_threads - 1)):
        raise UmaError(
            ErrorCode.INSUFFICIENT_MEMORY,
            f"the system cannot start {n_threads} compute threads; lower engine.threads",
        )


def n_threads_of(options: EngineOptions) -> int:
    """The configured number of threads, or as many as this process has processors' time for."""
    return options.threads or n_compute_threads()


def meta_of(model: Any, key: str) -> str | None:
    """The value of a key in a llama_model's file."""
    buffer = ffi.new("char[]", 256)
    n = lib.llama_model_meta_val_str(model, key.encode(), buffer, 256)
    return text(buffer) if n >= 0 else None


def keep_experts_in_place(model: Any, params: Any) -> None:
    """Set parameters of a context on this llama_model so that experts in the machine's memory are multiplied there, not
    copied to a GPU and multiplied on it.

    Such a copy takes the experts that the call chose. A call that is cut short (a chunk is cancelled, cells are marked)
    skips the rest of its part for one device and continues with the next device, for which no experts were chosen. ggml
    ends the process on numbers that are not an expert's (GGML_ASSERT in ggml_backend_sched_compute_splits).
    """
    architecture = meta_of(model, "general.architecture")
    if meta_of(model, f"{architecture}.expert_count") not in (None, "0"):
        params.op_offload = False
