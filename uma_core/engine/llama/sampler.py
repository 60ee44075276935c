"""Samplers over llama.h's chains, one per session (native/sampling/sample.c), in the order and meaning of
common/sampling.cpp.

A chain over a vocabulary of 152k takes 0.1 to 20 ms a row, so the C side first leaves out candidates that the chain
cannot use. `bounds` says which ones; if it cannot tell, all are kept.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from uma_core.engine.api import Logprobs
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import SamplingParams, TokenId

# Candidates with less than e^-32 of the best one's probability are left out: 152k of them together have 2e-9.
KEEP_NATS = 32.0
POSSIBLE_NATS = 80.0  # e^-87 is the smallest number that f32 holds
MIROSTAT_M = 100  # candidates from which Mirostat 1 estimates the slope; the paper's value, as in common/sampling.cpp
ALL = math.inf
INFILL_BYTES = 512  # size of llama.cpp's buffers
RANDOM_SEED = 0xFFFFFFFF  # llama.h: LLAMA_DEFAULT_SEED, in place of which llama.cpp draws one
N_PREPARED = 16  # most DRY links that are kept for similar requests: some 100 kB each


def _fixed(seed: int) -> int:
    """Return a seed that llama.cpp uses as it is. The one in place of the largest is far from it: the answers of one
    request have seeds that follow each other.
    """
    return seed if seed != RANDOM_SEED else RANDOM_SEED >> 1


class Links:
    """Makes a vocabulary's chain links. `prepare` may run on any thread."""

    def __init__(self, vocab: Any, pieces: Sequence[bytes]) -> None:
        self._vocab = vocab
        self._n_vocab = len(pieces)
        has_end = lib.llama_vocab_eot(vocab) >= 0 or lib.llama_vocab_eos(vocab) >= 0
        # with longer pieces llama.cpp ends the process
        self._can_infill = has_end and max(map(len, pieces)) <= INFILL_BYTES
        self._dry: OrderedDict[tuple[Any, ...], Any] = OrderedDict()  # replaced, never changed

    def prepare(self, params: SamplingParams, n_ctx: int) -> None:
        """Make the slow links in advance: DRY searches every token of the vocabulary for its breakers.

        Raises: BAD_REQUEST.
        """
        if params.has_dry:
            self._dry_like(params, n_ctx)
        if params.has("infill") and not self._can_infill:
            why = "this model has no end-of-text token that `infill` could take, or tokens that are too long for it"
            raise UmaError(ErrorCode.BAD_REQUEST, why, field="samplers")

    def _dry_like(self, params: SamplingParams, n_ctx: int) -> Any:
        numbers = (
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            _window(params.dry_penalty_last_n, n_ctx),
        )
        key = (*numbers, params.dry_sequence_breakers)
        known = self._dry
        link = known.get(key)
        if link is None:
            texts = [ffi.new("char[]", text.encode()) for text in params.dry_sequence_breakers]
            made = lib.llama_sampler_init_dry(self._vocab, *numbers, ffi.new("const char *[]", texts), len(texts))
            link = ffi.gc(made, lib.llama_sampler_free)
        kept = [(k, v) for k, v in known.items() if k != key][-N_PREPARED + 1 :]
        self._dry = OrderedDict([*kept, (key, link)])
        return link

    def chain(self, params: SamplingParams, seed: int, n_ctx: int) -> Any:
        """Make a chain, owned by the caller. NULL if the largest logit decides."""
        links = self._penalties(params, n_ctx) if params.takes_best else self._all(params, seed, n_ctx)
        if not links:
            return ffi.NULL
        if params.takes_best:
            links.append(lib.llama_sampler_init_greedy())
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in links:
            lib.llama_sampler_chain_add(chain, link)
        return chain

    def _penalties(self, params: SamplingParams, n_ctx: int) -> list[Any]:
        return [
            link
            for name in params.samplers
            if name in ("penalties", "dry")
            for link in self._link(name, params, 0, n_ctx)
        ]

    def _all(self, params: SamplingParams, seed: int, n_ctx: int) -> list[Any]:
        if params.mirostat:
            tau, eta = params.mirostat_tau, params.mirostat_eta
            temperature = lib.llama_sampler_init_temp(params.temperature)
            if params.mirostat == 2:
                return [temperature, lib.llama_sampler_init_mirostat_v2(seed, tau, eta)]
            possible = lib.uma_sampler_possible(POSSIBLE_NATS)
            return [temperature, possible, lib.llama_sampler_init_mirostat(self._n_vocab, seed, tau, eta, MIROSTAT_M)]
        links = [link for name in params.samplers for link in self._link(name, params, seed, n_ctx)]
        if params.has("adaptive_p"):
            return [*links, lib.llama_sampler_init_adaptive_p(params.adaptive_target, params.adaptive_decay, seed)]
        return [*links, lib.llama_sampler_init_dist(seed)]

    def _link(self, name: str, params: SamplingParams, seed: int, n_ctx: int) -> list[Any]:
        """The links of a sampler; none if it is off."""
        if name == "penalties" and params.has_penalties:
            window = _window(params.repeat_last_n, n_ctx)
            repeat, frequency, presence = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
            return [lib.llama_sampler_init_penalties(self._n_vocab, window, repeat, frequency, presence)]
        if name == "dry" and params.has_dry:
            return [lib.llama_sampler_clone(self._dry_like(params, n_ctx))]
        if name == "top_n_sigma" and params.top_n_sigma > 0.0:
            return [lib.llama_sampler_init_top_n_sigma(params.top_n_sigma)]
        if name == "top_k" and params.top_k > 0:
            return [lib.llama_sampler_init_top_k(params.top_k)]
        if name == "typ_p" and params.typical_p < 1.0:
            return [
                lib.uma_sampler_possible(POSSIBLE_NATS),
                lib.llama_sampler_init_typical(params.typical_p, params.min_keep),
            ]
        if name == "top_p" and params.top_p < 1.0:
            return [lib.uma_sampler_top_p(params.top_p, params.min_keep)]
        if name == "min_p" and params.min_p > 0.0:
            return [lib.llama_sampler_init_min_p(params.min_p, params.min_keep)]
        if name == "xtc" and has_xtc(params):
            return [lib.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, params.min_keep, seed)]
        if name == "temperature":
            return [_temperature(params)]
        if name == "infill":
            return [lib.llama_sampler_init_infill(self._vocab)]
        return []


def _window(n: int, n_ctx: int) -> int:
    return n_ctx if n < 0 else min(n, n_ctx)


def _temperature(params: SamplingParams) -> Any:
    if params.dynatemp_range > 0.0:
        own = lib.llama_sampler_init_temp_ext(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
        return lib.uma_sampler_temperature(own)
    return lib.llama_sampler_init_temp(params.temperature)


def has_xtc(params: SamplingParams) -> bool:
    return params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5 and params.has("xtc")


def bounds(params: SamplingParams) -> tuple[int, float]:
    """The candidates of a row that a chain can use: how many of the best (0: any number), and how far below the best.

    Tokens that penalties may move come on top (native/sampling/sample.c). The candidates that are left out have 2e-9 of
    the probability together. A sampler to which every candidate counts, however unlikely, gets all of them, unless an
    exact cut comes before it.
    """
    if params.takes_best:
        return 1, ALL
    hottest = (
        max(1.0, params.temperature + params.dynatemp_range) if params.mirostat or params.has("temperature") else 1.0
    )
    if params.mirostat:
        return 0, (POSSIBLE_NATS if params.mirostat == 1 else KEEP_NATS) * hottest
    gap = 0.0  # XTC removes candidates down to its threshold: the best of the others is so far below
    if has_xtc(params):
        gap = hottest * -math.log(params.xtc_threshold) if params.xtc_threshold > 0.0 else ALL
    order = params.samplers
    cut = next((i for i, name in enumerate(order) if _cuts(name, params)), len(order))
    counting = next((i for i, name in enumerate(order) if _counts_all(name, params)), -1)
    is_top_k = cut < len(order) and order[cut] == "top_k"
    n_keep = params.top_k if is_top_k and not (gap and "xtc" in order[:cut]) else 0
    if counting < 0:
        return n_keep, KEEP_NATS * hottest + gap
    if counting < cut or (is_top_k and not n_keep):
        return 0, ALL
    if is_top_k:
        return n_keep, ALL
    if params.min_keep > 1:  # the cut may keep candidates below its own threshold
        return 0, ALL
    nats = max(KEEP_NATS, -math.log(params.min_p)) if order[cut] == "min_p" else KEEP_NATS
    return 0, nats * hottest + gap


def _cuts(name: str, params: SamplingParams) -> bool:
    if name == "top_k":
        return params.top_k > 0
    if name == "top_p":
        return params.top_p < 1.0
    if name == "typ_p":
        return params.typical_p < 1.0
    return name == "min_p" and params.min_p > 0.0


def _counts_all(name: str, params: SamplingParams) -> bool:
    """Whether the sampler's result depends on the number of candidates, or on the unlikeliest ones."""
    if name == "top_n_sigma":
        return params.top_n_sigma > 0.0
    if name == "temperature":
        return params.dynatemp_range > 0.0
    if name == "xtc":
        return has_xtc(params) and params.min_keep > 1
    return name == "infill" or (name == "adaptive_p" and params.adaptive_target >= 0.0)


class LlamaSampler:
    """Owns a uma_sampler and the objects it points at, but not the mask. Order: edits, penalties, cuts, the draw."""

    __slots__ = (
        "_early",
        "_edits",
        "_fixed",
        "_here",
        "_is_early",
        "_logprobs",
        "_mask",
        "_n_words",
        "_never",
        "_recent",
        "_refused",
        "handle",
    )

    def __init__(self, params: SamplingParams, seed: int, model: Any, n_ctx: int) -> None:
        """`n_ctx`: the longest window of recent tokens. `model`: a LlamaModel."""
        self._n_words = -(-model.n_vocab // 32)
        self._mask: Any = None
        self._logprobs: Any = ffi.NULL
        handle = self.handle = ffi.new("uma_sampler *", {"forced": -1})
        if params.logprobs is not None:
            wanted = {"n_top": params.logprobs, "is_after": params.post_sampling_probs}
            self._logprobs = ffi.new("uma_logprobs *", wanted)
            handle.logprobs = self._logprobs
        ends = [(token, -ALL) for token in sorted(model.eog)]
        never = [(token, -ALL) for token in model.suppressed]
        self._fixed = [*never, *params.logit_bias, *(ends if params.ban_eog else ())]
        self._is_early = params.min_tokens > 0
        self._early = [*ends, *((token, -ALL) for token in params.stop_token_ids)] if self._is_early else []
        self._here: list[tuple[TokenId, float]] = []
        # sets, because `force` checks the whole vocabulary if no token can be drawn, and biases may number 20,000
        self._never = frozenset(token for token, bias in self._fixed if bias == -ALL)
        self._set_edits()
        n_recent = params.n_recent(n_ctx)
        self._recent = ffi.new("llama_token[]", n_recent)
        handle.recent, handle.n_recent_most = self._recent, n_recent
        handle.takes_best = params.takes_best
        handle.masks_first = params.mirostat
        handle.n_keep, handle.keep_within = bounds(params)
        handle.chain = model.links.chain(params, _fixed(seed & 0xFFFFFFFF), n_ctx)

    def _set_edits(self) -> None:
        changing = [*(self._early if self._is_early else ()), *self._here]
        self._refused = frozenset(token for token, _ in changing)
        edits = [*self._fixed, *changing]
        self._edits = ffi.new("llama_logit_bias[]", edits)
        self.handle.edits, self.handle.n_edits = self._edits, len(edits)
        self.handle.raises = any(bias > 0 for _, bias in edits)

    def accept(self, tokens: np.ndarray) -> None:
        data = np.ascontiguousarray(tokens, np.int32)
        lib.uma_sampler_accept_all(self.handle, ffi.from_buffer("llama_token *", data), len(data))

    def set_mask(self, mask: np.ndarray | None) -> None:
        if mask is None:
            self._mask, self.handle.mask = None, ffi.NULL
            return
        if mask.nbytes != 4 * self._n_words:
            raise ValueError(f"a mask of {mask.nbytes} bytes instead of {4 * self._n_words}")
        self._mask = ffi.from_buffer("uint32_t *", mask)  # keeps the array alive
        self.handle.mask = self._mask

    def allow_end(self, is_allowed: bool = True) -> None:
        if self._early and self._is_early is is_allowed:
            self._is_early = not is_allowed
            self._set_edits()

    def ban(self, tokens: Sequence[TokenId]) -> None:
        if tokens or self._here:
            self._here = [(token, -ALL) for token in tokens]
            self._set_edits()

    def force(self, token: TokenId | None) -> bool:
        if token is not None and (token in self._never or token in self._refused):
            return False
        self.handle.forced = -1 if token is None else token
        return True

    def recount(self, tokens: np.ndarray) -> None:
        data = np.ascontiguousarray(tokens, np.int32)
        lib.uma_sampler_recount(self.handle, ffi.from_buffer("llama_token *", data), len(data))

    def logprobs(self) -> Logprobs | None:
        found = self._logprobs
        if not found:
            return None
        return Logprobs(found.logprob, tuple((found.top_id[i], found.top_logprob[i]) for i in range(found.n)))

    def close(self) -> None:
        if self.handle.chain:
            lib.llama_sampler_free(self.handle.chain)
            self.handle.chain = ffi.NULL
