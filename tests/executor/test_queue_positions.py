"""What a waiting request is told about its place and its expected wait."""

from __future__ import annotations

from typing import Any

from tests.executor.rig import Rig
from uma_core.engine.fake.engine import FakeModel
from uma_core.executor import view
from uma_core.session.events import Queued, Token
from uma_core.types import Priority

ONE = FakeModel(n_seq_max=1)


def news(rig: Rig, request_id: str) -> list[tuple[int, int]]:
    return [(e.position, e.wait_ns) for e in rig.seen if isinstance(e, Queued) and e.request_id == request_id]


def test_a_request_that_runs_at_once_is_told_so_before_its_first_token():
    rig = Rig()
    rig.submit("a", max_tokens=3, queue_updates=True)
    rig.run()
    assert news(rig, "a") == [(0, 0)]
    kinds = [type(event) for event in rig.seen]
    assert kinds.index(Queued) < kinds.index(Token)


def test_who_does_not_ask_is_told_nothing():
    rig = Rig(ONE)
    for name in "abc":
        rig.submit(name, max_tokens=5)
    rig.run()
    assert not [event for event in rig.seen if isinstance(event, Queued)]


def test_positions_count_down_to_the_front():
    rig = Rig(ONE)
    for name in "abcd":
        rig.submit(name, max_tokens=800, queue_updates=True)
    rig.run()
    assert news(rig, "a") == [(0, 0)]
    assert [position for position, _ in news(rig, "d")] == [2, 1, 0, 0]
    assert news(rig, "d")[-1] == (0, 0)


def test_the_predicted_wait_grows_with_the_queue_and_shrinks_with_time():
    rig = Rig(ONE)
    for name in "abcd":
        rig.submit(name, max_tokens=800, queue_updates=True)
    rig.tick()
    waits = [news(rig, name)[0][1] for name in "bcd"]
    assert 0 < waits[0] < waits[1] < waits[2]
    rig.run()
    assert [wait for _, wait in news(rig, "d")] == sorted((wait for _, wait in news(rig, "d")), reverse=True)


def test_the_wait_is_predicted_from_how_long_answers_are_not_from_what_they_may_be():
    short, unknown = Rig(ONE), Rig(ONE)
    for i in range(3):
        short.submit(f"before {i}", max_tokens=10)
    short.run()
    for rig in (short, unknown):
        rig.submit("a", max_tokens=2000)
        rig.submit("b", max_tokens=2000, queue_updates=True)
        rig.tick()
    assert news(short, "b")[0][1] < news(unknown, "b")[0][1] / 20


def test_an_interactive_request_is_told_that_it_goes_before_background_ones():
    rig = Rig(ONE)
    rig.submit("runs", max_tokens=800)
    for name in "ab":
        rig.submit(name, max_tokens=800, priority=Priority.BACKGROUND, queue_updates=True)
    rig.submit("chat", max_tokens=800, priority=Priority.INTERACTIVE, queue_updates=True)
    rig.tick()
    assert news(rig, "chat")[0][0] == 0
    assert [news(rig, name)[0][0] for name in "ab"] == [1, 2]


def test_a_cancelled_request_is_told_no_more():
    rig = Rig(ONE)
    for name in "ab":
        rig.submit(name, max_tokens=800, queue_updates=True)
    rig.tick()
    assert rig.executor.cancel(1, "b")
    n_told = len(news(rig, "b"))
    rig.run()
    assert len(news(rig, "b")) == n_told
    rig.check_one_final_each()


def test_the_sessions_list_says_who_waits_for_whom():
    rig = Rig(FakeModel(n_seq_max=2))
    for name, n in (("long", 800), ("short", 100), ("next", 400), ("last", 400)):
        rig.submit(name, max_tokens=n)
    rig.tick()
    rows = {row["request_id"]: row for row in view.sessions(rig.executor, rig.clock.now_ns())}
    assert {rows["long"]["sequence"], rows["short"]["sequence"]} == {0, 1} and "waits_for" not in rows["long"]
    waiting = [
        (rows[name]["queue_position"], rows[name]["waits_for"], rows[name]["sequence"]) for name in ("next", "last")
    ]
    assert waiting == [(0, "short", None), (1, "next", None)], (
        "the first sequence to be free is the short one's, then the next one's"
    )
    assert 0 < rows["next"]["wait_ms"] < rows["last"]["wait_ms"]
    rig.run()
    assert view.sessions(rig.executor, rig.clock.now_ns()) == []


def test_a_request_that_gave_its_sequence_to_a_chat_says_whose_end_it_waits_for():
    rig = Rig(ONE)
    rig.submit("work", max_tokens=800, priority=Priority.BACKGROUND)
    for _ in range(5):
        rig.tick()
    rig.submit("chat", conn_id=7, max_tokens=400)
    rows: dict[str, dict[str, Any]] = {}
    while rows.get("work", {}).get("phase") != "parked" or rows["chat"]["sequence"] is None:
        rig.tick()
        rows = {row["request_id"]: row for row in view.sessions(rig.executor, rig.clock.now_ns())}
    work = rows["work"]
    assert (work["queue_position"], work["waits_for"], work["waits_for_conn"]) == (0, "chat", 7)
    assert work["wait_ms"] > 0 and "waits_for" not in rows["chat"]


def test_whoever_comes_later_waits_for_the_one_that_runs():
    rig = Rig(ONE)
    rig.submit("runs", max_tokens=800)
    for _ in range(5):
        rig.tick()
    rig.submit("waits", max_tokens=5, queue_updates=True)
    rig.tick()
    ((position, wait_ns),) = news(rig, "waits")
    assert position == 0 and wait_ns > 0
    rows = {row["request_id"]: row for row in view.sessions(rig.executor, rig.clock.now_ns())}
    assert rows["waits"]["waits_for"] == "runs" and rows["runs"]["sequence"] == 0


def test_cells_in_use_are_those_of_all_running_requests():
    rig = Rig(FakeModel(n_seq_max=2))
    for name in "ab":
        rig.submit(name, max_tokens=50)
    for _ in range(10):
        rig.tick()
    used = view.take(rig.executor, rig.clock.now_ns()).kv["used"]
    assert used == sum(session.n_past for session in rig.executor.table) > 0


def test_the_sessions_list_tells_the_times_of_a_request():
    rig = Rig(ONE)
    rig.submit("a", max_tokens=50)
    rig.submit("b", max_tokens=50)
    (before, waiting) = view.sessions(rig.executor, rig.clock.now_ns())
    assert before["ttft_ms"] is None and waiting["ttft_ms"] is None
    while not rig.text("b"):
        rig.tick()
    (row,) = view.sessions(rig.executor, rig.clock.now_ns())
    assert 0 < row["queue_ms"] < row["ttft_ms"] <= row["age_ms"] and "queue_position" not in row
