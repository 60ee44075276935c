"""The FakeEngine's language: bytes as tokens, and a sampler that obeys its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.engine.fake.text import (
    ALPHABET,
    BOS,
    EOG,
    N_VOCAB,
    START,
    FakeSampler,
    advance,
    encode,
    next_token,
    piece_of,
    row_logits,
)
from uma_core.types import SamplingParams

WANTED = ALPHABET[3]


def sampler(seed: int = 0, **fields: Any) -> FakeSampler:
    return FakeSampler(SamplingParams(**{"temperature": 0.0, **fields}), seed)


def mask_of(*tokens: int) -> np.ndarray:
    bits = np.zeros(-(-N_VOCAB // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


@given(st.text(max_size=30), st.booleans())
def test_pieces_give_the_text_back(text: str, has_bos: bool) -> None:
    tokens = encode(text, has_bos, False)
    assert b"".join(map(piece_of, tokens)) == text.encode() and (tokens[:1] == [BOS]) == has_bos


def test_special_tokens_are_read_where_they_are_asked_for() -> None:
    assert encode("a<bos><eog>", False, True) == [97, BOS, EOG]
    assert encode("<eog>", False, False) == list(b"<eog>")
    assert piece_of(EOG) == piece_of(-1) == b""


def test_a_hash_depends_on_every_token_and_their_order() -> None:
    states = {advance(advance(START, a), b) for a in range(258) for b in range(0, 258, 16)}
    assert len(states) == 258 * 17


def test_answers_end_about_as_often_as_they_are_told_to() -> None:
    states, state = [], START
    for token in range(20_000):
        state = advance(state, token % 256)
        states.append(state)
    n_ends = sum(next_token(each, 200) == EOG for each in states)
    assert 50 < n_ends < 200 and not any(next_token(each, 0) == EOG for each in states)


def test_greedy_takes_the_best() -> None:
    assert int(row_logits(WANTED).argmax()) == WANTED
    assert sampler().choose(START, WANTED) == WANTED


def test_a_draw_depends_on_seed_and_content_alone() -> None:
    draws = [sampler(seed, temperature=1.0).choose(START, WANTED) for seed in range(30)]
    assert draws == [sampler(seed, temperature=1.0).choose(START, WANTED) for seed in range(30)]
    assert len(set(draws)) > 5 and set(draws) <= set(ALPHABET)
    assert sampler(3, temperature=1.0).choose(START, EOG) == EOG


def test_only_allowed_tokens_are_drawn() -> None:
    made = sampler()
    made.set_mask(mask_of(5, 6))
    assert made.choose(START, WANTED) in (5, 6)
    made.set_mask(mask_of(WANTED, 6))
    assert made.choose(START, WANTED) == WANTED
    made.set_mask(mask_of())
    assert made.choose(START, WANTED) == -1
    made.set_mask(None)
    assert made.choose(START, WANTED) == WANTED
    with pytest.raises(ValueError, match="a mask of 4 bytes"):
        made.set_mask(np.zeros(1, np.uint32))


def test_a_bias_moves_the_choice() -> None:
    assert sampler(logit_bias=((7, 50.0),)).choose(START, WANTED) == 7
    assert sampler(logit_bias=((WANTED, float("-inf")),)).choose(START, WANTED) != WANTED
    both = ((WANTED, float("-inf")), (7, 5.0))
    assert sampler(logit_bias=both).choose(START, WANTED) == 7


def test_an_answer_does_not_end_too_early() -> None:
    made = sampler(min_tokens=3, stop_token_ids=(9,))
    assert made.choose(START, EOG) != EOG and made.choose(START, 9) != 9
    made.allow_end()
    assert made.choose(START, EOG) == EOG
    assert sampler(ban_eog=True).choose(START, EOG) != EOG


def test_a_forced_token_comes_unless_it_is_banned() -> None:
    made = sampler()
    assert made.force(7) and made.choose(START, WANTED) == 7 and (made.n_forced, made.n_drawn) == (1, 0)
    made.force(None)
    made.ban([7])
    assert not made.force(7) and made.choose(START, WANTED) == WANTED


def test_log_probabilities_are_of_the_whole_vocabulary() -> None:
    made = sampler(logprobs=3)
    assert made.logprobs() is None
    made.choose(START, WANTED)
    found = made.logprobs()
    assert found is not None and len(found.top) == 3 and found.top[0] == (WANTED, found.logprob)
    row = row_logits(WANTED).astype(np.float64)
    assert found.logprob == pytest.approx(10 - np.log(np.exp(row).sum()))
    after = sampler(logprobs=3, post_sampling_probs=True)
    after.choose(START, WANTED)
    assert after.logprobs() == (0.0, ((WANTED, 0.0),))
