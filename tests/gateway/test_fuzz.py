"""Whatever bytes and whatever JSON come, the gateway answers or hangs up, keeps running, and leaves the daemon idle.

`make fuzz`: 10^5 requests.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading

import pytest

from tests.daemon.support import eventually
from tests.gateway.support import GatewayProcess, Raw, n_busy

IS_FULL = os.environ.get("UMA_FUZZ") == "full"
N_REQUESTS = 100_000 if IS_FULL else 600
N_THREADS = 8

PATHS = (
    *(
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/fim/completions",
        "/v1/responses",
        "/v1/models",
        "/v1/responses/x",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ),
    *(
        "/api/chat",
        "/api/generate",
        "/api/show",
        "/api/tags",
        "/completion",
        "/infill",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/props",
    ),
    *(
        "/health",
        "/metrics",
        "/slots",
        "/uma/status",
        "/dashboard",
        "/pages/..%2f..%2fapp.py",
        "/v1//models",
        "/%00",
        "/nothing",
        "/",
    ),
)
NAMES = (
    *(
        "messages",
        "prompt",
        "input",
        "stream",
        "max_tokens",
        "temperature",
        "top_p",
        "stop",
        "n",
        "seed",
        "tools",
        "tool_choice",
        "logprobs",
    ),
    *(
        "response_format",
        "logit_bias",
        "stream_options",
        "model",
        "priority",
        "service_tier",
        "echo",
        "suffix",
        "best_of",
        "instructions",
    ),
    *(
        "previous_response_id",
        "text",
        "reasoning",
        "metadata",
        "role",
        "content",
        "type",
        "function",
        "name",
        "parameters",
        "samplers",
    ),
    *(
        "system",
        "thinking",
        "stop_sequences",
        "options",
        "format",
        "think",
        "raw",
        "n_predict",
        "response_fields",
        "n_probs",
        "input_prefix",
        "tokens",
    ),
)
ATOMS = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        3,
        2**31,
        2**63,
        -(2**63),
        1e308,
        0.5,
        "",
        "x",
        "user",
        "assistant",
        "\ud7ff",
        "\0",
        "é" * 50,
        "function",
    ),
    *("json_object", "auto", "required", [], {}, [[]], "hello", "a" * 3000),
)
HEADS = (
    *(
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
    ),
    *(
        "Connection: upgrade\r\nUpgrade: websocket",
        "Expect: 100-continue",
        "Host: evil",
        "Host: localhost",
        "Origin: null",
        "X: \x01",
        "A" * 300 + ": b",
    ),
    *(
        "Authorization: Bearer \xff",
        "X-Request-Id: " + "i" * 500,
        "X-Priority: urgent",
        "Connection: close",
        ": empty",
        "Content-Encoding: gzip",
    ),
)
SMUGGLED = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: smuggled\r\n\r\n"
TWO_LENGTHS = (  # two servers in a row could see different ends of the body
    *(
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
    ),
    *(
        "Content-Length: 5, 6",
        "Content-Length: 5,5",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 0x5",
        "Content-Length: 5 5",
    ),
    *(
        "Content-Length : 5",
        "Content-Length\t: 5",
        "Content-Length:\x0b5",
        "Content-Length: 18446744073709551621",
        "X: a\nContent-Length: 5",
    ),
    *(
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding:\x0bchunked",
    ),
    *(
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: gzip",
        'Transfer-Encoding: "chunked"',
        " Content-Length: 5",
    ),
)
BAD_CHUNKS = (
    *(b"-0\r\n\r\n", b"0x0\r\n\r\n", b"+0\r\n\r\n", b" 0\r\n\r\n", b"g\r\n\r\n"),
    *(b"1\r\nab\r\n0\r\n\r\n", b"10000000000000000\r\n\r\n", b"\r\n0\r\n\r\n"),
)


def value(rng: random.Random, depth: int = 0) -> object:
    roll = rng.random()
    if depth > 4 or roll < 0.5:
        return rng.choice(ATOMS)
    if roll < 0.7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(NAMES): value(rng, depth + 1) for _ in range(rng.randrange(5))}


def body(rng: random.Random) -> bytes:
    """Return something like a request, something like JSON, or neither."""
    roll = rng.random()
    if roll < 0.1:
        return rng.randbytes(rng.randrange(60))
    near: dict[str, object] = {
        "messages": [{"role": "user", "content": "hi"}],
        "prompt": "hi",
        "input": "hi",
        "max_tokens": 3,
        "max_output_tokens": 3,
    }
    near |= {rng.choice(NAMES): value(rng) for _ in range(rng.randrange(4))}
    if rng.random() < 0.5:
        near["stream"] = True
    text = json.dumps(near, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if roll < 0.25:
        at = rng.randrange(len(text))
        return text[:at] + rng.randbytes(rng.randrange(3)) + text[at + rng.randrange(3) :]
    return text


def request(rng: random.Random) -> bytes:
    data = body(rng)
    lines = [f"{rng.choice(('GET', 'POST', 'POST', 'POST', 'PUT', 'OPTIONS', 'BREW'))} {rng.choice(PATHS)} HTTP/1.1"]
    if rng.random() < 0.9:
        lines.append("Host: localhost")
    if rng.random() < 0.8:
        lines.append(f"Content-Length: {len(data)}")
    lines += rng.sample(HEADS, rng.randrange(3)) if rng.random() < 0.4 else []
    raw = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data
    if rng.random() < 0.1:
        at = rng.randrange(len(raw))
        raw = raw[:at] + rng.randbytes(1) + raw[at:]
    return raw


def smuggling(rng: random.Random) -> bytes:
    """Return a request whose body has no certain end, followed by another one that only some readers see as a second
    request.
    """
    method, path = rng.choice(("GET", "POST")), rng.choice(PATHS)
    if rng.random() < 0.6:
        lines, end = rng.choice(TWO_LENGTHS), b"0\r\n\r\n"
    else:
        lines, end = "Transfer-Encoding: chunked", rng.choice(BAD_CHUNKS)
    more = "".join(f"X-{i}: {'y' * rng.randrange(40)}\r\n" for i in range(rng.randrange(3)))
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}{lines}\r\n\r\n".encode("latin-1") + end + SMUGGLED


def answered(raw: Raw) -> bytes:
    raw.sock.shutdown(socket.SHUT_WR)
    return raw.rest()


def bombard(port: int, seed: int, n: int, faults: list[bytes]) -> None:
    rng = random.Random(seed)
    for _ in range(n):
        with Raw(port) as raw:
            raw.sock.settimeout(30)
            try:
                if rng.random() < 0.1:
                    sent = smuggling(rng)
                    raw.sock.sendall(sent)
                    if b"smuggled" in answered(raw):
                        faults.append(sent)
                    continue
                raw.sock.sendall(request(rng))
                if rng.random() < 0.3:  # the client leaves in the middle
                    raw.sock.recv(rng.randrange(1, 200))
                    continue
                raw.sock.shutdown(socket.SHUT_WR)
                while raw.sock.recv(1 << 16):
                    pass
            except (ConnectionError, TimeoutError):
                pass


@pytest.mark.fuzz
def test_random_requests(gateway: GatewayProcess, fake):
    gateway.chat(max_tokens=1)
    n_descriptors = gateway.descriptors()
    faults: list[bytes] = []
    threads = [
        threading.Thread(target=bombard, args=(gateway.port, seed, N_REQUESTS // N_THREADS, faults))
        for seed in range(N_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, f"the request behind it was answered: {faults[0]!r}"
    assert gateway.process.poll() is None, gateway.log[-3000:]
    assert "Traceback" not in gateway.log, gateway.log[gateway.log.index("Traceback") - 300 :][:3000]
    assert "Traceback" not in fake.log
    eventually(lambda: n_busy(fake) == 0, "the daemon still computes for nobody")
    eventually(lambda: gateway.descriptors() <= n_descriptors, "connections are left over")
    assert gateway.chat(max_tokens=2).status == 200


def test_disconnects_in_mid_stream_leave_nothing_busy(gateway: GatewayProcess, fake, levers):
    levers(step_ms=2)

    def leave(seed: int, n: int) -> None:
        rng = random.Random(seed)
        for _ in range(n):
            with Raw(gateway.port) as raw:
                raw.send(
                    "POST",
                    "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2000, "stream": True},
                )
                raw.sock.recv(rng.randrange(1, 3000))

    threads = [threading.Thread(target=leave, args=(seed, 125 if IS_FULL else 15)) for seed in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: n_busy(fake) == 0, "the daemon still computes for nobody")
    assert "Traceback" not in gateway.log and gateway.chat(max_tokens=2).status == 200
