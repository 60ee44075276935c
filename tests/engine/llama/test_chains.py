"""Every sampler of llama.cpp: the tokens of its own chain over all candidates, and the distribution of its
definition.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.engine.drive import draw
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.types import SamplingParams

N_STEPS = 40
WIDE = 20_011  # a vocabulary of many blocks of the C side, with an incomplete last one
NEW = SamplingParams(temperature=0.9, top_k=0)

CHAINS = {
    "plain": NEW,
    "usual": replace(NEW, top_k=40, top_p=0.95, min_p=0.05),
    "hot": replace(NEW, temperature=8.0),
    "hotter": replace(NEW, temperature=20.0),
    "top-p": replace(NEW, top_p=0.8),
    "narrow top-p": replace(NEW, top_p=0.05, min_p=0.02),
    "repeat": replace(NEW, repeat_penalty=1.4),
    "repeat raises": replace(NEW, repeat_penalty=0.6, top_k=5),
    "frequency": replace(NEW, frequency_penalty=0.7, presence_penalty=0.4, top_k=20),
    "frequency raises": replace(NEW, frequency_penalty=-0.9, presence_penalty=-1.0, top_k=3),
    "window": replace(NEW, repeat_penalty=3.0, repeat_last_n=2, top_k=4),
    "whole window": replace(NEW, repeat_penalty=1.2, repeat_last_n=-1, top_k=4),
    "greedy penalties": SamplingParams(repeat_penalty=2.0, frequency_penalty=0.3),
    "dry": replace(NEW, dry_multiplier=0.8, dry_penalty_last_n=-1, top_k=10),
    "dry breakers": replace(NEW, dry_multiplier=2.0, dry_allowed_length=1, dry_sequence_breakers=("e", "th", "\n\n")),
    "greedy dry": SamplingParams(dry_multiplier=5.0, dry_allowed_length=1),
    "sigma": replace(NEW, top_n_sigma=1.2),
    "sigma and top-k": replace(NEW, top_n_sigma=2.0, top_k=8),
    "sigma later": replace(NEW, top_n_sigma=1.0, top_k=30, samplers=("top_k", "top_n_sigma", "temperature")),
    "typical": replace(NEW, typical_p=0.7),
    "typical and top-k": replace(NEW, typical_p=0.6, top_k=50),
    "min-p": replace(NEW, min_p=0.1),
    "xtc": replace(NEW, xtc_probability=0.7, xtc_threshold=0.05),
    "xtc deep": replace(NEW, xtc_probability=1.0, xtc_threshold=1e-6),
    "xtc all": replace(NEW, xtc_probability=0.5, xtc_threshold=0.0),
    "xtc before top-k": replace(NEW, xtc_probability=0.9, xtc_threshold=0.02, top_k=3,
    samplers=("xtc", "top_k", "temperature")),
    "dynatemp": replace(NEW, dynatemp_range=0.8, dynatemp_exponent=1.3),
    "top-p that keeps four": replace(NEW, temperature=3.0, top_p=0.01, min_keep=4),
    "top-p that keeps all": replace(NEW, top_p=0.01, min_keep=1 << 30),
    "min-p that keeps nine": replace(NEW, temperature=3.0, min_p=0.99, min_keep=9),
    "typical that keeps six": replace(NEW, temperature=3.0, typical_p=0.05, min_keep=6),
    "xtc that keeps many": replace(NEW, xtc_probability=0.9, xtc_threshold=0.001, min_keep=250, top_k=253),
    "xtc that keeps most": replace(NEW, xtc_probability=0.9, xtc_threshold=0.001, min_keep=250),
    "min-p that keeps before dynatemp": replace(NEW, min_p=0.5, min_keep=100, dynatemp_range=0.8),
    "xtc that keeps nearly all": replace(NEW, xtc_probability=0.9, xtc_threshold=1e-9, min_keep=7950),
    "min-p that keeps all before sigma": replace(NEW, min_p=0.5, min_keep=1 << 30, top_n_sigma=0.2,
    samplers=("min_p", "top_n_sigma", "temperature")),
    "dynatemp and top-k": replace(NEW, dynatemp_range=0.8, top_k=12),
    "dynatemp and min-p": replace(NEW, dynatemp_range=0.8, min_p=1e-20),
    "dynatemp from 0": replace(NEW, temperature=0.0, dynatemp_range=1.5, top_k=12),
    "mirostat 1": replace(NEW, mirostat=1, mirostat_tau=4.0),
    "mirostat 2": replace(NEW, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.3),
    "mirostat hot": replace(NEW, temperature=5.0, mirostat=2),
    "adaptive": replace(NEW, adaptive_target=0.3, samplers=("adaptive_p",)),
    "adaptive after min-p": replace(NEW, adaptive_target=0.5, adaptive_decay=0.5, min_p=0.02,
    samplers=("min_p", "temperature", "adaptive_p")),
    "adaptive off": replace(NEW, samplers=("temperature", "adaptive_p")),
    "infill": replace(NEW, top_k=20, top_p=0.9, samplers=("top_k", "top_p", "infill")),
    "temperature first": replace(NEW, temperature=1.8, top_p=0.7, min_p=0.01,
    samplers=("temperature", "min_p", "top_p")),
    "no temperature": replace(NEW, temperature=5.0, top_k=20, samplers=("top_k",)),
    "reversed": replace(NEW, top_k=30, top_p=0.9, typical_p=0.9, min_p=0.01, samplers=tuple(reversed(NEW.samplers)),
    repeat_penalty=1.2),
    "bias": replace(NEW, logit_bias=((7, 3.0), (9, -math.inf), (11, -2.0)), top_k=10),
    "bias from far below": replace(NEW, logit_bias=((5, 12.0),), top_k=2),
    "everything": SamplingParams(
        temperature=1.1, top_k=60, top_p=0.97, min_p=0.001, typical_p=0.95, top_n_sigma=3.0, repeat_penalty=1.1,
        frequency_penalty=0.1,
        dry_multiplier=0.5, xtc_probability=0.3, xtc_threshold=0.1, dynatemp_range=0.4, logit_bias=((3, 1.5),),
    ),
}  # fmt: skip


class Whole:
    """llama.h's samplers, chained as in common/sampling.cpp, over all candidates of a row."""

    def __init__(self, engine: LlamaEngine, params: SamplingParams, seed: int, n_vocab: int) -> None:
        self.chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._n_ctx = engine.info.n_ctx_seq
        self._vocab = engine.model.vocab
        self._n_vocab = n_vocab
        biases = ffi.new("llama_logit_bias[]", list(params.logit_bias))
        self._add(lib.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
        if params.mirostat:
            self._add(lib.llama_sampler_init_temp(params.temperature))
            tau, eta = params.mirostat_tau, params.mirostat_eta
            if params.mirostat == 1:
                self._add(lib.llama_sampler_init_mirostat(engine.info.n_vocab, seed, tau, eta, 100))
            else:
                self._add(lib.llama_sampler_init_mirostat_v2(seed, tau, eta))
            return
        for name in params.samplers:
            if name != "adaptive_p":
                self._add(self._link(name, params, seed))
        if "adaptive_p" in params.samplers:
            self._add(lib.llama_sampler_init_adaptive_p(params.adaptive_target, params.adaptive_decay, seed))
        else:
            self._add(lib.llama_sampler_init_dist(seed))

    def _add(self, link: Any) -> None:
        lib.llama_sampler_chain_add(self.chain, link)

    def _link(self, name: str, p: SamplingParams, seed: int) -> Any:
        def window(n: int) -> int:
            return self._n_ctx if n < 0 else n

        if name == "dry":
            kept = [ffi.new("char[]", text.encode()) for text in p.dry_sequence_breakers]
            texts = ffi.new("const char *[]", kept)
            n = window(p.dry_penalty_last_n)
            return lib.llama_sampler_init_dry(
                self._vocab, p.dry_multiplier, p.dry_base, p.dry_allowed_length, n, texts, len(kept)
            )
        return {
            "penalties": lambda: lib.llama_sampler_init_penalties(
                self._n_vocab, window(p.repeat_last_n), p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            ),
            "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(p.top_n_sigma),
            "top_k": lambda: lib.llama_sampler_init_top_k(p.top_k),
            "typ_p": lambda: lib.llama_sampler_init_typical(p.typical_p, p.min_keep),
            "top_p": lambda: lib.llama_sampler_init_top_p(p.top_p, p.min_keep),
            "min_p": lambda: lib.llama_sampler_init_min_p(p.min_p, p.min_keep),
            "xtc": lambda: lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, seed),
            "temperature": lambda: lib.llama_sampler_init_temp_ext(
                p.temperature, p.dynatemp_range, p.dynatemp_exponent
            ),
            "infill": lambda: lib.llama_sampler_init_infill(self._vocab),
        }[name]()

    def draw(self, row: np.ndarray) -> int:
        data = np.zeros(len(row), [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        data["id"], data["logit"] = np.arange(len(row)), row
        pointer = ffi.from_buffer("llama_token_data *", data)
        candidates = ffi.new(
            "llama_token_data_array *", {"data": pointer, "size": len(row), "selected": -1, "sorted": False}
        )
        lib.llama_sampler_apply(self.chain, candidates)
        token = int(candidates.data[candidates.selected].id)
        lib.llama_sampler_accept(self.chain, token)
        return token

    def close(self) -> None:
        lib.llama_sampler_free(self.chain)


@functools.cache  # as much work as many chains
def rows(n_vocab: int, seed: int) -> list[np.ndarray]:
    """Return rows that favour a few tokens again and again, so that penalties take effect."""
    chance = np.random.default_rng(seed)
    liked = chance.choice(n_vocab, 12, replace=False)
    out = []
    for _ in range(N_STEPS):
        row = chance.normal(-4.0, 3.0, n_vocab)
        row[liked] += chance.normal(6.0, 2.0, len(liked))
        out.append(row.astype(np.float32))
    return out


# These chains depend on every candidate, however unlikely. Only rows with a wider spread show it.
FAR_APART = {"hotter": 10, "xtc that keeps nearly all": 4, "min-p that keeps all before sigma": 4}


@pytest.mark.parametrize("n_vocab", ["its own", WIDE])
@pytest.mark.parametrize("name", CHAINS)
def test_tokens_are_those_of_llama_cpps_chain_over_all_candidates(
    small: LlamaEngine, name: str, n_vocab: int | str
) -> None:
    params = CHAINS[name]
    n = n_vocab if isinstance(n_vocab, int) else small.info.n_vocab
    if name == "infill" and n == WIDE:
        n = small.info.n_vocab  # the sampler asks for the text of every candidate
    for seed in (1, 2, 3):
        ours, whole = small.sampler(params, seed), Whole(small, params, seed, n)
        history = np.random.default_rng(seed).integers(0, n, 30).astype(np.int32)
        ours.accept(history)
        for token in history:
            lib.llama_sampler_accept(whole.chain, int(token))
        said = [
            (draw(row, ours.handle), whole.draw(row)) for row in (row * FAR_APART.get(name, 1) for row in rows(n, seed))
        ]
        ours.close()
        whole.close()
        assert [a for a, _ in said] == [b for _, b in said]
        assert len({a for a, _ in said}) > 1, "or the test says nothing"


@pytest.mark.parametrize("shift", [0.0, -100.0])
@pytest.mark.parametrize(("exponent", "gap"), [(1.0, 90.0), (2.0, 46.0), (10.0, 9.5)])
def test_a_dynamic_temperature_that_comes_to_nothing_takes_the_best(
    small: LlamaEngine, exponent: float, gap: float, shift: float
) -> None:
    """llama.cpp divides by nearly 0 in this case, and its probabilities are NaN."""
    row = np.zeros(small.info.n_vocab, np.float32)
    row[300], row[301] = 200.0, 200.0 - gap  # no other token has a probability
    params = replace(NEW, temperature=1.0, dynatemp_range=1.0, dynatemp_exponent=exponent, logprobs=2)
    params = replace(params, post_sampling_probs=True, samplers=("temperature",))
    for seed in range(5):
        sampler = small.sampler(params, seed)
        assert draw(row + np.float32(shift), sampler.handle) == 300
        found = sampler.logprobs()
        assert found is not None and found.logprob == 0.0 and found.top[0] == (300, 0.0)
        sampler.close()


@pytest.mark.parametrize(
    "fields", [{}, {"mirostat": 2}, {"adaptive_target": 0.3}], ids=["dist", "mirostat", "adaptive"]
)
def test_the_largest_seed_is_a_seed_too(small: LlamaEngine, fields: dict[str, Any]) -> None:
    """To llama.cpp it means a seed drawn at random."""
    row = np.zeros(small.info.n_vocab, np.float32)

    def drawn(seed: int) -> list[int]:
        sampler = small.sampler(replace(NEW, temperature=1.0, top_k=0, **fields), seed)
        tokens = [draw(row, sampler.handle) for _ in range(8)]
        sampler.close()
        return tokens

    assert drawn(0xFFFFFFFF) == drawn(0xFFFFFFFF)
    assert drawn(0xFFFFFFFF) not in (drawn(0xFFFFFFFE), drawn(0)), "the seeds of the answers before and after it"


# -- distributions against their definitions, in numpy

N_DRAWS, N_LEARNING = (100_000, 50_000) if os.environ.get("UMA_FUZZ") == "full" else (50_000, 12_000)
ROW = np.sort(np.random.default_rng(5).normal(0.0, 2.0, 64))[::-1].astype(np.float32)
HISTORY = np.array([0, 1, 0, 2, 0, 9, 1, 0, 1, 0, 2, 0], np.int32)
P1 = SamplingParams(temperature=1.0, top_k=0)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def only(p: np.ndarray, keep: np.ndarray) -> np.ndarray:
    kept = np.where(keep, p, 0.0)
    return kept / kept.sum()


def top_p(p: np.ndarray, share: float) -> np.ndarray:
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    return only(p, np.isin(np.arange(len(p)), order[before < share]))


def typical(p: np.ndarray, share: float) -> np.ndarray:
    """Meister et al., arXiv 2202.00666: keep the tokens whose surprise is nearest to the entropy, until their sum is
    reached.
    """
    surprise = -np.log(p)
    order = np.argsort(np.abs(surprise - (p * surprise).sum()))
    before = np.cumsum(p[order]) - p[order]
    return only(p, np.isin(np.arange(len(p)), order[before <= share]))


def xtc(p: np.ndarray, probability: float, threshold: float) -> np.ndarray:
    above = np.flatnonzero(p >= threshold)
    excluded = above[np.argsort(-p[above])][:-1]
    return (1 - probability) * p + probability * only(p, ~np.isin(np.arange(len(p)), excluded))


def sigma(x: np.ndarray, n: float) -> np.ndarray:
    """Tang et al., arXiv 2411.07641."""
    return only(softmax(x), x >= x.max() - n * x.std())


def penalised(x: np.ndarray, params: SamplingParams) -> np.ndarray:
    counts = np.bincount(HISTORY[-params.repeat_last_n :], minlength=len(x))
    scaled = np.where(x > 0, x / params.repeat_penalty, x * params.repeat_penalty)
    return np.where(counts > 0, scaled - counts * params.frequency_penalty - params.presence_penalty, x)


def dry(x: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return, for every token, the longest end of the history that it has followed before."""
    out, tokens = x.copy(), HISTORY.tolist()
    for token in set(tokens):
        longest = 0
        for i in (i for i, t in enumerate(tokens) if t == token):
            n = 0
            while n < i and tokens[i - 1 - n] == tokens[len(tokens) - 1 - n]:
                n += 1
            longest = max(longest, n)
        if longest >= params.dry_allowed_length:
            out[token] -= params.dry_multiplier * params.dry_base ** (longest - params.dry_allowed_length)
    return out


def dynamic(x: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Temperature by normalized entropy, as llama.cpp's temp-ext defines it."""
    p = softmax(x)
    share = -(p * np.log(p)).sum() / math.log(len(x))
    low, high = max(0.0, params.temperature - params.dynatemp_range), params.temperature + params.dynatemp_range
    return softmax(x / (low + (high - low) * share**params.dynatemp_exponent))


def adapted(x: np.ndarray, target: float) -> np.ndarray:
    """llama.cpp's adaptive-p at its first draw: its average begins at the target."""
    p = softmax(x)
    distance = np.abs(p - target) / 0.3
    return softmax(5.0 - 10.0 * distance**2 / (1.0 + distance))


def mirostat_2(x: np.ndarray, tau: float) -> np.ndarray:
    """Basu et al., arXiv 2007.14966, as in llama.cpp: surprise above 2 tau is cut at the first draw."""
    p = softmax(x)
    return only(p, -np.log2(p) <= 2 * tau)


def mirostat_1(x: np.ndarray, tau: float, n_vocab: int) -> np.ndarray:
    p = np.sort(softmax(x))[::-1]
    i = np.arange(1, min(99, len(p) - 1) + 1)
    t, b = np.log((i + 1) / i), np.log(p[i - 1] / p[i])
    slope = (t * b).sum() / (t * t).sum()
    e = slope - 1
    k = (e * 2 ** (2 * tau) / (1 - n_vocab**-e)) ** (1 / slope)
    return only(softmax(x), np.arange(len(x)) < max(int(k), 1))


def case(expected: Callable[[np.ndarray, SamplingParams], np.ndarray], **fields: Any) -> tuple[Any, SamplingParams]:
    return expected, replace(P1, **fields)


DISTRIBUTIONS = {
    "plain": case(lambda x, p: softmax(x)),
    "temperature": case(lambda x, p: softmax(x / 1.7), temperature=1.7),
    "top-k": case(lambda x, p: only(softmax(x), np.arange(64) < 7), top_k=7),
    "top-p": case(lambda x, p: top_p(softmax(x), 0.8), top_p=0.8),
    "min-p": case(lambda x, p: only(softmax(x), softmax(x) >= 0.1 * softmax(x).max()), min_p=0.1),
    "top-p that keeps": case(lambda x, p: only(softmax(x), np.arange(64) < 5), top_p=0.01, min_keep=5),
    "min-p that keeps": case(lambda x, p: only(softmax(x), np.arange(64) < 5), min_p=0.99, min_keep=5),
    "typical": case(lambda x, p: typical(softmax(x), 0.6), typical_p=0.6),
    "sigma": case(lambda x, p: sigma(x, 1.0), top_n_sigma=1.0),
    "xtc": case(lambda x, p: xtc(softmax(x), 0.6, 0.05), xtc_probability=0.6, xtc_threshold=0.05),
    "penalties": case(lambda x, p: softmax(penalised(x, p)), repeat_penalty=1.5, frequency_penalty=0.2,
    presence_penalty=0.3),
    "penalties that raise": case(lambda x, p: softmax(penalised(x, p)), repeat_penalty=0.8, frequency_penalty=-0.3,
    repeat_last_n=4),
    "dry": case(lambda x, p: softmax(dry(x, p)), dry_multiplier=0.9, dry_allowed_length=1, dry_sequence_breakers=()),
    "dynatemp": case(dynamic, temperature=1.2, dynatemp_range=0.7, dynatemp_exponent=1.5),
    "bias": case(
        lambda x, p: only(softmax(x + 3.0 * (np.arange(64) == 30)), np.arange(64) != 1), logit_bias=((30, 3.0),
        (1, -math.inf))
    ),
    "adaptive": case(lambda x, p: adapted(x, 0.2), adaptive_target=0.2, samplers=("adaptive_p",)),
    "mirostat 2": case(lambda x, p: mirostat_2(x, 1.5), mirostat=2, mirostat_tau=1.5),
    "mirostat 1": case(lambda x, p: mirostat_1(x, 1.5, 64), mirostat=1, mirostat_tau=1.5),
    "order": case(lambda x, p: softmax(np.log(top_p(softmax(x / 2.0), 0.7) + 1e-300)), temperature=2.0, top_p=0.7,
                  samplers=("temperature", "top_p")),
}  # fmt: skip
LEARNING = (
    "penalties",
    "penalties that raise",
    "dry",
    "adaptive",
    "mirostat 2",
    "mirostat 1",
)  # these learn from every draw, so each draw gets a new sampler, which takes 20 times as long


@pytest.mark.fuzz
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_have_the_distribution_of_the_definition(small: LlamaEngine, name: str) -> None:
    expected_of, params = DISTRIBUTIONS[name]
    row, x = ROW.copy(), ROW.astype(np.float64)
    expected = mirostat_1(x, 1.5, small.info.n_vocab) if params.mirostat == 1 else expected_of(x, params)
    logits = ffi.cast("float *", row.ctypes.data)
    drawn = []
    if name in LEARNING:
        for seed in range(N_LEARNING):
            sampler = small.sampler(params, seed)
            sampler.accept(HISTORY)
            drawn.append(lib.uma_sample(logits, 64, sampler.handle))
            sampler.close()
    else:
        sampler = small.sampler(params, 12345)
        handle = sampler.handle
        drawn = [lib.uma_sample(logits, 64, handle) for _ in range(N_DRAWS)]
        sampler.close()
    counts = np.bincount(drawn, minlength=64)
    assert counts[expected == 0].sum() == 0
    often = expected * len(drawn) >= 5
    chi_squared = ((counts - expected * len(drawn))[often] ** 2 / (expected * len(drawn))[often]).sum()
    n_free = often.sum() - 1
    assert chi_squared < n_free + 4.5 * math.sqrt(2 * n_free) + 5, "fewer than one in 10,000 seeds give more"
