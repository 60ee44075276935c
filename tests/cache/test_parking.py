"""Sessions and residents that leave their sequences and come back, and room that shrinks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cache.asking import ON, SHAPES, computed, model, park_one, text, until, world
from tests.cache.world import CELL, COST, World, answer, check_idle
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel
from uma_core.session.events import Hold
from uma_core.types import FinishReason, Phase, Priority


@pytest.mark.parametrize("is_on", [True, False])
def test_a_parked_stream_goes_on_without_reading_anything_again(is_on: bool) -> None:
    w = world(CacheSettings(is_on=is_on, ram_bytes=10**8), n_seq_max=1, n_ctx=2048)
    park_one(w)
    until(w, lambda: "chat" in w.finals)
    assert "work" not in w.finals
    w.run()
    assert computed(w) == 540
    assert w.texts["work"].encode() == bytes(answer(text(500), 60))
    assert w.finals["work"].usage == {"prompt_tokens": 500, "cached_tokens": 0, "completion_tokens": 60}
    check_idle(w)


def test_two_streams_are_parked_for_a_chat_that_needs_the_cells_of_both() -> None:
    """Before, the first stream took its cells back while the second was parked, and so on for ten seconds."""
    w = world(is_unified=True, n_seq_max=4, n_ctx=1024)
    for i in range(2):
        w.submit(f"work {i}", text(60, i), max_tokens=400, priority=Priority.BACKGROUND)
    until(w, lambda: all(len(w.texts.get(f"work {i}", "")) >= 10 for i in range(2)))
    w.submit("chat", text(40, 2), max_tokens=800, priority=Priority.INTERACTIVE)
    until(w, lambda: w.texts.get("chat"))
    assert w.executor.meters.preemptions.value == 2
    w.run()
    assert all(w.texts[f"work {i}"].encode() == bytes(answer(text(60, i), 400)) for i in range(2))
    check_idle(w)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_parked_stream_without_room_for_its_kv_reads_it_again(shape: str) -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=0), n_seq_max=1, n_ctx=2048, **SHAPES[shape])
    w.submit("work", text(500), max_tokens=60, priority=Priority.BACKGROUND)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(40, 1), max_tokens=10, priority=Priority.INTERACTIVE)
    w.run()
    assert w.texts["work"].encode() == bytes(answer(text(500), 60))
    assert w.texts["chat"].encode() == bytes(answer(text(40, 1), 10))
    check_idle(w)


def test_a_parked_stream_can_be_cancelled() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    park_one(w)
    assert w.executor.cancel(1, "work")
    w.run()
    assert w.finals["work"].reason is FinishReason.CANCELLED
    check_idle(w)


def test_nothing_is_left_of_a_private_stream_that_ends_while_it_is_parked() -> None:
    """Before, the snapshot that was being made at that moment stayed in memory, out of the reach of a clear."""
    w = World(model(n_seq_max=1, n_ctx=2048), ON, cost=replace(COST, copy_ns_per_byte=150.0))
    w.submit("work", text(500), max_tokens=60, priority=Priority.BACKGROUND, cache_prompt=False)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(40, 1), max_tokens=10, priority=Priority.INTERACTIVE, cache_prompt=False)
    until(w, lambda: w.cache.store.ram.n_bytes)
    assert not w.cache.store.ram.n_segments, "it is being saved"
    assert w.executor.cancel(1, "work")
    w.run()
    assert w.cache.store.ram.n_bytes == 0
    check_idle(w)


def test_parking_with_sampling_gives_the_same_text() -> None:
    from uma_core.types import SamplingParams

    hot = SamplingParams(temperature=1.0, seed=5)
    texts = []
    for is_disturbed in (False, True):
        w = world(n_seq_max=1, n_ctx=2048)
        w.submit("work", text(500), max_tokens=60, priority=Priority.BACKGROUND, sampling=hot)
        until(w, lambda w=w: len(w.texts.get("work", "")) >= 10)
        if is_disturbed:
            w.submit("chat", text(40, 1), max_tokens=10, priority=Priority.INTERACTIVE)
        w.run()
        texts.append(w.texts["work"])
    assert texts[0] == texts[1]


def test_a_held_reader_does_not_lose_its_place() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    w.submit("a", text(100), max_tokens=30, priority=Priority.INTERACTIVE)
    until(w, lambda: len(w.texts.get("a", "")) > 3)
    w.executor.hold(1, True)
    for _ in range(20):
        w.tick()
    w.executor.hold(Hold(1, False).conn_id, False)
    w.run()
    assert w.texts["a"].encode() == bytes(answer(text(100), 30))
    check_idle(w)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("waiter", list(Priority))
def test_a_held_reader_gives_its_place_to_who_waits_and_gets_it_back(
    shape: str, priority: Priority, waiter: Priority
) -> None:
    w = world(n_seq_max=1, n_ctx=2048, **SHAPES[shape])
    w.submit("a", text(100), max_tokens=60, priority=priority)
    until(w, lambda: len(w.texts.get("a", "")) > 3)
    w.executor.hold(1, True)
    w.submit("b", text(50, 1), max_tokens=20, priority=waiter, conn=2)
    until(w, lambda: "b" in w.finals)
    assert w.texts["b"].encode() == bytes(answer(text(50, 1), 20))
    assert "a" not in w.finals
    w.executor.hold(1, False)
    w.run()
    assert w.texts["a"].encode() == bytes(answer(text(100), 60))
    assert w.finals["a"].usage == {"prompt_tokens": 100, "cached_tokens": 0, "completion_tokens": 60}
    check_idle(w)


@pytest.mark.parametrize("priority", list(Priority))
def test_held_readers_chunks_do_not_keep_the_prefill_slots(priority: Priority) -> None:
    """Both prefill slots hold a chunk when the reader of both stops. Another client's prompt must still be read."""
    w = world(n_seq_max=3, n_prefill_slots=2)
    w.submit("c", text(20, 7), max_tokens=2000, priority=Priority.INTERACTIVE, conn=3)
    until(w, lambda: len(w.texts.get("c", "")) > 3)
    for i in range(2):
        w.submit(f"a{i}", text(1500, i), max_tokens=5, priority=Priority.INTERACTIVE if i else Priority.BACKGROUND)
        until(w, lambda i=i: any(s.id == f"a{i}" and s.n_chunk for s in w.executor.table))
    w.executor.hold(1, True)
    w.executor.cancel(3, "c")
    w.submit("b", text(50, 3), max_tokens=5, priority=priority, conn=2)
    until(w, lambda: "b" in w.finals)
    assert w.texts["b"].encode() == bytes(answer(text(50, 3), 5))
    w.executor.hold(1, False)
    w.run()
    assert all(w.texts[f"a{i}"].encode() == bytes(answer(text(1500, i), 5)) for i in range(2))
    check_idle(w)


def test_what_a_held_reader_asked_for_can_be_cancelled_while_it_is_parked() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    w.submit("a", text(100), max_tokens=60, priority=Priority.INTERACTIVE)
    until(w, lambda: len(w.texts.get("a", "")) > 3)
    w.executor.hold(1, True)
    w.submit("b", text(50, 1), max_tokens=20, conn=2)
    until(w, lambda: any(s.phase is Phase.PARKED for s in w.executor.table))
    w.executor.hang_up(1)
    w.run()
    assert w.finals["a"].reason is FinishReason.CANCELLED
    check_idle(w)


# memory


def test_one_pool_of_cells_is_never_overcommitted_by_what_is_kept() -> None:
    w = world(n_seq_max=3, n_ctx=1024, is_unified=True, n_prefill_slots=0)
    for i in range(6):
        w.ask(f"r{i}", text(300, i), n=10)
        assert sum(w.engine.kv_len(s) for s in range(3)) <= 1024
    w.ask("large", text(900, 9), n=60)
    check_idle(w)


def test_a_newcomer_waits_for_cells_that_an_ended_request_is_still_filling() -> None:
    slow = replace(COST, copy_ns_per_byte=150.0)
    w = World(
        FakeModel(n_seq_max=2, n_ctx=1024, is_unified=True, kv_bytes_per_cell=CELL),
        CacheSettings(is_on=True, ram_bytes=0),
        cost=slow,
    )
    w.submit("short", text(500), max_tokens=1, priority=Priority.INTERACTIVE)
    until(w, lambda: w.cache.has_steps)
    assert w.finals["short"].reason is FinishReason.LENGTH
    w.submit("large", text(600, 1), max_tokens=400, priority=Priority.INTERACTIVE)
    w.run()
    assert w.texts["large"].encode() == bytes(answer(text(600, 1), 400))
    check_idle(w)


def test_smaller_budgets_take_effect_at_once() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    for i in range(5):
        w.ask(f"r{i}", text(300, i))
    assert w.cache.store.ram.n_bytes == 4 * 307 * CELL
    w.executor.set_cache(CacheSettings(is_on=True, ram_bytes=400 * CELL))
    assert 0 < w.cache.store.ram.n_bytes <= 400 * CELL
    w.executor.set_cache(CacheSettings(is_on=False))
    assert w.cache.store.ram.n_bytes == 0 and w.engine.kv_len(0) == 0
    w.check()
    w.ask("b", text(300, 4))
    assert w.cached("b") == 0
