"""What is reused, from where, for which client, and at what cost."""

from __future__ import annotations

import pytest

import uma_core.metrics.catalog as m
from tests.cache.asking import ON, SHAPES, computed, text, until, world
from tests.cache.world import CELL, answer, check_idle
from uma_core.cache.settings import CacheSettings
from uma_core.executor.admission import Limits
from uma_core.policy.cost.curve import Curve
from uma_core.types import Priority


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
    w.submit("parent", text(600), max_tokens=200, priority=Priority.INTERACTIVE)
    until(w, lambda: len(w.texts.get("parent", "")) > 5)
    before = computed(w)
    for i in range(4):
        w.submit(f"child{i}", text(600) + text(20, i + 1), max_tokens=10, priority=Priority.INTERACTIVE)
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
        w.submit(f"r{i}", text(1000) + text(10, i + 1), max_tokens=4, priority=Priority.INTERACTIVE)
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
    w.executor.cost = w.cache.cost = w.executor.cost._replace(transfer=Curve((1,), (1e6,), (0.0,)))
    w.ask("a2", text(300, 1))
    assert w.cached("a2") == 0


def test_hits_take_the_sequence_that_holds_them_and_others_the_least_valuable() -> None:
    w = world(n_seq_max=3, n_ctx=3 * 2048)
    w.ask("a", text(900, 1))
    w.ask("b", text(50, 2))
    w.ask("c", text(900, 3))
    where = {resident.n: resident.seq_id for resident in w.cache.residents}
    w.submit("a2", text(900, 1) + text(10, 4), max_tokens=5, priority=Priority.INTERACTIVE)
    w.submit("new", text(100, 5), max_tokens=5, priority=Priority.INTERACTIVE)
    w.tick()
    seqs = {s.id: s.seq_id for s in w.executor.table}
    assert seqs["new"] == where[57]
    assert seqs["a2"] == next(h.seq_id for h in w.cache.residents if h.owner == 4)
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


@pytest.mark.parametrize("n_answers", [1, 2])
def test_a_request_keeps_to_itself_what_it_began_so_though_the_cache_is_switched_on_meanwhile(n_answers: int) -> None:
    off, on = CacheSettings(is_on=False), ON
    w = world(off)
    for i in range(3):
        w.executor.set_cache(off)
        w.submit(f"a{i}", text(300, i), max_tokens=5, n=n_answers)
        until(w, lambda: any(s.generated for s in w.executor.table))
        w.executor.set_cache(on)
        w.run()
        w.ask(f"b{i}", text(300, i))
        assert w.cached(f"b{i}") == 0
        check_idle(w)


def test_a_request_that_began_before_the_cache_was_switched_off_leaves_nothing() -> None:
    w = world()
    w.submit("a", text(300), max_tokens=5)
    until(w, lambda: any(s.generated for s in w.executor.table))
    w.executor.set_cache(CacheSettings(is_on=False))
    w.run()
    assert all(w.engine.kv_len(i) == 0 for i in range(3))
    check_idle(w)


def test_the_priority_of_a_silent_request_follows_what_is_left_to_read() -> None:
    w = world(limits=Limits(auto_lane_tokens=100))
    w.ask("a", text(400), n=3)
    w.submit("b", text(400) + text(20, 1), max_tokens=3)
    w.submit("c", text(400, 5), max_tokens=3)
    assert {s.id: s.priority for s in w.executor.table} == {"b": Priority.INTERACTIVE, "c": Priority.BACKGROUND}
    w.run()
