"""What a llama.cpp model's sampler draws from rows that decide it, and what it leaves behind."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from tests.engine.drive import draw
from uma_core.engine.lib import ffi
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.server.memory.budget import resident_bytes
from uma_core.types import SamplingParams

N_VOCAB = 20_011  # not a multiple of any block


def row(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 3.0, N_VOCAB).astype(np.float32)


def test_top_p_keeps_the_likeliest_until_they_add_up(small: LlamaEngine) -> None:
    """The shares are 0.5, 0.3, 0.15 and little else: p 0.7 needs two of them, whatever the seed."""
    logits = np.full(N_VOCAB, -40.0, np.float32)
    logits[[70, 7000, 9000]] = np.log([0.5, 0.3, 0.15])
    drawn = set()
    for seed in range(40):
        sampler = small.sampler(SamplingParams(temperature=1.0, top_k=0, top_p=0.7), seed)
        drawn.add(draw(logits, sampler.handle))
        sampler.close()
    assert drawn == {70, 7000}


@pytest.mark.parametrize("n", [1, 31, 255, 256, 257, 4000])
def test_greedy_is_the_first_of_the_largest(n: int) -> None:
    logits = np.round(row(n)[:n])
    assert draw(logits, ffi.NULL) == int(logits.argmax())


@pytest.mark.parametrize("at", [0, 300, N_VOCAB - 1])
def test_a_row_that_is_no_number_gives_no_token(at: int) -> None:
    logits = row(1)
    logits[at] = np.nan
    assert draw(logits, ffi.NULL) == -1
    assert draw(np.full(N_VOCAB, -np.inf, np.float32), ffi.NULL) == -1


def test_a_row_is_as_it_was_after_more_edits_than_it_has_tokens() -> None:
    """A small vocabulary can have a bias for each token, and bans of some of them beside that."""
    n, infinity = 40, float("inf")
    before = row(2)[:n].copy()
    logits, mask = before.copy(), np.array([0xFFFF, 0], np.uint32)
    edits = [(token, 0.5) for token in range(n - 1)] + [(token, -infinity) for token in range(5)] + [(n - 1, -infinity)]
    kept = [ffi.new("llama_logit_bias[]", edits), ffi.from_buffer("uint32_t *", mask)]
    sampler = ffi.new("uma_sampler *", {"forced": -1, "edits": kept[0], "n_edits": len(edits), "mask": kept[1]})
    drawn: list[int] = []
    thread = threading.Thread(target=lambda: drawn.append(draw(logits, sampler)))  # with memory for this row alone
    thread.start()
    thread.join()
    assert drawn == [5 + int(before[5:16].argmax())]
    assert (logits == before).all()


class Compared(int):
    """A token of a bias that counts how often it is compared."""

    n = 0

    def __eq__(self, other: object) -> bool:
        Compared.n += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_whether_a_token_is_banned_costs_the_same_however_many_are(small: LlamaEngine) -> None:
    n = 1_000
    biases = tuple((Compared(token), -math.inf if token % 4 else -1.0) for token in range(n))
    sampler = small.sampler(SamplingParams(logit_bias=biases, min_tokens=2, stop_token_ids=(8,)), 0)
    sampler.ban([12])
    Compared.n = 0
    allowed = [token for token in range(n) if sampler.force(token)]
    ends = [token for token in small.model.eog if token < n and token % 4 == 0]
    assert allowed == sorted({*range(0, n, 4)} - {8, 12, *ends}) and Compared.n <= n
    sampler.allow_end()
    sampler.ban(())
    assert all(sampler.force(token) for token in (8, 12, *ends)) and not sampler.force(9)
    sampler.close()


def test_greedy_with_a_penalty_and_banned_ends_takes_the_best_that_is_left(small: LlamaEngine) -> None:
    logits = np.zeros(small.info.n_vocab, np.float32)
    ends = [token for token in range(small.info.n_vocab) if small.is_eog(token)]
    logits[ends] = 20.0
    logits[300], logits[301] = 9.0, 8.5
    sampler = small.sampler(SamplingParams(repeat_penalty=4.0, repeat_last_n=8, ban_eog=True), 1)
    assert ends and [draw(logits, sampler.handle) for _ in range(2)] == [300, 301]
    sampler.close()


def test_candidates_that_penalties_push_down_leave_room_for_others(small: LlamaEngine) -> None:
    """top_k is 1 and the best token has a penalty, so the next best must be among the candidates."""
    logits = np.zeros(N_VOCAB, np.float32)
    logits[300], logits[301], logits[5000] = 9.0, 8.5, 8.0
    sampler = small.sampler(SamplingParams(temperature=0.7, top_k=1, repeat_penalty=4.0, repeat_last_n=8), 1)
    assert [draw(logits, sampler.handle) for _ in range(3)] == [300, 301, 5000]
    sampler.close()


@pytest.mark.parametrize("penalty", [4.0, 0.25])
def test_a_penalty_leaves_everything_else_as_likely_as_it_is(small: LlamaEngine, penalty: float) -> None:
    """If the best token is lowered far, it no longer decides which tokens are too unlikely. If a token is raised far,
    it is no longer too unlikely.
    """
    logits = np.full(N_VOCAB, -200.0, np.float32)
    logits[300], logits[[7000, 9000]] = (60.0, 20.0) if penalty > 1 else (24.0, 60.0)
    drawn = set()
    for seed in range(30):
        sampler = small.sampler(SamplingParams(temperature=1.0, top_k=0, repeat_penalty=penalty, repeat_last_n=8), seed)
        sampler.accept(np.array([300], np.int32))
        drawn.add(draw(logits, sampler.handle))
        sampler.close()
    assert drawn == ({7000, 9000} if penalty > 1 else {300})


def test_the_row_is_as_it_was_after_a_draw(small: LlamaEngine) -> None:
    logits = np.random.default_rng(1).normal(0.0, 3.0, small.info.n_vocab).astype(np.float32)
    before = logits.tobytes()
    sampler = small.sampler(SamplingParams(temperature=1.0, repeat_penalty=1.2, ban_eog=True, logprobs=3), 1)
    mask = np.full(-(-small.info.n_vocab // 32), 0x10101010, np.uint32)
    sampler.set_mask(mask)
    for _ in range(30):
        draw(logits, sampler.handle)
        assert logits.tobytes() == before
    sampler.close()


def test_a_thread_that_ends_leaves_no_scratch_behind(small: LlamaEngine) -> None:
    """Every load of a model samples on a separate thread, and each of these would leave 3 MiB."""
    logits = np.zeros(1 << 18, np.float32)  # all equal: every token is a candidate, and the scratch is written
    sampler = small.sampler(SamplingParams(temperature=1.0, top_k=0, top_p=1.0), 1)
    drawn = []

    def draw_on_a_thread(n: int) -> None:
        for _ in range(n):
            thread = threading.Thread(target=lambda: drawn.append(draw(logits, sampler.handle)))
            thread.start()
            thread.join()

    draw_on_a_thread(4)
    before = resident_bytes()
    draw_on_a_thread(60)
    sampler.close()
    assert len(drawn) == 64 and -1 not in drawn
    assert resident_bytes() - before < 90 << 20  # half of what 60 threads hold; the C heap keeps a part of any memory


def test_a_row_that_is_no_number_behind_a_mask_has_no_log_probabilities(small: LlamaEngine) -> None:
    logits = np.zeros(small.info.n_vocab, np.float32)
    logits[300], logits[7000] = 9.0, np.nan
    mask = np.zeros(-(-small.info.n_vocab // 32), np.uint32)
    mask[300 // 32] = 1 << (300 % 32)
    for n_logprobs, expected in ((None, 300), (2, -1)):
        sampler = small.sampler(SamplingParams(temperature=1.0, logprobs=n_logprobs), 1)
        sampler.set_mask(mask)
        logits[301] = 8.0
        found = {draw(logits, sampler.handle) for _ in range(5)}
        assert found <= {expected, -1} and (n_logprobs is None or found == {-1})
        sampler.close()
