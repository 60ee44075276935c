"""What an operator reads of an executor."""

from __future__ import annotations

from tests.executor.rig import Rig, stream
from uma_core.engine.fake.engine import FakeModel
from uma_core.executor import view
from uma_core.policy.config import SchedulerConfig
from uma_core.types import Priority

LONG = "a long prompt, " * 120


def budget_ms(rig: Rig) -> float | None:
    return view.take(rig.executor, rig.clock.now_ns()).tick["budget_ms"]


def test_nobody_waits_for_the_end_of_a_tick_without_streams() -> None:
    rig = Rig()
    assert budget_ms(rig) is None
    rig.submit("a", LONG, max_tokens=1)
    rig.tick()
    assert budget_ms(rig) is None


def test_a_chat_limits_the_tick_to_its_gap() -> None:
    rig = Rig(config=SchedulerConfig(guard_floor_ns=0))
    stream(rig, Priority.INTERACTIVE)
    n_past = next(iter(rig.executor.table)).n_past
    solo_ms = rig.executor.cost.solo_step_ns(n_past) / 1e6
    alone = budget_ms(rig)
    assert alone is not None
    assert solo_ms < alone < 1.3 * solo_ms
    rig.submit("paste", LONG, priority=Priority.BACKGROUND, max_tokens=1)
    for _ in range(50):
        rig.tick()
        now = budget_ms(rig)
        assert now is not None and now >= solo_ms, "work beside the chat does not take its budget away"


def test_background_streams_have_the_tick_budget() -> None:
    rig = Rig(config=SchedulerConfig(tick_budget_ns=700_000_000))
    stream(rig, Priority.BACKGROUND)
    assert budget_ms(rig) == 700.0


def test_the_answer_so_far_of_a_parked_request_is_not_its_prompt() -> None:
    """It is read again, or restored, as a prompt is."""
    rig = Rig(FakeModel(n_seq_max=1, n_prefill_slots=0))
    rig.submit("work", "x" * 50, priority=Priority.BACKGROUND, max_tokens=60)
    told = []
    for i in range(80):
        if i == 30:
            rig.submit("chat", "hi", max_tokens=5)
        rig.tick()
        told += [row for row in view.sessions(rig.executor, rig.clock.now_ns()) if row["request_id"] == "work"]
    assert {"parked", "prefill", "decode"} == {row["phase"] for row in told}
    assert {row["prompt_tokens"] for row in told} == {51}
    assert all(row["prefilled_tokens"] == 51 for row in told if row["phase"] == "decode")
    assert all(row["prefilled_tokens"] == 0 for row in told if row["phase"] == "parked")
