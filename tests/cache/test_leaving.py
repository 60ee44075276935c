"""Idle sequences make room in one pool of cells: they are saved first, and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cache.asking import computed, text, until, world
from tests.cache.world import CELL, COST, World, answer, check_idle
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel
from uma_core.types import FinishReason, Priority


def pool(copy_ns_per_byte: float = 0.5) -> World:
    """One pool of cells with more sequences than it has room for."""
    cost = replace(COST, copy_ns_per_byte=copy_ns_per_byte)
    fake = FakeModel(n_seq_max=4, n_ctx=640, is_unified=True, kv_bytes_per_cell=CELL)
    return World(fake, CacheSettings(is_on=True, ram_bytes=10**8), cost=cost)


def test_what_makes_room_in_one_pool_is_saved_and_comes_back() -> None:
    """Before, it was dropped: chats that took turns were read again each time, and so was a parked stream."""
    w = pool()
    for turn in range(2):
        for i in range(4):
            w.ask(f"{turn} {i}", text(250, i))
    assert [w.cached(f"1 {i}") for i in range(4)] == [249] * 4

    n_before = computed(w)
    w.submit("work", text(500, 8), max_tokens=60, priority=Priority.BACKGROUND)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(140, 9), max_tokens=10, priority=Priority.INTERACTIVE)
    w.run()
    assert w.executor.meters.preemptions.value == 1 and computed(w) - n_before == 640
    assert w.texts["work"].encode() == bytes(answer(text(500, 8), 60))
    check_idle(w)


@pytest.mark.parametrize("is_unified", [False, True])
def test_a_beginning_that_two_sequences_lose_at_once_is_saved(is_unified: bool) -> None:
    """Before, each of them counted on the other, and the whole prompt was read again."""
    w = world(n_seq_max=2, n_ctx=800 if is_unified else 2048, is_unified=is_unified)
    first, second = [*text(200), *text(100, 1)], [*text(200), *text(100, 2)]
    for prompts in ((first, second), (text(300, 3), text(300, 4))):
        for prompt in prompts:
            w.submit(str(prompt), prompt, max_tokens=8)
        w.run()
    w.ask("again", first)
    assert w.cached("again") == 299
    check_idle(w)


def test_sequences_make_room_even_if_they_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the first one stayed for ever, and whoever was admitted later never began."""
    w = pool()
    w.ask("first", text(400))
    with monkeypatch.context() as broken:
        broken.setattr(w.cache.store, "size", lambda *_: 1 // 0)
        w.submit("new", text(300, 1), max_tokens=20)
        w.run()
    w.ask("later", text(600, 2))
    assert w.texts["new"].encode() == bytes(answer(text(300, 1), 20))
    check_idle(w)


@pytest.mark.parametrize("who", ["newcomer", "owner", "both"])
def test_sequences_that_make_room_can_lose_whom_they_make_it_for(who: str) -> None:
    """The newcomer is cancelled, or the next turn of the chat that leaves arrives, while that chat is being saved."""
    w = pool(copy_ns_per_byte=150.0)
    w.ask("first", text(400))
    w.submit("new", text(300, 1), max_tokens=20)
    until(w, lambda: any(resident.is_awaited for resident in w.cache.residents))
    if who != "owner":
        w.executor.cancel(1, "new")
    if who != "newcomer":
        w.submit("next", text(400), max_tokens=8)
    w.run()
    for name, tokens, n in (("new", text(300, 1), 20), ("next", text(400), 8)):
        if name in w.finals and w.finals[name].reason is FinishReason.LENGTH:
            assert w.texts[name].encode() == bytes(answer(tokens, n))
    assert len(w.finals) == (2 if who == "newcomer" else 3)
    w.ask("large", text(600, 9), n=40)
    check_idle(w)


@pytest.mark.parametrize("is_forked", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_who_takes_over_a_large_sequence_can_go_before_others_have_room(is_cancelled: bool, is_forked: bool) -> None:
    """The other one waits until the sequence is saved, or is left alone. If it copies from it, that comes first."""
    cost = replace(COST, copy_ns_per_byte=150.0)
    fake = FakeModel(n_seq_max=2, n_ctx=512, is_unified=True, kv_bytes_per_cell=CELL)
    w = World(fake, CacheSettings(is_on=True, ram_bytes=10**8), cost=cost)
    w.ask("large", text(400), n=71)
    n_before = w.engine.slot_warnings()
    prompt = [*text(40), *text(110, 3)] if is_forked else text(150, 3)
    w.submit("other", prompt, max_tokens=40)
    w.submit("taker", text(300, 2), max_tokens=20)
    until(w, lambda: any(resident.is_claimed for resident in w.cache.residents))
    if is_cancelled:
        w.executor.cancel(1, "taker")
    w.run()
    assert w.engine.slot_warnings() == n_before
    assert w.texts["other"].encode() == bytes(answer(prompt, 40))
    assert w.cached("other") == (40 if is_forked else 0)
    assert is_cancelled or w.texts["taker"].encode() == bytes(answer(text(300, 2), 20))
    check_idle(w)
