"""Prompts and answers that exceed the context."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cache.world import COST, World, answer, check_idle
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel
from uma_core.errors import ErrorCode
from uma_core.executor import overflow
from uma_core.executor.admission import Limits
from uma_core.types import FinishReason, Phase, Priority

N_CTX = 256


def world(**fields: object) -> World:
    limits = fields.pop("limits", None)
    return World(
        FakeModel(**{"n_seq_max": 2, "n_ctx": 2 * N_CTX, **fields}), CacheSettings(is_on=True, ram_bytes=10**8), limits
    )  # type: ignore[arg-type]


def text(n: int, first: int = 1) -> list[int]:
    return [first, *(97 + i * i % 26 for i in range(1, n))]


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


def shifted_answer(prompt: list[int], n: int, n_head: int, n_ctx: int = N_CTX) -> list[int]:
    """Return the model's answer if it forgets the older half each time that the context is full."""
    context, out = list(prompt), []
    while len(out) < n:
        out += answer(context, 1)
        if len(context) == n_ctx:
            context = overflow.without_oldest(np.array(context), n_head).tolist()
        context.append(out[-1])
    return out


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"n_prefill_slots": 0},
        {"n_prefill_slots": 0, "is_unified": True},
        {"n_prefill_slots": 0, "can_rollback": False},
    ],
)
def test_generation_goes_on_past_the_end_of_the_context(shape: dict[str, object]) -> None:
    w = world(**shape)
    prompt = text(100)
    w.submit("a", prompt, max_tokens=700, overflow="shift", message_ends=(20, 100))
    w.run()
    n_ctx = w.engine.info.n_ctx_seq
    expected = shifted_answer(prompt, 700, 20, n_ctx)
    assert w.texts["a"].encode() == bytes(expected)
    assert w.finals["a"].reason is FinishReason.LENGTH
    assert w.finals["a"].usage["completion_tokens"] == 700
    check_idle(w)


@pytest.mark.parametrize("priority", Priority)
def test_a_prompt_that_fills_the_context_is_answered_from_all_of_it(priority: Priority) -> None:
    w = world()
    w.submit("a", text(N_CTX), max_tokens=40, overflow="shift", priority=priority)
    w.run()
    assert w.texts["a"].encode() == bytes(shifted_answer(text(N_CTX), 40, overflow.N_SINK))
    check_idle(w)


@pytest.mark.parametrize("priority", Priority)
def test_a_first_token_that_waits_for_its_prompt_comes_before_the_shift(priority: Priority) -> None:
    """A token that `banned_strings` may take back is kept until the prompt's KV has arrived."""
    texts = []
    for n_prefill_slots in (0, 2):
        w = world(n_prefill_slots=n_prefill_slots)
        w.submit("a", text(N_CTX), max_tokens=9, overflow="shift", priority=priority, banned_strings=("e",))
        w.run()
        assert w.finals["a"].usage["completion_tokens"] == 9
        check_idle(w)
        texts.append(w.texts["a"])
    assert texts[0] == texts[1]


def test_a_shift_reads_the_tail_alone() -> None:
    import uma_core.metrics.catalog as m

    w = world()
    w.submit("a", text(100), max_tokens=200, overflow="shift", message_ends=(20, 100))
    w.run()
    n_tail = (N_CTX - 20) // 2
    assert w.registry.counter(m.PREFILL_TOKENS).value == 100 + n_tail


def test_what_a_shift_finds_in_the_cache_does_not_count_as_cached_tokens_of_the_prompt() -> None:
    w = world()
    for i in range(3):
        w.submit(f"r{i}", text(100), max_tokens=300, overflow="shift", message_ends=(20, 100))
        w.run()
        assert w.cached(f"r{i}") == (20 if i else 0)
        assert w.texts[f"r{i}"].encode() == bytes(shifted_answer(text(100), 300, 20))
    check_idle(w)


def test_shifting_beside_others_and_parked_in_between() -> None:
    w = world(n_seq_max=1, n_ctx=N_CTX)
    w.submit("work", text(100), max_tokens=500, overflow="shift", priority=Priority.BACKGROUND)
    n = 0
    while "work" not in w.finals:
        w.tick()
        w.check()
        if len(w.texts.get("work", "")) > 60 * (n + 1):
            n += 1
            w.submit(f"chat{n}", text(30, n + 1), max_tokens=5, priority=Priority.INTERACTIVE)
    w.run()
    assert w.texts["work"].encode() == bytes(shifted_answer(text(100), 500, overflow.N_SINK))
    for i in range(1, n + 1):
        assert w.texts[f"chat{i}"].encode() == bytes(answer(text(30, i + 1), 5))
    check_idle(w)


def test_a_copy_from_a_sequence_that_shifts_is_still_right() -> None:
    w = world(n_seq_max=3, n_ctx=3 * N_CTX)
    w.submit("a", text(240), max_tokens=100, overflow="shift", priority=Priority.INTERACTIVE)
    asked = 0
    while "a" not in w.finals:
        w.tick()
        w.check()
        if len(w.texts.get("a", "")) >= 12 + asked and asked < 12:  # around the moment of the shift
            asked += 1
            w.submit(f"b{asked}", [*text(238), asked + 1], max_tokens=3, priority=Priority.INTERACTIVE)
    w.run()
    for i in range(1, asked + 1):
        assert w.texts[f"b{i}"].encode() == bytes(answer([*text(238), i + 1], 3))
    assert w.texts["a"].encode() == bytes(shifted_answer(text(240), 100, overflow.N_SINK))
    check_idle(w)


def test_a_shift_that_is_cancelled_while_another_copies_leaves_nobody_a_wrong_text() -> None:
    slow = dataclasses.replace(COST, copy_ns_per_byte=100.0)
    w = World(FakeModel(n_seq_max=3, n_ctx=3 * N_CTX), CacheSettings(is_on=True, ram_bytes=0), cost=slow)
    prompt = text(240)
    w.submit("a", prompt, max_tokens=100, overflow="shift", priority=Priority.INTERACTIVE)
    w.tick()
    (a,) = w.executor.table
    while a.n_past < N_CTX - 2:
        w.tick()
    w.submit("b", [*prompt[:200], 2, 2], max_tokens=3, priority=Priority.INTERACTIVE)
    while a.transfer is None or a.n_past < N_CTX:
        w.tick()
        assert a.phase is not Phase.DONE, "it never waited for the copy"
    w.executor.cancel(1, "a")
    w.check()
    w.run()
    whole = [*prompt, *w.texts["a"].encode()]
    shifted = overflow.without_oldest(np.array(whole[:N_CTX]), overflow.N_SINK).tolist()
    w.ask("c", [*shifted, 3, 3])
    w.ask("d", [*whole[:N_CTX], 4][-N_CTX + 8 :])
    w.ask("e", [*prompt, 5])
    w.check()
    check_idle(w)


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
