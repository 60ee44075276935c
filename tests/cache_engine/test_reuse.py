"""What is reused, from where, for whom; and what it costs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import uma_core.metrics as m
from tests.cache_engine.test_conversations import SHAPES, model
from tests.cache_engine.world import CELL, World, answer, check_idle
from uma_core.cache.settings import CacheSettings
from uma_core.engine.api import DecodeStatus
from uma_core.executor.intake import Limits
from uma_core.session.events import Hold
from uma_core.types import FinishReason, Lane, Phase

ON = CacheSettings(is_on=True, ram_bytes=20_000 * CELL)


def text(n: int, seed: int = 0) -> list[int]:
    """Texts of different seeds differ from the first token on."""
    return [1 + seed, *random.Random(seed).choices(range(97, 123), k=n - 1)]


def world(settings: CacheSettings = ON, **fields: object) -> World:
    limits = fields.pop("limits", None)
    return World(model(**fields), settings, limits)  # type: ignore[arg-type]


def computed(w: World) -> int:
    return int(w.registry.counter(m.PREFILL_TOKENS).value)


def until(w: World, condition: Callable[[], bool], n_most: int = 20_000) -> None:
    for _ in range(n_most):
        if condition():
            return
        w.tick()
        w.check()
    raise AssertionError("it never came")


@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "no rollback"])
def test_the_same_prompt_again_computes_its_last_token_alone(shape: str) -> None:
    w = world(**SHAPES[shape])
    w.ask("a", text(400))
    before = computed(w)
    w.ask("b", text(400))
    assert w.cached("b") == 399 and computed(w) == before + 1
    check_idle(w)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chat_reads_what_is_new(shape: str) -> None:
    w = world(**SHAPES[shape])
    tokens, n_past = text(300), 0
    for turn in range(10):
        w.ask(f"t{turn}", tokens, n=20)
        n_known = len(tokens) + 19  # the last answered token has no cell yet
        tokens = tokens + answer(tokens, 20) + text(30, turn + 1)
        assert w.cached(f"t{turn}") == n_past
        n_past = n_known
    assert computed(w) <= 1.05 * (300 + 9 * (30 + 1))
    check_idle(w)


@pytest.mark.parametrize("n_tokens", [1, 2])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "no rollback"])
def test_short_answers_leave_the_whole_prompt_behind(shape: str, n_tokens: int) -> None:
    w = world(**SHAPES[shape])
    w.ask("a", text(100), n=n_tokens)
    w.ask("b", text(100) + text(5, 1), n=n_tokens)
    assert w.cached("b") >= 100
    check_idle(w)


def test_branches_from_a_prompt_whose_answer_still_streams() -> None:
    w = world(n_seq_max=5, n_ctx=5 * 2048)
    w.submit("parent", text(600), max_tokens=200, lane=Lane.INTERACTIVE)
    until(w, lambda: len(w.texts.get("parent", "")) > 5)
    before = computed(w)
    for i in range(4):
        w.submit(f"child{i}", text(600) + text(20, i + 1), max_tokens=10, lane=Lane.INTERACTIVE)
    until(w, lambda: all(f"child{i}" in w.finals for i in range(4)))
    assert "parent" not in w.finals
    w.run()
    assert computed(w) - before == 4 * 20
    for i in range(4):
        assert w.cached(f"child{i}") == 600
        assert w.texts[f"child{i}"].encode() == bytes(answer(text(600) + text(20, i + 1), 10))
    assert w.texts["parent"].encode() == bytes(answer(text(600), 200))
    check_idle(w)


def test_prompts_that_arrive_together_share_what_the_first_one_reads() -> None:
    w = world(n_seq_max=4, n_ctx=4 * 2048)
    for i in range(4):
        w.submit(f"r{i}", text(1000) + text(10, i + 1), max_tokens=4, lane=Lane.INTERACTIVE)
    w.run()
    for i in range(4):
        assert w.texts[f"r{i}"].encode() == bytes(answer(text(1000) + text(10, i + 1), 4))
    assert computed(w) <= 1000 + 2 * 256 + 40
    check_idle(w)


def test_many_chats_over_few_sequences() -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=10**9))
    chats = [text(200) + text(100, i) for i in range(12)]
    for turn in range(4):
        for i, tokens in enumerate(chats):
            w.ask(f"{turn}/{i}", tokens, n=5)
            if turn:
                assert w.cached(f"{turn}/{i}") >= len(tokens) - 30
            chats[i] = tokens + answer(tokens, 5) + text(20, 100 + turn)
    assert computed(w) <= 1.05 * (200 + 12 * (100 + 3 * 21))
    check_idle(w)


def test_saving_a_grown_chat_costs_its_growth() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    a, b = text(500, 1), text(500, 2)
    w.ask("a", a, n=5)
    w.ask("b", b, n=5)
    first = w.cache.store.ram.n_bytes
    w.ask("a2", a + answer(a, 5) + text(40, 3), n=5)
    w.ask("b2", b + answer(b, 5) + text(40, 4), n=5)
    second = w.cache.store.ram.n_bytes - first
    assert first == 504 * CELL and 0 < second <= (504 + 45) * CELL
    w.ask("a3", a + answer(a, 5) + text(40, 3), n=5)
    assert w.cache.store.ram.n_bytes - first - second <= 45 * CELL + 10


def test_what_is_resident_is_not_snapshotted() -> None:
    w = world()
    for i in range(3):
        w.ask(f"r{i}", text(300, i))
    for i in range(3):
        w.ask(f"again{i}", text(300, i))
    assert w.cache.store.ram.n_bytes == 0


def test_a_restore_that_costs_more_than_computing_is_not_made() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    w.ask("a", text(300, 1))
    w.ask("b", text(300, 2))
    w.executor.cost = w.cache.cost = w.executor.cost._replace(transfer_ns_per_byte=1e6)
    w.ask("a2", text(300, 1))
    assert w.cached("a2") == 0


def test_hits_take_the_sequence_that_holds_them_and_others_the_least_valuable() -> None:
    w = world(n_seq_max=3, n_ctx=3 * 2048)
    w.ask("a", text(900, 1))
    w.ask("b", text(50, 2))
    w.ask("c", text(900, 3))
    where = {holding.n: holding.seq_id for holding in w.cache.holdings}
    w.submit("a2", text(900, 1) + text(10, 4), max_tokens=5, lane=Lane.INTERACTIVE)
    w.submit("new", text(100, 5), max_tokens=5, lane=Lane.INTERACTIVE)
    w.tick()
    seqs = {s.id: s.seq_id for s in w.executor.table}
    assert seqs["new"] == where[57]
    assert seqs["a2"] == next(h.seq_id for h in w.cache.holdings if h.owner == 4)
    w.run()
    assert w.cached("a2") >= 900
    assert int(w.registry.counter(m.CACHE_TOKENS_SAVED, tier="resident").value) >= 900


# isolation


def test_tenants_share_nothing() -> None:
    w = world()
    w.ask("a", text(400), uid=1)
    w.ask("b", text(400), uid=2)
    assert w.cached("b") == 0
    w.ask("c", text(400), uid=1)
    assert w.cached("c") == 399


def test_tenants_share_where_the_configuration_says_so() -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=10**9, is_shared=True))
    w.ask("a", text(400), uid=1)
    w.ask("b", text(400), uid=2)
    assert w.cached("b") == 399


def test_requests_that_opt_out_neither_read_nor_leave_anything() -> None:
    w = world()
    w.ask("a", text(400))
    w.ask("b", text(400), cache_prompt=False)
    assert w.cached("b") == 0
    w.ask("c", text(300, 1), cache_prompt=False)
    w.ask("d", text(300, 1))
    assert w.cached("d") == 0
    check_idle(w)


def test_a_cache_that_is_off_changes_nothing() -> None:
    w = world(CacheSettings())
    w.ask("a", text(400))
    w.ask("b", text(400))
    assert w.cached("b") == 0 and all(w.engine.kv_len(i) == 0 for i in range(3))
    check_idle(w)


def test_the_lane_of_a_silent_request_follows_what_is_left_to_read() -> None:
    w = world(limits=Limits(auto_lane_tokens=100))
    w.ask("a", text(400), n=3)
    w.submit("b", text(400) + text(20, 1), max_tokens=3)
    w.submit("c", text(400, 5), max_tokens=3)
    assert {s.id: s.lane for s in w.executor.table} == {"b": Lane.INTERACTIVE, "c": Lane.BACKGROUND}
    w.run()


# parking


def park_one(w: World) -> None:
    """A background stream in the only sequence, and a chat that needs it."""
    w.submit("work", text(500), max_tokens=60, lane=Lane.BACKGROUND)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(40, 1), max_tokens=10, lane=Lane.INTERACTIVE)
    until(w, lambda: any(s.phase is Phase.PARKED for s in w.executor.table))


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


@pytest.mark.parametrize("shape", SHAPES)
def test_a_parked_stream_without_room_for_its_kv_reads_it_again(shape: str) -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=0), n_seq_max=1, n_ctx=2048, **SHAPES[shape])
    w.submit("work", text(500), max_tokens=60, lane=Lane.BACKGROUND)
    until(w, lambda: len(w.texts.get("work", "")) >= 10)
    w.submit("chat", text(40, 1), max_tokens=10, lane=Lane.INTERACTIVE)
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


def test_parking_with_sampling_gives_the_same_text() -> None:
    from uma_core.types import SamplingParams

    hot = SamplingParams(temperature=1.0, seed=5)
    texts = []
    for is_disturbed in (False, True):
        w = world(n_seq_max=1, n_ctx=2048)
        w.submit("work", text(500), max_tokens=60, lane=Lane.BACKGROUND, sampling=hot)
        until(w, lambda w=w: len(w.texts.get("work", "")) >= 10)
        if is_disturbed:
            w.submit("chat", text(40, 1), max_tokens=10, lane=Lane.INTERACTIVE)
        w.run()
        texts.append(w.texts["work"])
    assert texts[0] == texts[1]


# failures


def test_a_snapshot_that_does_not_load_costs_time_only() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    w.ask("a", text(600, 1))
    w.ask("b", text(600, 2))
    w.faults.restore_failures = 100
    w.ask("a2", text(600, 1))
    assert w.cached("a2") == 0
    assert w.cache.store.ram.n_segments > 0  # that of "b"
    w.faults.restore_failures = 0
    w.ask("b2", text(600, 2))
    assert w.cached("b2") == 599
    check_idle(w)


def test_content_of_a_failed_request_is_not_used() -> None:
    w = world()
    w.submit("a", text(300), max_tokens=50)
    until(w, lambda: len(w.texts.get("a", "")) > 3)
    w.faults.statuses.append(DecodeStatus.FATAL)
    w.run()
    assert w.finals["a"].reason is FinishReason.ERROR
    w.ask("b", text(300))
    assert w.cached("b") == 0
    check_idle(w)


def test_a_source_that_fails_while_it_is_copied_is_done_without() -> None:
    w = world(n_seq_max=2, n_ctx=2 * 2048)
    w.submit("a", text(900), max_tokens=500, lane=Lane.INTERACTIVE)
    until(w, lambda: len(w.texts.get("a", "")) > 3)
    w.submit("b", text(900) + text(9, 1), max_tokens=8, lane=Lane.INTERACTIVE)
    until(w, lambda: any(h.readers for h in w.cache.holdings))
    w.faults.statuses.append(DecodeStatus.FATAL)
    w.run()
    assert w.finals["a"].reason is FinishReason.ERROR
    assert w.texts["b"].encode() == bytes(answer(text(900) + text(9, 1), 8))
    check_idle(w)


@pytest.mark.parametrize("n_ticks", range(0, 40, 3))
def test_cancelling_at_any_moment_of_a_restore(n_ticks: int) -> None:
    w = world(n_seq_max=2, n_ctx=2 * 2048)
    w.ask("a", text(900, 1))
    w.ask("b", text(900, 2))
    w.submit("talk", text(30, 9), max_tokens=200, lane=Lane.INTERACTIVE)  # so that transfers come in slices
    until(w, lambda: len(w.texts.get("talk", "")) > 2)
    w.submit("c", text(900, 3), max_tokens=5, lane=Lane.INTERACTIVE)
    for _ in range(n_ticks):
        w.tick()
        w.check()
    w.executor.cancel(1, "c")
    w.check()
    w.ask("d", text(900, 3))
    for i in (1, 2):
        w.ask(f"again{i}", text(900, i))
    check_idle(w)


def test_a_held_reader_does_not_lose_its_place() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    w.submit("a", text(100), max_tokens=30, lane=Lane.INTERACTIVE)
    until(w, lambda: len(w.texts.get("a", "")) > 3)
    w.executor.hold(1, True)
    for _ in range(20):
        w.tick()
    w.executor.hold(Hold(1, False).conn_id, False)
    w.run()
    assert w.texts["a"].encode() == bytes(answer(text(100), 30))
    check_idle(w)


# memory


def test_one_pool_of_cells_is_never_overcommitted_by_what_is_kept() -> None:
    w = world(n_seq_max=3, n_ctx=1024, is_unified=True, n_prefill_lanes=0)
    for i in range(6):
        w.ask(f"r{i}", text(300, i), n=10)
        assert sum(w.engine.kv_len(s) for s in range(3)) <= 1024
    w.ask("large", text(900, 9), n=60)
    check_idle(w)


def test_residents_that_nobody_uses_leave_and_come_back() -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=10**9, park_idle_ns=50_000_000))
    w.ask("a", text(400))
    w.clock.advance(60_000_000)
    seconds = [w.executor.idle()]
    while seconds[-1] == 0.0:
        seconds.append(w.executor.idle())
        w.check()
    assert seconds[-1] is None and w.engine.kv_len(0) == 0
    assert w.cache.store.ram.n_bytes == 407 * CELL
    w.ask("b", text(400))
    assert w.cached("b") == 399
    assert w.executor.idle() == pytest.approx(0.05, abs=0.01)


def test_residents_stay_where_leaving_would_drive_others_out() -> None:
    w = world(CacheSettings(is_on=True, ram_bytes=300 * CELL, park_idle_ns=50_000_000))
    w.ask("a", text(400))
    w.clock.advance(60_000_000)
    while w.executor.idle() == 0.0:
        pass
    assert w.engine.kv_len(0) == 407
    w.ask("b", text(400))
    assert w.cached("b") == 399


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
