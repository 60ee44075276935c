"""Prompts and answers that exceed the context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cache.world import answer, check_idle
from tests.executor.contexts import N_CTX, text, world
from uma_core.errors import ErrorCode
from uma_core.executor import overflow
from uma_core.executor.admission import Limits
from uma_core.types import FinishReason


@given(
    st.lists(st.integers(0, 9), min_size=10, max_size=60), st.integers(2, 9), st.lists(st.integers(1, 60), max_size=4)
)
def test_a_cut_prompt_keeps_its_ends(tokens: list[int], n_kept: int, ends: list[int]) -> None:
    ends = sorted({e for e in ends if e <= len(tokens)})
    kept, left = overflow.without_middle(np.array(tokens), tuple(ends), n_kept)
    n_head = overflow.head_of(tuple(ends), n_kept // 2)
    assert len(kept) == n_kept
    assert kept.tolist() == tokens[:n_head] + tokens[len(tokens) - (n_kept - n_head) :]
    assert all(0 < e <= n_kept for e in left) and list(left) == sorted(left)


def test_the_first_message_is_the_head_where_it_fits() -> None:
    assert overflow.head_of((30, 80), 40) == 30
    assert overflow.head_of((50, 80), 40) == overflow.N_SINK
    assert overflow.head_of((), 40) == overflow.N_SINK
    kept, ends = overflow.without_middle(np.arange(100), (20, 50, 100), 60)
    assert kept.tolist() == [*range(20), *range(60, 100)] and ends == (20, 60)


@given(st.integers(2, 50), st.integers(0, 10))
def test_a_shift_drops_the_older_half_after_the_head(n: int, n_head: int) -> None:
    n_head = min(n, n_head)
    kept = overflow.without_oldest(np.arange(n), n_head).tolist()
    n_tail = (n - n_head) // 2
    assert kept == [*range(n_head), *range(n - n_tail, n)]


def test_error_refuses_what_does_not_fit_and_cuts_the_answer() -> None:
    w = world()
    w.submit("long", text(N_CTX + 1))
    assert w.refused == {} and w.tick() is False
    assert w.refused["long"].error.error is ErrorCode.PROMPT_TOO_LARGE
    w.submit("fits", text(N_CTX - 9), max_tokens=100)
    w.run()
    assert w.finals["fits"].usage["completion_tokens"] == 10
    assert w.finals["fits"].reason is FinishReason.LENGTH


@pytest.mark.parametrize("how", ["truncate-middle", "shift"])
def test_a_long_prompt_loses_its_middle(how: str) -> None:
    w = world()
    tokens = text(600)
    w.submit("a", tokens, max_tokens=30, overflow=how, message_ends=(50, 590))
    w.run()
    n_kept = N_CTX - 30
    kept = tokens[:50] + tokens[600 - (n_kept - 50) :]
    assert w.texts["a"].encode() == bytes(answer(kept, 30))
    assert w.finals["a"].usage == {
        "prompt_tokens": n_kept,
        "cached_tokens": 0,
        "completion_tokens": 30,
        "dropped_tokens": 600 - n_kept,
    }
    check_idle(w)


def test_the_configuration_decides_for_requests_that_do_not() -> None:
    w = world(limits=Limits(overflow="truncate-middle"))
    w.submit("a", text(600), max_tokens=10)
    w.submit("b", text(600), max_tokens=10, overflow="error")
    w.run()
    assert "a" in w.finals and w.refused["b"].error.error is ErrorCode.PROMPT_TOO_LARGE


@pytest.mark.parametrize("how", ["error", "truncate-middle", "shift"])
@pytest.mark.parametrize("n_ctx", [1, 2, 3])
def test_in_the_smallest_contexts_every_request_ends(how: str, n_ctx: int) -> None:
    w = world(n_ctx=2 * n_ctx)
    for n in range(1, n_ctx + 3):
        w.submit(f"r{n}", text(n), max_tokens=5, overflow=how)
    w.run(2000)
    assert w.texts["r1"]
    is_cut = how != "error" and n_ctx > 1
    too_large = [f"r{n}" for n in range(n_ctx + 1, n_ctx + 3)]
    assert list(w.refused) == ([] if is_cut else too_large)
    assert all(refused.error.error is ErrorCode.PROMPT_TOO_LARGE for refused in w.refused.values())
    check_idle(w)
