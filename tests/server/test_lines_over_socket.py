"""What people type into `nc -U`."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest

from tests.tools import need


def test_a_prompt_line(server):
    with server.connect() as client:
        client.sock.sendall("Grüß Gott\n".encode())
        assert client.line().decode() == "Grüß Gott\n"
        client.sock.sendall(b"again\r\n")
        assert client.line() == b"again\n"


@pytest.mark.parametrize("line", [b"H\n", b"Hi\n"])
def test_a_short_line_then_silence(server, line):
    with server.connect() as client:
        client.sock.sendall(line)
        assert client.line() == line


def test_a_line_byte_by_byte(server):
    with server.connect() as client:
        for byte in b"Hello there\n":
            client.sock.sendall(bytes([byte]))
        assert client.line() == b"Hello there\n"


def test_printf_into_a_half_closed_socket(server):
    with server.connect() as client:
        client.sock.sendall(b"one\ntwo\nno newline")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.rest() == b"one\ntwo\nno newline\n"


def test_echo(serve):
    server = serve(ipc={"echo": True})
    with server.connect() as client:
        client.sock.sendall(b"abc\n")
        assert client.line() == b"abcabc\n"


@pytest.mark.parametrize(("command", "answer"), [(b"/status\n", {"state": "ready"}), (b"/metrics\n", {"answer": 42})])
def test_commands_answer_one_line_and_close(server, command, answer):
    with server.connect() as client:
        client.sock.sendall(command)
        assert json.loads(client.rest()) == answer


def test_help_is_one_line_of_text(server):
    with server.connect() as client:
        client.sock.sendall(b"/help\n")
        assert client.rest().count(b"\n") == 1


def test_json_lines(server):
    with server.connect() as client:
        client.sock.sendall(b'{"id":1,"prompt":"ab"}\n{"type":"health","id":2}\n')
        events = [json.loads(client.line()) for _ in range(4)]
    assert [event["event"] for event in events if event["id"] == 1] == ["token", "token", "eos"]
    assert [event["event"] for event in events if event["id"] == 2] == ["reply"]


def test_errors_are_text_and_the_connection_lives(server, overloaded):
    server.compute.refuse = overloaded
    with server.connect() as client:
        client.sock.sendall(b"Hel\xfflo\nhello\n")
        assert client.line().startswith(b"[E_PROTO_005 bad_utf8: ")
        assert client.line() == b"[E_LIMIT_003 overloaded: busy]\n"
        server.compute.refuse = None
        client.sock.sendall(b"fine\n")
        assert client.line() == b"fine\n"


def test_many_lines_at_once_are_answered_in_order(server):
    lines = [f"line {n}" for n in range(30)]
    with server.connect() as client:
        client.sock.sendall("".join(line + "\n" for line in lines).encode())
        assert [client.line().decode().rstrip() for _ in lines] == lines


def test_more_lines_than_the_cap_wait_in_the_socket(serve):
    server = serve(ipc={"max_frame_bytes": 1024})
    lines = ["x" * 1000] * 300  # 300 KB in all, with a cap of 1 KB per line
    server.compute.go.clear()
    with server.connect() as client:
        client.sock.settimeout(0.2)
        sent = 0
        data = "".join(line + "\n" for line in lines).encode()
        try:
            while sent < len(data):
                sent += client.sock.send(data[sent:])
        except TimeoutError:
            pass
        buffered = server.on_loop(lambda: max(c.connection.n_buffered for c in server.app.clients.values()))
        assert buffered <= 1024 + 2 * (1 << 16)
        server.compute.go.set()
    server.eventually(lambda: not server.app.clients)


@pytest.mark.parametrize("options", [["-N"], ["-q", "5"]])
def test_the_nc_of_this_machine(server, options):
    (nc,) = need("nc")
    done = subprocess.run(
        [nc, "-U", *options, server.path], input=b"Hello\n", capture_output=True, timeout=20, check=False
    )
    if b"invalid option" in done.stderr or b"illegal option" in done.stderr:
        pytest.skip("this nc has no such option (Debian's netcat-openbsd has)")
    assert done.stdout == b"Hello\n"


def test_a_client_that_does_not_end_its_input_gets_the_answer_and_may_ask_again(server):
    """OpenBSD's nc without -N does not tell us the end of its standard input."""
    with server.connect() as client:
        for prompt in (b"Hello\n", b"again\n"):
            client.sock.sendall(prompt)
            assert client.line() == prompt
            assert server.on_loop(lambda: len(server.app.clients)) == 1
    server.eventually(lambda: not server.app.clients)
