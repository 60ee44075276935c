"""Endless heads and bodies, malformed HTTP, smuggling, wishes for other protocols, and readers that do not read."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.daemon.support import WAIT_S, eventually
from tests.gateway.support import Raw, gateway_before, n_busy
from uma_gateway.config import LimitOptions
from uma_gateway.server import make_room

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def strict(module_folder):
    """A gateway with short time limits and small size limits, without a daemon."""
    times = ("--header-timeout-s", "0.3", "--body-timeout-s", "0.3", "--keep-alive-s", "1", "--write-timeout-s", "0.5")
    sizes = ("--max-header-kb", "4", "--max-body-mb", "0.01", "--max-connections", "8")
    with gateway_before(module_folder, str(module_folder / "none.sock"), *times, *sizes) as gateway:
        yield gateway


@pytest.mark.parametrize("start", [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ", b"\r\n\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(strict, start):
    with Raw(strict.port) as raw:
        raw.sock.sendall(start)
        assert raw.rest()[:12] == (b"HTTP/1.1 408" if start else b"")


def test_a_head_that_trickles_is_not_waited_for(strict):
    with Raw(strict.port) as raw, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.sock.settimeout(0.05)
        raw.sock.sendall(b"GET /health HTTP/1.1\r\n")
        for i in range(2000):
            raw.sock.sendall(f"X-{i}: 1\r\n".encode())
            with contextlib.suppress(TimeoutError):
                if not raw.sock.recv(1000):
                    return
        raise AssertionError("it still listens")


def test_a_second_head_on_a_connection_is_not_waited_for_either(strict):
    with Raw(strict.port) as raw:
        raw.send("GET", "/health", is_last=False)
        raw.until(b"}")
        raw.sock.sendall(b"GET /hea")
        assert raw.rest().startswith(b"HTTP/1.1 408")


def test_an_idle_connection_is_closed(strict):
    with Raw(strict.port) as raw:
        raw.send("GET", "/health", is_last=False)
        raw.until(b"}")
        assert raw.rest() == b""


@pytest.mark.parametrize("is_one_line", [True, False])
def test_a_head_that_is_too_large(strict, is_one_line):
    with Raw(strict.port) as raw, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        for i in range(200):
            raw.sock.sendall(b"x" * 100 if is_one_line else f"X-{i}: {'y' * 90}\r\n".encode())
        assert raw.rest().startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))


def test_a_head_that_is_too_large_and_comes_at_once(strict):
    """The parser has read all of it before its size is known: that was "Invalid HTTP request received"."""
    with Raw(strict.port) as raw:
        raw.sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000 + b"\r\n\r\n")
        assert raw.rest().startswith(b"HTTP/1.1 431")


CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("is_one_line", [True, False])
def test_what_follows_the_last_chunk_is_limited_as_a_head_is(folder, before, is_one_line):
    """The parser keeps it, and copies a whole line each time that more of it comes."""
    gateway = before(str(folder / "s"), "--max-header-kb", "4")
    with Raw(gateway.port) as raw, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.sock.settimeout(WAIT_S / 4)
        raw.sock.sendall(CHUNKED + b"2\r\n{}\r\n0\r\nX: ")
        for i in range(200):
            raw.sock.sendall(b"x" * 100 if is_one_line else f"X-{i}: {'y' * 90}\r\n".encode())
        assert raw.rest().startswith(b"HTTP/1.1 431")


def test_chunks_that_come_apart_from_their_sizes_are_no_head(strict):
    with Raw(strict.port) as raw:
        raw.sock.sendall(CHUNKED)
        for part in (b'{"content": "', b"x" * 3000, b"y" * 3000, b'"}'):
            for piece in (b"%x\r\n" % len(part), part + b"\r\n"):
                raw.sock.sendall(piece)
                time.sleep(0.01)
        raw.sock.sendall(b"0\r\nX-Checksum: 1\r\n\r\n")
        assert b" 503 " in raw.rest().split(b"\r\n")[0], "there is no daemon"


def test_what_follows_the_last_chunk_is_no_header_of_the_request(gateway):
    with Raw(gateway.port) as raw:
        raw.sock.sendall(CHUNKED + b"2\r\n{}\r\n0\r\nHost: evil.example\r\nX-Request-Id: late\r\n\r\n")
        answer = raw.rest()
    assert answer.startswith(b"HTTP/1.1 200") and b"x-request-id: late" not in answer


def test_a_body_that_is_too_large_is_refused_unread(strict):
    with Raw(strict.port) as raw:
        raw.send("POST", "/v1/chat/completions", None, {"content-length": "99999999999"}, is_last=False)
        answer = raw.rest()
        assert b" 413 " in answer.split(b"\r\n")[0] and b"connection: close" in answer.lower()
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    with Raw(strict.port) as raw:
        raw.sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk
        )
        assert b" 413 " in raw.rest().split(b"\r\n")[0]


@pytest.mark.parametrize("begun", [b"", b"{"])
@pytest.mark.parametrize("head", [{"content-length": "100"}, {"content-length": None, "transfer-encoding": "chunked"}])
def test_a_body_that_does_not_come_is_not_waited_for(strict, head, begun):
    with Raw(strict.port) as raw:
        raw.sock.settimeout(WAIT_S / 4)
        raw.send("POST", "/v1/chat/completions", None, head, is_last=False)
        raw.sock.sendall(b"1\r\n{\r\n" if begun and "transfer-encoding" in head else begun)
        assert b" 408 " in raw.rest().split(b"\r\n")[0]


def test_a_body_that_nobody_reads_does_not_keep_its_connection(strict):
    with Raw(strict.port) as raw, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.send("GET", "/dashboard", None, {"content-length": "1000000"}, is_last=False)
        raw.until(b"</html>")
        raw.sock.settimeout(0.05)
        for _ in range(900):
            raw.sock.sendall(b"x")  # the request trickles in
            with contextlib.suppress(TimeoutError):
                if not raw.sock.recv(1000):
                    return
        raise AssertionError("it still listens")


def test_too_many_connections_are_closed(strict):
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(strict.port)) for _ in range(8)]
        raws[0].send("GET", "/health", is_last=False)
        raws[0].until(b"}")
        with Raw(strict.port) as raw:
            assert raw.rest() == b""
    eventually(lambda: strict.get("/health").status == 503)


def test_too_many_requests_at_once_are_told_to_come_back(serve, before):
    daemon = serve()
    gateway = before(daemon, "--max-in-flight", "1")
    daemon.pull(step_ms=20)
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 500, "stream": True})
        raw.until(b"delta")
        refused = gateway.chat()
        assert (refused.status, refused.error["code"]) == (503, "overloaded") and int(
            refused.headers["retry-after-ms"]
        ) > 0
        assert gateway.get("/health").status == 200


def test_a_reader_that_takes_nothing_is_dropped_and_its_request_cancelled(serve, before):
    daemon = serve("--n-ctx", "65536", "--max-tokens", "60000", "--parallel", "1")
    gateway = before(daemon, "--write-timeout-s", "0.5")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(WAIT_S)
    sock.connect(("127.0.0.1", gateway.port))
    likely = {"logprobs": True, "top_logprobs": 20}  # more bytes than the buffers in between can hold
    body = json.dumps({**CHAT, **likely, "max_tokens": 60000, "stream": True, "ignore_eos": True}).encode()
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    gateway.logs("a client read nothing")
    eventually(lambda: n_busy(daemon) == 0, "its request still runs")
    sock.close()


def test_a_refused_body_is_read_away_so_that_its_sender_sees_why(before, folder):
    gateway = before(str(folder / "s"), environ={"UMA_GATEWAY_API_KEY": "secret"})
    for n_bytes in (100, 500_000):
        with Raw(gateway.port) as raw:
            raw.send("POST", "/v1/chat/completions", b"x" * n_bytes, is_last=False)
            raw.until(b"invalid_api_key")
            raw.send("GET", "/health")  # the connection is still usable
            assert raw.rest().startswith(b"HTTP/1.1 503")


def test_the_end_of_a_refused_body_is_not_waited_for(before, folder):
    gateway = before(str(folder / "s"), environ={"UMA_GATEWAY_API_KEY": "secret"})
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", b"{", {"content-length": "1000"}, is_last=False)
        answer = raw.rest()
    assert b" 401 " in answer.split(b"\r\n")[0] and b"connection: close" in answer.lower()


SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length : 5\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"X: a\nContent-Length: 5\r\n",
        b" Content-Length: 5\r\n",
        b"\0: 5\r\n",
    ],
)
def test_ambiguous_bodies_are_refused_and_nothing_behind_them_is_a_request(gateway, head):
    with Raw(gateway.port) as raw:
        raw.sock.sendall(b"POST /health HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n0\r\n\r\n" + SMUGGLED)
        raw.sock.shutdown(socket.SHUT_WR)
        answers = raw.rest()
    assert b'"data"' not in answers, "the smuggled request was answered"
    assert answers.count(b"HTTP/1.1 200") == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"\x00" * 100,
        b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_request_is_refused(gateway, data):
    with Raw(gateway.port) as raw:
        raw.sock.sendall(data)
        raw.sock.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1 200" not in raw.rest()
    assert gateway.get("/health").status == 200


def test_pipelined_requests_are_answered_in_order(gateway):
    with Raw(gateway.port) as raw:
        for path in ("/health", "/v1/models"):
            raw.send("GET", path, is_last=False)
        raw.send("GET", "/nothing")
        answers = raw.rest()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"404"]


def test_a_packed_body_is_refused_by_its_coding(gateway):
    packed = gzip.compress(b'{"content": "one"}')
    answer = gateway.ask("POST", "/tokenize", packed, {"content-encoding": "gzip"})
    assert answer.status == 400 and "Content-Encoding gzip" in answer.error["message"]
    assert gateway.ask("POST", "/tokenize", {"content": "one"}, {"content-encoding": "identity"}).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_who_pipelines_and_leaves_is_waited_for_by_nobody(gateway, fake, levers, stream):
    levers(step_ms=50)
    name = f"left-{stream}"
    with Raw(gateway.port) as raw:
        for headers in ({"x-request-id": name}, {}, {}):
            body = {**CHAT, "max_tokens": 500, "stream": stream}
            raw.send("POST", "/v1/chat/completions", body, headers, is_last=False)
        eventually(lambda: n_busy(fake) == 1)
    line = eventually(lambda: re.search(f"request={name} .*", gateway.log), "the request does not end")
    assert "client=gone" in line[0], line[0]
    eventually(lambda: n_busy(fake) == 0)


WISH = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_wish_for_another_protocol_is_no_reason_to_lose_a_body(gateway, is_late, is_chunked):
    """Java's client sends an upgrade with its first request. A server that does not grant it answers in HTTP/1.1."""
    body = json.dumps({"content": "one"}).encode()
    length = {"transfer-encoding": "chunked", "content-length": None} if is_chunked else {"content-length": len(body)}
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    with Raw(gateway.port) as raw:
        raw.send("POST", "/tokenize", b"" if is_late else sent, {**WISH, **length}, is_last=False)
        if is_late:
            raw.sock.sendall(sent)
        raw.until(b'"tokens"')
        raw.send("POST", "/tokenize", {"content": "two"}, WISH, is_last=False)
        raw.send("GET", "/health", None, {**WISH, "connection": "upgrade, close"}, is_last=False)
        answers = raw.rest()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200"]
    assert b'"tokens"' in answers and b'"ok"' in answers


def test_many_wishes_at_once_are_answered_in_order(gateway):
    wish = b"".join(f"{name}: {value}\r\n".encode() for name, value in WISH.items())
    with Raw(gateway.port) as raw:
        raw.sock.sendall((b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + wish + b"\r\n") * 300)
        raw.send("GET", "/nothing")
        answers = raw.rest()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200"] * 300 + [b"404"]


def test_a_wish_in_the_old_name_of_connection_is_read_once(gateway):
    """The parser takes `Proxy-Connection` for `Connection`."""
    with Raw(gateway.port) as raw:
        raw.send("POST", "/tokenize", {"content": "one"}, {"proxy-connection": "upgrade", "upgrade": "h2c"})
        assert re.findall(rb"HTTP/1.1 (\d+)", raw.rest()) == [b"200"]
    assert gateway.ask("GET", "/health").status == 200


def test_a_wish_over_http_1_0_needs_no_host(gateway):
    with Raw(gateway.port) as raw:
        raw.sock.sendall(b"GET /health HTTP/1.0\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        assert raw.rest().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("target", ["/health", "/v1/chat/completions", "127.0.0.1:443"])
@pytest.mark.parametrize("more", [b"", b"\x16\x03\x01 no HTTP", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_who_takes_the_gateway_for_a_proxy_is_refused(gateway, target, more):
    with Raw(gateway.port) as raw:
        raw.sock.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() + more)
        (status,) = re.findall(rb"HTTP/1.1 (\d+)", raw.rest())
    assert status in (b"400", b"405")
    assert gateway.ask("GET", "/health").status == 200


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}])
def test_a_stream_over_http_1_0_has_no_chunks_and_ends_with_its_connection(gateway, fields):
    body = json.dumps({**CHAT, **fields, "stream": True}).encode()
    with Raw(gateway.port) as raw:
        head = b"POST /v1/chat/completions HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: %d\r\n\r\n"
        raw.sock.sendall(head % len(body) + body)
        data = raw.rest()
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    lines = [line for line in rest.split(b"\n") if line and not line.startswith(b":")]
    assert len(lines) > 3 and all(line.startswith(b"data: ") for line in lines), rest
    assert lines[-1] == b"data: [DONE]"


def test_the_head_of_an_endless_stream_ends(gateway):
    with Raw(gateway.port) as raw:
        raw.send("HEAD", "/uma/events", is_last=False)
        raw.send("GET", "/health")
        assert re.findall(rb"HTTP/1.1 (\d+)", raw.rest()) == [b"200", b"200"]


def test_a_limit_on_open_files_that_the_system_refuses_does_not_keep_the_gateway_from_starting(monkeypatch, caplog):
    def refuse(kind, limits):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    make_room(LimitOptions(max_connections=100_000))
    assert "the limit on open files stays at 256" in caplog.text


def test_the_memory_of_large_requests_returns_to_the_system(fake, before):
    gateway = before(fake)
    long = json.dumps({**CHAT, "messages": [{"role": "user", "content": "word " * 400_000}]}).encode()

    def send(_):
        for _ in range(6):
            assert gateway.ask("POST", "/v1/chat/completions", long).status == 400

    rss = gateway.rss_bytes()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))
    assert gateway.rss_bytes() - rss < 100 << 20, f"{(gateway.rss_bytes() - rss) >> 20} MiB are kept"
