"""`uma-ctl chat`: turns from a pipe, and a terminal where Ctrl-C stops the answer but not the chat."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from contextlib import suppress


def echo_last(peer, message):
    peer.token(message["id"], f"you said {message['messages'][-1]['content']}")
    peer.eos(message["id"])


def test_each_line_is_a_turn_and_the_conversation_grows(serve, ctl):
    server = serve(echo_last)
    done = ctl("chat", "--system", "be brief", input="one\n\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "you said one\nyou said two\n")
    assert server.received[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "you said one"},
        {"role": "user", "content": "two"},
    ]
    assert server.received[0]["priority"] == "interactive"


def test_reset_system_and_quit(serve, ctl):
    server = serve(echo_last)
    ctl("chat", input="one\n/reset\n/system you are a cat\ntwo\n/quit\nthree\n")
    assert [len(message["messages"]) for message in server.received] == [1, 2]
    assert server.received[1]["messages"][0] == {"role": "system", "content": "you are a cat"}


def test_a_refused_turn_leaves_the_conversation_and_the_chat_goes_on(serve, ctl):
    answers = iter([lambda peer, m: peer.refuse(m["id"], "E_LIMIT_003", "overloaded"), echo_last])
    server = serve(lambda peer, message: next(answers)(peer, message))
    done = ctl("chat", input="one\ntwo\n")
    assert done.stdout == "you said two\n"
    assert "E_LIMIT_003" in done.stderr
    assert server.received[1]["messages"] == [{"role": "user", "content": "two"}]


def test_the_exit_status_is_that_of_the_last_answer(serve, ctl):
    serve(lambda peer, m: peer.refuse(m["id"], "E_LIMIT_003", "overloaded"))
    assert ctl("chat", input="one\n").returncode == 2


def test_without_a_daemon_a_pipe_fails(ctl):
    assert ctl("chat", input="one\n").returncode == 1


def interrupt_at_prompt(process: subprocess.Popen, terminal: int, read_until) -> None:
    """Send Ctrl-C until the next prompt comes: readline misses a signal that comes just before it begins to wait."""
    for _ in range(30):
        process.send_signal(signal.SIGINT)
        with suppress(TimeoutError):
            read_until(terminal, b"> ", 1.0)
            return
    raise AssertionError("Ctrl-C at the prompt brought no new prompt")


def test_ctrl_c_on_a_terminal_stops_the_answer_and_keeps_what_it_said(serve, start, read_until):
    def script(peer, message):
        if message.get("type") == "cancel":
            peer.eos(message["id"], "cancelled")
        elif message["messages"][-1]["content"] == "talk":
            peer.token(message["id"], "blah \x1b[31mblah")
        else:
            echo_last(peer, message)

    server = serve(script)
    ours, theirs = pty.openpty()
    process = start("uma_ctl", "chat", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    read_until(ours, b"> ")
    os.write(ours, b"talk\n")
    assert b"\x1b[31m" not in read_until(ours, b"blah [31mblah"), (
        "a model's words must not reach the terminal as commands"
    )
    process.send_signal(signal.SIGINT)
    read_until(ours, b"> ")
    os.write(ours, b"next\n")
    if b"> " not in read_until(ours, b"you said next").partition(b"you said next")[2]:
        read_until(ours, b"> ")
    interrupt_at_prompt(process, ours, read_until)  # only the typed line is dropped
    os.write(ours, b"/quit\n")
    assert process.wait(timeout=30) == 0
    os.close(ours)
    turns = [message for message in server.received if "messages" in message]
    assert [m["content"] for m in turns[1]["messages"]] == ["talk", "blah \x1b[31mblah", "next"]
