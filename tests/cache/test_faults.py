"""Something beside the cache fails at a certain moment: the text stays right, and nothing is left over."""

from __future__ import annotations

import pytest

from tests.cache.asking import text, until, world
from tests.cache.world import answer, check_idle
from uma_core.engine.api import DecodeStatus
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import FinishReason, Priority


def test_a_snapshot_that_does_not_load_costs_time_only() -> None:
    w = world(n_seq_max=1, n_ctx=2048)
    w.ask("a", text(600, 1))
    w.ask("b", text(600, 2))
    w.faults.restore_failures = 100
    w.ask("a2", text(600, 1))
    assert w.cached("a2") == 0
    assert w.cache.store.ram.n_segments > 0  # the segment of "b"
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


@pytest.mark.parametrize("priority", Priority)
def test_a_transfer_that_fails_after_its_answer_ended_ends_nobody_elses(
    priority: Priority, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(n_seq_max=2, n_ctx=2 * 2048)
    w.submit("other", text(50, 5), max_tokens=200)
    until(w, lambda: len(w.texts.get("other", "")) > 3)
    publish_kv = w.engine.publish_kv

    def failing(seq_id: int) -> object:
        transfer = publish_kv(seq_id)
        monkeypatch.setattr(transfer, "step", fail)
        return transfer

    def fail(until_ns: int) -> bool:
        raise UmaError(ErrorCode.DECODE_FAILED, "no memory")

    with monkeypatch.context() as patch:
        patch.setattr(w.engine, "publish_kv", failing)
        w.submit("a", text(20), max_tokens=1, priority=priority)
        until(w, lambda: "a" in w.finals)
    w.run()
    assert w.texts["a"].encode() == bytes(answer(text(20), 1))
    assert w.texts["other"].encode() == bytes(answer(text(50, 5), 200))
    w.ask("b", text(20))
    assert w.cached("b") == 0
    check_idle(w)


def test_a_source_that_fails_while_it_is_copied_is_done_without() -> None:
    w = world(n_seq_max=2, n_ctx=2 * 2048)
    w.submit("a", text(900), max_tokens=500, priority=Priority.INTERACTIVE)
    until(w, lambda: len(w.texts.get("a", "")) > 3)
    w.submit("b", text(900) + text(9, 1), max_tokens=8, priority=Priority.INTERACTIVE)
    until(w, lambda: any(h.readers for h in w.cache.residents))
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
    w.submit("talk", text(30, 9), max_tokens=200, priority=Priority.INTERACTIVE)  # so that transfers come in slices
    until(w, lambda: len(w.texts.get("talk", "")) > 2)
    w.submit("c", text(900, 3), max_tokens=5, priority=Priority.INTERACTIVE)
    for _ in range(n_ticks):
        w.tick()
        w.check()
    w.executor.cancel(1, "c")
    w.check()
    w.ask("d", text(900, 3))
    for i in (1, 2):
        w.ask(f"again{i}", text(900, i))
    check_idle(w)
