"""What an operator reads of an executor."""

from __future__ import annotations

import json

from tests.executor.rig import STEP_NS, Rig, stream
from uma_core.engine.fake.engine import FakeModel
from uma_core.executor import view
from uma_core.policy.config import SchedulerConfig
from uma_core.types import Peer, Priority

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


def test_requests_are_counted_by_priority_phase_and_client() -> None:
    rig = Rig(FakeModel(n_seq_max=1, n_prefill_slots=0))
    rig.submit("chat", max_tokens=500, priority=Priority.INTERACTIVE)
    for _ in range(5):
        rig.tick()
    rig.submit("first", peer=Peer(1, 1, 2), priority=Priority.BACKGROUND)
    rig.clock.advance(7 * STEP_NS)
    rig.submit("second", peer=Peer(9, 9, 3), account="alice", priority=Priority.BACKGROUND)
    seen = view.take(rig.executor, rig.clock.now_ns())
    assert seen.priorities["interactive"] == {"queued": 0, "active": 1, "oldest_wait_ms": 0.0}
    assert seen.priorities["background"] == {"queued": 2, "active": 0, "oldest_wait_ms": 7.0}
    assert seen.phases == {"queued": 2, "prefill": 0, "decode": 1, "parked": 0} and seen.n_sessions == 3
    who = [{key: row[key] for key in row if key != "share"} for row in seen.clients]
    assert who == [
        {"uid": 1, "pid": 1, "active": 1, "queued": 0},
        {"uid": 1, "pid": 2, "active": 0, "queued": 1},
        {"uid": 9, "pid": 3, "account": "alice", "active": 0, "queued": 1},
    ]
    assert [row["share"] for row in seen.clients] == [1.0, 0.0, 0.0]


def test_a_view_is_json_and_an_idle_one_too() -> None:
    rig = Rig()
    for n_ticks in (0, 9):
        rig.submit(f"r{n_ticks}", max_tokens=50, metadata={"who": "me"})
        for _ in range(n_ticks):
            rig.tick()
        seen = view.take(rig.executor, rig.clock.now_ns())
        assert json.loads(json.dumps(seen._asdict())) == seen._asdict()
        rows = view.sessions(rig.executor, rig.clock.now_ns())
        assert json.loads(json.dumps(rows)) == rows and rows[-1]["metadata"] == {"who": "me"}
    rig.run()
    idle = view.take(rig.executor, rig.clock.now_ns())
    assert idle.clients == [] and idle.estimate_ms == 0.0 and idle.kv["used"] == idle.kv["reserved"] == 0


def test_a_waiting_request_is_told_whom_it_waits_for() -> None:
    rig = Rig(FakeModel(n_seq_max=1))
    rig.submit("runs", conn_id=4, max_tokens=500)
    for _ in range(20):
        rig.tick()
    rig.submit("waits", conn_id=5)
    rig.tick()
    runs, waits = view.sessions(rig.executor, rig.clock.now_ns())
    assert "queue_position" not in runs and runs["sequence"] == 0 and runs["ttft_ms"] is not None
    assert (waits["phase"], waits["sequence"], waits["ttft_ms"], waits["queue_position"]) == ("queued", None, None, 0)
    assert (waits["waits_for"], waits["waits_for_conn"]) == ("runs", 4) and waits["wait_ms"] > 0
