"""Sampler chains of llama.h, one per session."""

from __future__ import annotations

from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama_model import LlamaModel
from uma_core.types import SamplingParams, TokenId


class LlamaSampler:
    """Owns a llama_sampler chain; penalties first, then cuts, then the draw (llama.cpp's usual order).

    `is_greedy`: it takes the best token that it does not ban.
    """

    __slots__ = ("handle", "is_greedy")

    def __init__(self, params: SamplingParams, seed: int, model: LlamaModel) -> None:
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self.handle = chain
        self.is_greedy = params.temperature <= 0.0 and params.repeat_penalty == 1.0
        n_keep = _n_keep(params, model)
        if n_keep:
            lib.llama_sampler_chain_add(chain, lib.uma_sampler_keep(n_keep))
        if params.ban_eog:
            bans = ffi.new("llama_logit_bias[]", [(token, float("-inf")) for token in sorted(model.eog)])
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_logit_bias(model.n_vocab, len(bans), bans))
        if params.repeat_penalty != 1.0:
            penalties = lib.llama_sampler_init_penalties(model.n_vocab, params.repeat_last_n, params.repeat_penalty, 0.0, 0.0)
            lib.llama_sampler_chain_add(chain, penalties)
        if params.temperature <= 0.0:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(params.top_k))
        if params.top_p < 1.0:
            lib.llama_sampler_chain_add(chain, lib.uma_sampler_top_p(params.top_p))
        if params.min_p > 0.0:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_min_p(params.min_p, 1))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(params.temperature))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(seed & 0xFFFFFFFF))

    def accept(self, token: TokenId) -> None:
        lib.llama_sampler_accept(self.handle, token)

    def close(self) -> None:
        if self.handle:
            lib.llama_sampler_free(self.handle)
            self.handle = ffi.NULL


def _n_keep(params: SamplingParams, model: LlamaModel) -> int:
    """How many of the best candidates a chain can use; 0: any number. Those that it lowers before its cut come on top."""
    n_cut = 1 if params.temperature <= 0.0 else params.top_k
    if not n_cut or params.repeat_penalty < 1.0:
        return 0
    return int(n_cut + len(model.eog) * params.ban_eog + params.repeat_last_n * (params.repeat_penalty > 1.0))
