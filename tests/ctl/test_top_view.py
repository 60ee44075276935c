"""The dashboard's screen."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tests.ctl.documented import STATUS
from tests.ctl.test_dashboard import board_of, session
from uma_ctl.dashboard import Dashboard
from uma_ctl.top_view import screen


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
        "drafts mode auto, lookup 170 of 190 (saved 2.55 s)",
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


@pytest.mark.parametrize("height", [22, 24, 40])
def test_the_selected_request_is_in_view(height):
    board = board_of(*(session(f"req-{n:02}") for n in range(30)))
    for n in range(30):
        assert f"req-{n:02}" in drawn(board, height=height)
        board.move(1)
    assert re.search(r"30 requests, \d+ to 30 are shown", drawn(board, height=height))


def test_all_requests_are_in_view_where_there_is_room():
    shown = drawn(board_of(*(session(f"req-{n:02}") for n in range(30))), height=60)
    assert " 30 requests " in shown and all(f"req-{n:02}" in shown for n in range(30))


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
