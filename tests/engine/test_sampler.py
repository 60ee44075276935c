"""What the samplers of every engine promise: masks and log probabilities, for decode rows and for a prompt's last
row.
"""

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
        if i % 3 == 0:  # whole words of the mask, and a part of a word
            allowed = [t for t in range(clean.info.n_vocab - 40) if t // 32 % 2 == i % 2]
        sampler.set_mask(mask_of(clean, allowed))
        token = draw(clean, sampler, token)
        assert token in allowed
        if params is COLD and clean.info.engine != "fake":
            assert token == max(allowed, key=lambda t: clean.logits(0)[t])
    sampler.close()


@pytest.mark.parametrize("params", [COLD, HOT], ids=["greedy", "drawn"])
def test_a_mask_that_refuses_nothing_drawn_changes_nothing(clean: Engine, params: SamplingParams) -> None:
    """Also if the mask is changed in place, or removed again."""
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
    finish(clean.publish_kv(0))
    sampler.close()


@pytest.mark.parametrize("n_top", [0, 1, 5, 20])
def test_log_probabilities_are_the_models_own_over_the_whole_vocabulary(clean: Engine, n_top: int) -> None:
    """No ban, mask or cut changes them."""
    params = SamplingParams(temperature=0.7, top_k=3, repeat_penalty=1.5, ban_eog=True, logprobs=n_top)
    sampler, token = clean.sampler(params, 5), read(clean, 0, tokens_of(clean, 30))
    for i in range(8):
        sampler.set_mask(mask_of(clean, [17, 93, 200]) if i % 2 else None)
        token = draw(clean, sampler, token)
        found, row = sampler.logprobs(), clean.logits(0).astype(np.float64)
        assert found is not None and len(found.top) == n_top
        if clean.info.engine == "fake":
            continue  # its rows are made after the token is chosen
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


@pytest.mark.parametrize("params", [COLD, HOT, SamplingParams(logprobs=3)], ids=["greedy", "drawn", "logprobs"])
def test_a_forced_token_comes_whatever_the_row_says_and_no_random_number_is_spent(
    clean: Engine, params: SamplingParams
) -> None:
    prompt, said = tokens_of(clean, 30), []
    for forced in ((), (201, 7)):
        clean.kv_truncate(0, 0)
        sampler, token = clean.sampler(params, 5), read(clean, 0, prompt)
        for each in forced:
            assert sampler.force(each)
            assert draw(clean, sampler, token) == each
            found = sampler.logprobs()
            if found is not None and clean.info.engine != "fake":
                row = clean.logits(0).astype(np.float64)
                assert (
                    found.logprob == pytest.approx(row[each] - np.log(np.exp(row).sum()), abs=1e-4)
                    and len(found.top) == 3
                )
        assert sampler.force(None)
        clean.kv_truncate(0, 0)
        token = read(clean, 0, prompt)
        said.append([token := draw(clean, sampler, token) for _ in range(6)])
        sampler.close()
    assert said[0] == said[1], "as if nothing had been forced"


def test_a_banned_token_cannot_be_forced(clean: Engine) -> None:
    sampler = clean.sampler(SamplingParams(logit_bias=((17, -np.inf), (18, -5.0))), 5)
    token = read(clean, 0, tokens_of(clean, 30))
    assert not sampler.force(17) and sampler.force(18)
    sampler.ban([93])
    assert not sampler.force(93), "and the last word still holds:"
    assert draw(clean, sampler, token) == 18
    sampler.close()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repeat_penalty=1.7, repeat_last_n=6),
        SamplingParams(frequency_penalty=2.0, presence_penalty=1.0, repeat_last_n=-1),
        SamplingParams(dry_multiplier=3.0, dry_allowed_length=1, dry_penalty_last_n=-1, dry_sequence_breakers=()),
    ],
    ids=["repeat", "frequency", "dry"],
)
def test_penalties_count_anew_after_tokens_were_taken_back(clean: Engine, params: SamplingParams) -> None:
    """A sampler that is told which tokens are left draws like one that never saw the others."""
    prompt = tokens_of(clean, 30)
    told, said = prompt[-params.n_recent(clean.info.n_ctx_seq) :], []
    for n_taken in (0, 5):
        clean.kv_truncate(0, 0)
        sampler, token = clean.sampler(params, 5), read(clean, 0, prompt)
        sampler.accept(told)
        first = token
        for _ in range(n_taken):
            token = draw(clean, sampler, token)
        if n_taken:
            sampler.recount(told)
            clean.kv_truncate(0, 0)
            assert read(clean, 0, prompt) == first
        token = first
        said.append([token := draw(clean, sampler, token) for _ in range(12)])
        sampler.close()
    assert said[0] == said[1]
