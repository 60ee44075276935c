"""`uma-ctl top`: the whole program on a terminal, and what it says where it cannot run."""

from __future__ import annotations

import os
import pty
import time

from tests.ctl.documented import STATUS
from tests.ctl.test_dashboard import board_of, session
from uma_ctl.commands import top
from uma_ctl.dashboard import TOKENS_TOTAL
from uma_ctl.main import group, run
from uma_ctl.options import Target


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
    assert "pip install rich;" in told and "status --watch" in told


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
