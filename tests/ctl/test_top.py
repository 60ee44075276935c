"""The dashboard: its figures, its screen, and the whole program on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from uma_ctl.commands import top
from uma_ctl.dashboard import TOKENS_TOTAL, Cell, Dashboard, Key, parse_keys
from uma_ctl.main import group, run
from uma_ctl.options import Target
from uma_ctl.top_view import screen

PROTOCOL = Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md"
_EXAMPLES = re.findall(r"```json\n(.*?)```", PROTOCOL.read_text(), re.DOTALL)
STATUS = json.loads(next(text for text in _EXAMPLES if "uptime_s" in text))


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
    from uma_core.metrics import catalog as metrics

    assert TOKENS_TOTAL in {metric.json_name for metric in metrics.METRICS}


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


def drawn(board: Dashboard, width: int = 120, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(screen(board, width, height))
    return console.file.getvalue()


def test_the_screen_shows_streams_priorities_pace_and_memory():
    shown = drawn(board_of(session("req-a"), session("req-b", priority="background"), n_tokens=1))
    for text in ("ready", "uma-work", "interactive: 2 active", "req-a", "background", "5/100"):
        assert text in shown
    for text in ("guard active", "1.40 ms budget", "16,384 cells, 731 used", "q quit"):
        assert text in shown


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_of_the_pace_is_in_view(width):
    shown = drawn(board_of(session("req-a"), n_tokens=1), width)
    for text in (
        "tick ",
        "tokens/s",
        "guard active",
        "inter-token p50",
        "alone 1.17 ms",
        "97.1 % of gaps kept",
        "1 request ",
    ):
        assert text in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_both_queues_are_in_view(width):
    lanes = {
        "interactive": {"queued": 2, "active": 16, "oldest_wait_ms": 4010},
        "background": {"queued": 12, "active": 3, "oldest_wait_ms": 812.5},
    }
    status = {**STATUS, "lanes": lanes, "model": {"name": "a-model-of-a-very-long-name-" * 4}}
    shown = drawn(board_of(status=status), width, 24)
    assert "interactive: 16 active, 2 queued, oldest 4.01 s" in shown
    assert "background: 3 active, 12 queued, oldest 812 ms" in shown


@pytest.mark.parametrize("height", [22, 24, 40, 60])
def test_the_selected_request_is_in_view(height):
    board = board_of(*(session(f"req-{n:02}") for n in range(30)))
    for n in range(30):
        assert f"req-{n:02}" in drawn(board, height=height)
        board.move(1)
    assert "30 requests, 28 to 30 are shown" in drawn(board, height=24)
    assert " 30 requests " in drawn(board, height=60)


@pytest.mark.parametrize("key", [None, *sorted(STATUS)])
def test_the_screen_survives_missing_fields(key):
    status = {} if key is None else {name: value for name, value in STATUS.items() if name != key}
    assert drawn(board_of({"request_id": "r"}, {}, status=status))


def test_what_a_peer_calls_its_request_cannot_control_the_terminal():
    shown = drawn(board_of(session("a\x1b[2J[bold]b")))
    assert "\x1b" not in shown
    assert "[bold]b" in shown


@pytest.mark.parametrize("width", [20, 40, 300])
def test_narrow_and_wide_terminals(width):
    assert drawn(board_of(session("a")), width)


def test_a_daemon_that_is_gone_is_not_shown_as_ready():
    shown = top.Top(Target("/nowhere", False), 0.5)
    shown.board = board_of()
    shown._refresh()
    assert shown.board.status["state"] == "unreachable" and "cannot connect" in shown.board.message


def test_without_a_terminal_it_says_what_to_use_instead(ctl):
    done = ctl("top")
    assert done.returncode == 1
    assert "status --watch" in done.stderr


def test_without_its_library_it_says_what_to_install_and_what_to_use_instead(monkeypatch, capsys):
    monkeypatch.setattr(top, "find_spec", lambda name: None)
    assert run(group, "uma-ctl", ["top"]) == 1
    told = capsys.readouterr().err
    assert "uma-serve[top]" in told and "status --watch" in told


def test_on_a_dumb_terminal_it_says_what_to_use_instead(serve, start, environment, read_until):
    serve(lambda peer, message: peer.reply(message))
    environment["TERM"] = "dumb"
    ours, theirs = pty.openpty()
    process = start("uma_ctl", "top", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert b"TERM is dumb" in read_until(ours, b"status --watch")
    assert process.wait(timeout=30) == 1
    os.close(ours)


def test_keys_cancel_and_drain_on_a_terminal(serve, start, environment, read_until):
    def script(peer, message):
        replies = {
            "status": STATUS,
            "metrics": {"metrics": {TOKENS_TOTAL: time.monotonic()}},
            "sessions": {"sessions": [session("r1", conn=5), session("r2", conn=6)]},
            "cancel": {"found": True},
            "drain": {"state": "draining"},
        }
        peer.reply(message, **replies[message["type"]])

    server = serve(script)
    environment.update(TERM="xterm", LINES="40", COLUMNS="120")
    ours, theirs = pty.openpty()
    process = start("uma_ctl", "top", "--interval", "0.05", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    read_until(ours, b"r2")
    for keys, answer in ((b"\x1b[Bc", b"cancelled: r2"), (b"d", b"press d again"), (b"d", b"drain requested")):
        os.write(ours, keys)
        read_until(ours, answer)
    os.write(ours, b"q")
    assert process.wait(timeout=30) == 0
    os.close(ours)
    asked = [message for message in server.received if message["type"] in ("cancel", "drain")]
    assert [(m["type"], m.get("conn")) for m in asked] == [("cancel", 6), ("drain", None)]
    assert asked[0]["id"] == "r2"
