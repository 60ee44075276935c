"""What every engine's samplers promise: masks and log probabilities, for decode rows and for a prompt's last one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.conftest import SLICED
from tests.engine.drive import FOREVER, finish, read, tokens_of
from uma_core.engine.api import Batch, Engine, Sampler
from uma_core.types import SamplingParams

HOT = SamplingParams(temperature=1.3, top_k=0)
COLD = SamplingParams()

on_sliced = pytest.mark.parametrize("engine", SLICED, indirect=True)


def mask_of(engine: Engine, allowed: list[int]) -> np.ndarray:
    mask = np.zeros(-(-engine.info.n_vocab // 32), np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << (token % 32))
    return mask


def draw(engine: Engine, sampler: Sampler, token: int) -> int:
    batch = Batch(1)
    batch.add(token, engine.kv_len(0), 0, True)
    return engine.decode(batch, [sampler]).tokens[0]


@pytest.mark.parametrize("params", [COLD, HOT, SamplingParams(repeat_penalty=1.3)], ids=["greedy", "drawn", "penalty"])
def test_only_allowed_tokens_are_drawn(clean: Engine, params: SamplingParams) -> None:
    chance = np.random.default_rng(3)
    sampler, token = clean.sampler(params, 5), read(clean, 0, tokens_of(clean, 30))
    for i in range(24):
        allowed = sorted(chance.choice(clean.info.n_vocab, 1 + i % 7, replace=False).tolist())
        sampler.set_mask(mask_of(clean, allowed))
        token = draw(clean, sampler, token)
        assert token in allowed
        if params is COLD and clean.info.engine != "fake":
            assert token == max(allowed, key=lambda t: clean.logits(0)[t])
    sampler.close()


@pytest.mark.parametrize("params", [COLD, HOT], ids=["greedy", "drawn"])
def test_a_mask_that_refuses_nothing_drawn_changes_nothing(clean: Engine, params: SamplingParams) -> None:
    """Also where the one that was set is changed in place, and where it is taken away again."""
    everything = np.full(-(-clean.info.n_vocab // 32), 0xFFFFFFFF, np.uint32)
    prompt = tokens_of(clean, 30)
    said = []
    for mask in (None, everything):
        clean.kv_truncate(0, 0)
        sampler, token = clean.sampler(params, 5), read(clean, 0, prompt)
        said.append([token])
        sampler.set_mask(np.zeros_like(everything))
        sampler.set_mask(mask)
        for _ in range(10):
            said[-1].append(draw(clean, sampler, said[-1][-1]))
        sampler.close()
    assert said[0] == said[1]


def test_a_mask_that_allows_nothing_gives_no_token(clean: Engine) -> None:
    sampler, token = clean.sampler(HOT, 5), read(clean, 0, tokens_of(clean, 30))
    mask = mask_of(clean, [])
    sampler.set_mask(mask)
    assert draw(clean, sampler, token) == -1
    mask[3] = 1 << 5
    assert draw(clean, sampler, token) == 101
    with pytest.raises(ValueError, match="mask"):
        sampler.set_mask(mask[1:])
    sampler.close()


@on_sliced
def test_a_prompts_last_row_obeys_the_mask_and_has_log_probabilities(clean: Engine) -> None:
    prompt = tokens_of(clean, 50)
    sampler = clean.sampler(SamplingParams(logprobs=4), 5)
    assert clean.prefill_open(0, prompt, True)
    clean.prefill_run(0, FOREVER, FOREVER // 2, 1)
    sampler.set_mask(mask_of(clean, [17, 93]))
    token = clean.prefill_sample(0, sampler)
    assert token in (17, 93)
    found, row = sampler.logprobs(), clean.prefill_logits(0).astype(np.float64)
    assert found is not None and len(found.top) == 4
    if clean.info.engine != "fake":
        assert found.logprob == pytest.approx(row[token] - np.log(np.exp(row).sum()), abs=1e-4)
    finish(clean.handover(0))
    sampler.close()


@pytest.mark.parametrize("n_top", [0, 1, 5, 20])
def test_log_probabilities_are_the_models_own_over_the_whole_vocabulary(clean: Engine, n_top: int) -> None:
    """Neither a ban nor a mask nor a cut changes them."""
    params = SamplingParams(temperature=0.7, top_k=3, repeat_penalty=1.5, ban_eog=True, logprobs=n_top)
    sampler, token = clean.sampler(params, 5), read(clean, 0, tokens_of(clean, 30))
    for i in range(8):
        sampler.set_mask(mask_of(clean, [17, 93, 200]) if i % 2 else None)
        token = draw(clean, sampler, token)
        found, row = sampler.logprobs(), clean.logits(0).astype(np.float64)
        assert found is not None and len(found.top) == n_top
        if clean.info.engine == "fake":
            continue  # its rows are made after the choice
        logs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert found.logprob == pytest.approx(logs[token], abs=1e-4)
        assert [t for t, _ in found.top] == np.argsort(-logs, kind="stable")[:n_top].tolist()
        assert [value for _, value in found.top] == pytest.approx(np.sort(logs)[::-1][:n_top], abs=1e-4)
    sampler.close()


def test_log_probabilities_after_the_samplers_are_those_of_the_draw(clean: Engine) -> None:
    params = SamplingParams(temperature=0.7, top_k=3, logprobs=20, post_sampling_probs=True)
    sampler, token = clean.sampler(params, 5), read(clean, 0, tokens_of(clean, 30))
    for _ in range(8):
        token = draw(clean, sampler, token)
        found = sampler.logprobs()
        assert found is not None and 1 <= len(found.top) <= 3
        assert (token, found.logprob) in found.top
        assert sum(np.exp(value) for _, value in found.top) == pytest.approx(1, abs=1e-5)
        if clean.info.engine != "fake":
            row = np.sort(clean.logits(0).astype(np.float64))[::-1][:3] / 0.7
            assert [value for _, value in found.top] == pytest.approx(row - np.log(np.exp(row).sum()), abs=1e-4)
    sampler.close()
    greedy = clean.sampler(SamplingParams(logprobs=20, post_sampling_probs=True), 5)
    token = draw(clean, greedy, token)
    assert greedy.logprobs() == (0.0, ((token, 0.0),))
    greedy.close()


def test_whoever_asks_for_nothing_has_no_log_probabilities(clean: Engine) -> None:
    sampler, token = clean.sampler(HOT, 5), read(clean, 0, tokens_of(clean, 30))
    draw(clean, sampler, token)
    assert sampler.logprobs() is None
    sampler.close()
