"""Drafts are verified in one decode call: the tokens are those of separate steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.engine.drive import generate, read, step, tokens_of
from uma_core.engine.api import NOT_DRAWN, WANT_IF_ACCEPTED, WANT_LOGITS, Batch, DecodeStatus, Engine, Sampler
from uma_core.types import SamplingParams

N = 6


def verify(
    engine: Engine,
    seq_id: int,
    token: int,
    drafts: Sequence[int],
    want: int = WANT_IF_ACCEPTED,
    sampler: Sampler | None = None,
) -> list[int]:
    """Return the tokens that were drawn for the token's row and for each draft's row."""
    batch = Batch(engine.info.n_batch)
    n = engine.kv_len(seq_id)
    batch.add(token, n, seq_id, True)
    batch.verify(drafts, n + 1, seq_id, want)
    outcome = engine.decode(batch, [sampler] * batch.n_rows)
    assert outcome.status is DecodeStatus.OK
    return list(outcome.tokens)


@pytest.fixture
def begun(clean: Engine) -> tuple[Engine, int, list[int]]:
    """Sequence 0 has read a prompt. Return the engine, the prompt's length, and the next token."""
    prompt = tokens_of(clean, 50)
    text = generate(clean, 0, read(clean, 0, prompt), N)
    clean.kv_truncate(0, len(prompt))
    if clean.kv_len(0) != len(prompt):
        pytest.fail("this memory does not roll back")
    return clean, len(prompt), text


def test_right_drafts_are_all_drawn(begun: tuple[Engine, int, list[int]]) -> None:
    engine, n, text = begun
    assert verify(engine, 0, text[0], text[1:N]) == text[1 : N + 1]
    assert engine.kv_len(0) == n + N


def test_nothing_is_drawn_behind_a_wrong_draft(begun: tuple[Engine, int, list[int]]) -> None:
    engine, n, text = begun
    wrong = (text[3] + 1) % engine.info.n_vocab
    drawn = verify(engine, 0, text[0], [text[1], text[2], wrong, text[4]])
    assert drawn == [text[1], text[2], text[3], NOT_DRAWN, NOT_DRAWN]
    assert engine.kv_truncate(0, n + 3)
    assert step(engine, [(0, text[3])]) == [text[4]], "what was drafted wrongly is gone"


def test_rows_can_be_drawn_one_by_one(begun: tuple[Engine, int, list[int]]) -> None:
    engine, _, text = begun
    drawn = verify(engine, 0, text[0], text[1:3], WANT_LOGITS)
    assert drawn == [text[1], NOT_DRAWN, NOT_DRAWN]
    assert [engine.draw(1, None), engine.draw(2, None)] == text[2:4]


def test_other_sequences_are_beside_it(clean: Engine) -> None:
    if not clean.info.capabilities.can_mix_rows:
        return  # such calls are computed in parts and never planned
    prompts = [tokens_of(clean, 40 + i, i) for i in range(3)]
    texts = [generate(clean, i, read(clean, i, prompt), N) for i, prompt in enumerate(prompts)]
    for i, prompt in enumerate(prompts):
        clean.kv_truncate(i, len(prompt))
    batch = Batch(clean.info.n_batch)
    for i, text in enumerate(texts):
        batch.add(text[0], clean.kv_len(i), i, True)
        batch.verify(text[1 : 1 + i], clean.kv_len(i) + 1, i, WANT_IF_ACCEPTED)
    outcome = clean.decode(batch, [None] * batch.n_rows)
    assert list(outcome.tokens) == [*texts[0][1:2], *texts[1][1:3], *texts[2][1:4]]


def test_a_sampler_sees_what_it_would_see_without_drafts(clean: Engine) -> None:
    """Seeds and penalties: the same tokens with right drafts, wrong ones and none."""
    prompt = tokens_of(clean, 30)
    params = SamplingParams(temperature=0.9, seed=11, repeat_penalty=1.3)
    if clean.info.engine == "fake":
        params = SamplingParams(temperature=0.9, seed=11)

    def drawn(drafts_of: list[int]) -> list[int]:
        clean.kv_truncate(0, 0)
        sampler = clean.sampler(params, 11)
        out = [read(clean, 0, prompt)]
        while len(out) <= N:
            drafts = drafts_of[len(out) : len(out) + 3]
            n = clean.kv_len(0)
            for i, token in enumerate(verify(clean, 0, out[-1], drafts, WANT_IF_ACCEPTED, sampler)):
                out.append(token)
                if i == len(drafts) or token != drafts[i]:
                    break
            assert clean.kv_truncate(0, n + i + 1)
        sampler.close()
        return out[: N + 1]

    plain = drawn([])
    assert drawn(plain) == plain
    assert drawn([plain[0], plain[1], (plain[2] + 1) % clean.info.n_vocab, *plain[3:]]) == plain


@pytest.mark.parametrize("n_drafts", (1, 3, 7, 15))
def test_logits_of_drafts_have_the_bits_of_single_rows(clean: Engine, n_drafts: int) -> None:
    """Only for engines that promise it."""
    if not clean.info.is_deterministic or clean.info.engine == "fake":
        return
    prompt = tokens_of(clean, 900)
    tokens = [int(t) for t in tokens_of(clean, n_drafts + 1, 9)]
    read(clean, 0, prompt)
    alone = []
    for token in tokens:
        step(clean, [(0, token)])
        alone.append(np.array(clean.logits(0)))
    clean.kv_truncate(0, len(prompt))
    verify(clean, 0, tokens[0], tokens[1:])
    for row, expected in enumerate(alone):
        assert np.array_equal(clean.logits(row), expected), f"row {row}"
