"""Which requests are accepted, with how much, and what the others are told."""

from __future__ import annotations

import pytest

from tests.executor.rig import Rig
from uma_core.engine.fake.engine import FakeModel
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.admission import Limits, adapters_of, time_left_ns
from uma_core.session.session import Grant, Session
from uma_core.types import FinishReason, Peer, Priority, Request


def test_max_tokens_is_cut_to_the_context() -> None:
    rig = Rig(FakeModel(n_ctx=256, n_seq_max=2))
    rig.submit("a", "x" * 99, max_tokens=10_000)
    rig.run()
    (final,) = rig.finals("a")
    assert final.reason is FinishReason.LENGTH
    assert final.usage["prompt_tokens"] + final.usage["completion_tokens"] == 128 + 1  # the last token needs no cell


def test_prompt_longer_than_a_sequence_is_refused() -> None:
    rig = Rig(FakeModel(n_ctx=256, n_seq_max=2))
    rig.submit("a", "x" * 200)
    rig.tick()
    assert [r.error.error for r in rig.refusals()] == [ErrorCode.PROMPT_TOO_LARGE]


def test_without_a_queue_requests_are_answered_while_sequences_are_free() -> None:
    rig = Rig(FakeModel(n_seq_max=2), limits=Limits(queue=(0, 0), max_sessions=50))
    for i in range(3):
        rig.submit(f"r{i}")
    rig.run()
    assert [r.error.error for r in rig.refusals()] == [ErrorCode.OVERLOADED]
    assert len(rig.finals("r0")) == len(rig.finals("r1")) == 1


def test_a_running_request_leaves_no_place_to_those_that_wait() -> None:
    rig = Rig(FakeModel(n_seq_max=1), limits=Limits(queue=(1, 1), max_sessions=50))
    rig.submit("runs", max_tokens=50)
    rig.tick()
    rig.submit("waits")
    rig.submit("is refused")
    rig.run()
    assert [(r.request_id, r.error.error) for r in rig.refusals()] == [("is refused", ErrorCode.OVERLOADED)]


def test_full_queue_tells_when_to_come_back() -> None:
    rig = Rig(FakeModel(n_seq_max=2), limits=Limits(queue=(2, 2), max_sessions=50))
    for i in range(6):
        rig.submit(f"r{i}")
    rig.run()
    assert [r.error.error for r in rig.refusals()] == [ErrorCode.OVERLOADED] * 2
    assert all(r.error.detail["retry_after_ms"] > 0 and r.error.detail["queue_position"] == 2 for r in rig.refusals())
    assert all("the limit is 2 (limits.queue_interactive)" in r.error.message for r in rig.refusals())


def test_the_time_to_come_back_is_when_the_running_request_should_end() -> None:
    rig = Rig(FakeModel(n_seq_max=1), limits=Limits(queue=(0, 0), max_sessions=50))
    rig.submit("runs", max_tokens=2000)
    while len(rig.text("runs")) < 500:
        rig.tick()
    rig.submit("is refused")
    t_refused = rig.clock.now_ns()
    rig.run()
    (refusal,) = rig.refusals()
    took_ms = (rig.clock.now_ns() - t_refused) / 1e6
    assert refusal.error.detail["retry_after_ms"] == pytest.approx(took_ms, rel=0.3) and took_ms > 500


def test_session_cap_and_duplicate_ids() -> None:
    rig = Rig(limits=Limits(max_sessions=2))
    rig.submit("a", max_tokens=50)
    rig.submit("a")
    rig.submit("b")
    rig.submit("c")
    rig.tick()
    assert [r.error.error for r in rig.refusals()] == [ErrorCode.DUPLICATE_ID, ErrorCode.TOO_MANY_SESSIONS]


def test_whoever_fills_all_places_does_not_keep_the_others_out() -> None:
    """Another process, or another account of a gateway, has one place beyond the cap, but not a second one."""
    rig = Rig(limits=Limits(max_sessions=16))
    for i in range(20):
        rig.submit(f"hog{i}", conn_id=i, max_tokens=20)
    gateway = Peer(1000, 1000, 77)
    rig.submit("other", conn_id=50, peer=Peer(1000, 1000, 2), max_tokens=20)
    rig.submit("account", conn_id=51, peer=gateway, account="alice", max_tokens=20)
    rig.submit("again", conn_id=52, peer=gateway, account="alice", max_tokens=20)
    rig.submit("no room", conn_id=53, peer=gateway, account="bob", max_tokens=20)
    rig.tick()
    refused = {r.request_id: r.error for r in rig.refusals()}
    assert sorted(refused) == ["again", "hog16", "hog17", "hog18", "hog19", "no room"]
    assert all(error.error is ErrorCode.TOO_MANY_SESSIONS and error.detail["limit"] == 16 for error in refused.values())
    assert (
        refused["hog19"].detail["n_held"],
        refused["again"].detail["n_held"],
        refused["no room"].detail["n_held"],
    ) == (16, 1, 0)
    rig.run()
    rig.check_all_free()


def test_priority_follows_the_prompt_where_the_request_is_silent() -> None:
    rig = Rig(limits=Limits(auto_lane_tokens=50))
    rig.submit("short", "x" * 10)
    rig.submit("long", "x" * 100)
    rig.submit("told", "x" * 100, priority=Priority.INTERACTIVE)
    priorities = {s.id: s.priority for s in rig.executor.table}
    assert priorities == {"short": Priority.INTERACTIVE, "long": Priority.BACKGROUND, "told": Priority.INTERACTIVE}


def test_the_configured_timeout_is_of_requests_that_give_none() -> None:
    rig = Rig(limits=Limits(timeout_ns=20_000_000))
    rig.submit("says nothing", max_tokens=200)
    rig.submit("has longer", max_tokens=200, timeout_ns=10**12)
    rig.run()
    assert rig.finals("says nothing")[0].reason is FinishReason.TIMEOUT
    assert rig.finals("has longer")[0].reason is FinishReason.LENGTH


def test_an_adapter_that_is_not_there_is_named_with_the_one_that_was_meant() -> None:
    rig = Rig(FakeModel(adapters=(("tone", 1.0), ("topic", 0.0))))
    assert adapters_of(Request("a"), rig.engine.info) == (("tone", 1.0),)
    assert adapters_of(Request("a", lora=()), rig.engine.info) == ()
    with pytest.raises(UmaError, match=r"no adapter topik.*'topic'") as caught:
        adapters_of(Request("a", lora=(("topik", 1.0),)), rig.engine.info)
    assert caught.value.detail["known"] == ["tone", "topic"]


def test_the_time_that_is_left_follows_a_sessions_own_pace() -> None:
    session = Session(1, 1, Request("a"), range(100), Grant(Priority.INTERACTIVE, 50, 0))
    session.t_admitted_ns = 1000
    assert time_left_ns(session, 9000) == 0, "nothing is known yet"
    session.n_past = 50
    assert time_left_ns(session, 2000) == 2000


def test_an_answer_that_became_part_of_the_prompt_is_not_counted_twice() -> None:
    session = Session(1, 1, Request("a"), range(100), Grant(Priority.INTERACTIVE, 50, 0))
    session.n_past = 100
    for i in range(40):
        session.add_token(5, i + 1)
    session.n_past = 139
    before = time_left_ns(session, 139_000)
    assert before == 11_000
    session.fold()
    assert time_left_ns(session, 139_000) == before


@pytest.mark.parametrize(("tokens", "field"), [([], "prompt"), ([5, -1], "tokens"), ([5, 10**6], "tokens")])
def test_tokens_that_the_model_does_not_have_are_refused(tokens: list[int], field: str) -> None:
    rig = Rig()
    rig.submit("a", tokens=tokens)
    rig.run()
    (refusal,) = rig.refusals()
    assert refusal.error.error is ErrorCode.BAD_REQUEST and refusal.error.detail["field"] == field
