"""Contexts that are shifted, and sequences that are parked meanwhile."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.cache.world import COST, World, answer, check_idle
from tests.executor.contexts import N_CTX, text, world
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel
from uma_core.executor import overflow
from uma_core.policy.plan import Plan
from uma_core.types import FinishReason, Phase, Priority


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


@pytest.mark.parametrize("n_prefill_slots", [0, 2])
@pytest.mark.parametrize("n_ticks", [1, 2, 6])
def test_a_parked_session_has_no_sequence_and_goes_on_where_it_was(n_prefill_slots: int, n_ticks: int) -> None:
    """At any time: while its prompt is read, before its first token went out, and later."""
    w = world(n_seq_max=2, n_prefill_slots=n_prefill_slots)
    w.submit("a", text(100), max_tokens=30)
    for _ in range(n_ticks):
        w.tick()
    (session,) = w.executor.table
    w.executor.set_config(w.executor.config)  # no plan that parks is the repetition of another one
    for _ in range(2):  # the second time it is parked already
        w.executor.slots.park(Plan(park=(session.sid,)))
        assert session.phase is Phase.PARKED and (session.seq_id, session.n_chunk) == (-1, 0)
        assert w.executor.table.free_seqs == [0, 1] and w.executor.meters.preemptions.value == 1
    w.run()
    assert w.texts["a"].encode() == bytes(answer(text(100), 30))
    check_idle(w)
