"""The dashboard's figures, its selection and its keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ctl.documented import STATUS
from uma_core.metrics.catalog import METRICS
from uma_ctl.dashboard import TOKENS_TOTAL, Cell, Dashboard, Key, parse_keys


def session(request_id: str, **more):
    fields = {
        "conn": 1,
        "request_id": request_id,
        "lane": "interactive",
        "phase": "decode",
        "prompt_tokens": 100,
        "prefilled_tokens": 100,
    }
    return {**fields, "completion_tokens": 5, "max_tokens": 100, "age_ms": 1500.0, "uid": 1000, "pid": 7, **more}


def board_of(*sessions, status=STATUS, n_tokens=0.0, now_s=1.0):
    board = Dashboard()
    board.update(status, {TOKENS_TOTAL: n_tokens}, list(sessions), now_s)
    return board


def test_tokens_per_second_come_from_the_counter():
    board = board_of(n_tokens=100, now_s=1.0)
    board.update(STATUS, {TOKENS_TOTAL: 150}, [], 1.5)
    board.update(STATUS, {TOKENS_TOTAL: 20}, [], 2.0)  # another daemon
    board.update(STATUS, {TOKENS_TOTAL: 60}, [], 3.0)
    assert list(board.tokens_per_s) == [100.0, 40.0]


def test_the_counter_has_the_name_that_the_daemon_uses():
    assert TOKENS_TOTAL in {metric.json_name for metric in METRICS}


def test_the_selection_follows_its_request():
    board = board_of(session("a"), session("b"), session("c"))
    board.move(1)
    board.update(STATUS, {}, [session("x"), session("a"), session("b")], 2.0)
    assert board.selected_session()["request_id"] == "b"
    board.update(STATUS, {}, [], 4.0)
    assert board.selected_session() is None
    board.move(1)


def test_a_selection_that_has_ended_moves_to_no_other_request_by_itself():
    """A `c` that comes a moment too late must cancel nothing."""
    board = board_of(session("a"), session("b"))
    board.move(1)
    board.update(STATUS, {}, [session("x"), session("a")], 2.0)
    assert board.selected_session() is None and board.position == -1
    board.update(STATUS, {}, [session("x"), session("a"), session("b")], 3.0)  # another request under the same id
    assert board.selected_session() is None
    board.update(STATUS, {}, [], 4.0)
    board.update(STATUS, {}, [session("y"), session("z")], 5.0)
    assert board.selected_session() is None
    board.move(1)
    assert board.selected_session()["request_id"] == "y"


def test_the_first_request_that_is_seen_is_selected():
    board = board_of()
    assert board.selected_session() is None
    board.update(STATUS, {}, [session("a"), session("b")], 2.0)
    assert board.selected_session()["request_id"] == "a"


def test_the_selection_stays_within_the_list():
    board = board_of(session("a"), session("b"))
    for step, wanted in ((-1, "a"), (1, "b"), (1, "b"), (-1, "a")):
        board.move(step)
        assert board.selected_session()["request_id"] == wanted


def test_the_kv_map_shows_used_reserved_and_free_in_proportion():
    first = session("a", prompt_tokens=30, prefilled_tokens=20, completion_tokens=5, max_tokens=20)
    second = session("b", prompt_tokens=1, prefilled_tokens=1, completion_tokens=0, max_tokens=0)
    waiting = session("c", phase="queued")
    board = board_of(first, second, waiting, status={"kv": {"cells_total": 100}})
    places = board.kv_map(20)
    assert places == [(Cell.USED, 0)] * 5 + [(Cell.RESERVED, 0)] * 5 + [(Cell.USED, 1)] + [(Cell.FREE, -1)] * 9


def test_the_kv_map_never_exceeds_its_width():
    board = board_of(*(session(str(i)) for i in range(50)), status={"kv": {"cells_total": 1000}})
    assert len(board.kv_map(20)) == 20
    assert board_of(status={}).kv_map(20) == []


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"\x1b[A", [Key.UP]),
        (b"\x1bOB", [Key.DOWN]),
        (b"jkcdq", [Key.DOWN, Key.UP, Key.CANCEL, Key.DRAIN, Key.QUIT]),
        (b"\x1b[C\x1b[A", [Key.UP]),
        (b"\x1b", []),
        (b"zz", []),
    ],
)
def test_keys(data, keys):
    assert parse_keys(data) == keys


@given(st.binary(max_size=20))
def test_any_terminal_input_is_understood_or_passed_over(data):
    assert all(isinstance(key, Key) for key in parse_keys(data))
