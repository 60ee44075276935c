"""Samplers over llama.h's chains, one per session (native/sample.c)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from uma_core.engine.api import Logprobs
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama_model import LlamaModel
from uma_core.types import SamplingParams

# Candidates whose probability is under e^-32 of the best one's are left out: 152k of them together have 2e-9.
KEEP_NATS = 32.0


class LlamaSampler:
    """Owns a uma_sampler and what it points at, but not the mask. Edits come first, then penalties, cuts, the draw."""

    __slots__ = ("_edits", "_logprobs", "_mask", "_n_words", "_recent", "handle")

    def __init__(self, params: SamplingParams, seed: int, model: LlamaModel) -> None:
        self._n_words = -(-model.n_vocab // 32)
        self._mask: Any = None
        self._logprobs: Any = ffi.NULL
        handle = self.handle = ffi.new("uma_sampler *")
        if params.logprobs is not None:
            wanted = {"n_top": params.logprobs, "is_after": params.post_sampling_probs}
            self._logprobs = ffi.new("uma_logprobs *", wanted)
            handle.logprobs = self._logprobs
        bans = sorted(model.eog) if params.ban_eog else ()
        self._edits = ffi.new("llama_logit_bias[]", [(token, -math.inf) for token in bans])
        handle.edits, handle.n_edits = self._edits, len(bans)
        self._recent = ffi.new("llama_token[]", params.n_recent)
        handle.recent, handle.n_recent_most = self._recent, params.n_recent
        handle.takes_best = params.temperature <= 0.0
        handle.n_keep = 1 if params.temperature <= 0.0 else params.top_k
        handle.keep_within = KEEP_NATS * max(1.0, params.temperature)
        handle.chain = _chain(params, seed, model)

    def accept(self, tokens: np.ndarray) -> None:
        data = np.ascontiguousarray(tokens, np.int32)
        lib.uma_sampler_accept_all(self.handle, ffi.from_buffer("llama_token *", data), len(data))

    def set_mask(self, mask: np.ndarray | None) -> None:
        if mask is None:
            self._mask, self.handle.mask = None, ffi.NULL
            return
        if mask.nbytes != 4 * self._n_words:
            raise ValueError(f"a mask of {mask.nbytes} bytes instead of {4 * self._n_words}")
        self._mask = ffi.from_buffer("uint32_t *", mask)  # holds the array
        self.handle.mask = self._mask

    def logprobs(self) -> Logprobs | None:
        found = self._logprobs
        if not found:
            return None
        return Logprobs(found.logprob, tuple((found.top_id[i], found.top_logprob[i]) for i in range(found.n)))

    def close(self) -> None:
        if self.handle.chain:
            lib.llama_sampler_free(self.handle.chain)
            self.handle.chain = ffi.NULL


def _chain(params: SamplingParams, seed: int, model: LlamaModel) -> Any:
    """NULL where the largest logit decides."""
    links = []
    if params.repeat_penalty != 1.0:
        n, penalty = params.repeat_last_n, params.repeat_penalty
        links.append(lib.llama_sampler_init_penalties(model.n_vocab, n, penalty, 0.0, 0.0))
    if params.temperature <= 0.0:
        if not links:
            return ffi.NULL
        links.append(lib.llama_sampler_init_greedy())
    else:
        if params.top_k > 0:
            links.append(lib.llama_sampler_init_top_k(params.top_k))
        if params.top_p < 1.0:
            links.append(lib.uma_sampler_top_p(params.top_p))
        if params.min_p > 0.0:
            links.append(lib.llama_sampler_init_min_p(params.min_p, 1))
        links.append(lib.llama_sampler_init_temp(params.temperature))
        links.append(lib.llama_sampler_init_dist(seed & 0xFFFFFFFF))
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for link in links:
        lib.llama_sampler_chain_add(chain, link)
    return chain
