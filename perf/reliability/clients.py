"""Clients of a soak: well-behaved, slow, rude, garbage and vanishing ones. Each knows which answers are right.

Rules: every function is one visit: connect, do something, leave. The answers to an honest visit are checked.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from perf.reliability.streams import prompt_of
from perf.reliability.tally import Tally
from uma_core.errors import BY_CODE
from uma_ctl.client import Client
from uma_ctl.errors import BrokenProtocol, CtlError

TIMEOUT_S = 90.0
REASONS = {"stop", "length", "cancelled", "timeout", "draining", "error"}

Visit = Callable[[str, random.Random, Tally], None]


def request(rng: random.Random, id: Any) -> dict[str, Any]:
    """Return a request that a client may send."""
    prompt = prompt_of(rng, rng.choice((0, 0, 10, 200, 900)))
    fields: dict[str, Any] = {"id": id, "prompt": prompt, "max_tokens": rng.choice((1, 8, 40, 200))}
    options: tuple[tuple[str, Any], ...] = (
        ("priority", rng.choice(("interactive", "background"))),
        ("temperature", 0.8),
        ("stop", ["\n\n"]),
        ("ignore_eos", True),
        ("timeout_ms", rng.choice((50, 60_000))),
        ("cache_prompt", False),
    )
    fields |= {name: value for name, value in options if rng.random() < 0.3}
    return fields


def honest(path: str, rng: random.Random, tally: Tally) -> None:
    """Send several requests at once, and cancel some; each must end once, with nothing after its end."""
    n = rng.randrange(1, 4)
    with Client(path, TIMEOUT_S) as client:
        wanted = {f"q{i}": rng.random() > 0.15 for i in range(n)}
        for id, is_streamed in wanted.items():
            client.send({**request(rng, id), "stream": is_streamed})
        n_tokens = dict.fromkeys(wanted, 0)
        while wanted:
            event = client.next_event()
            _check(event, wanted, n_tokens, tally)
            if event.get("event") == "token" and rng.random() < 0.01:
                client.cancel(event["id"])
        client.call("health")


def _check(event: dict[str, Any], wanted: dict[str, bool], n_tokens: dict[str, int], tally: Tally) -> None:
    kind, id = event.get("event"), event.get("id")
    if kind == "reply":
        return
    if id not in wanted:
        tally.violate(f"an event for a request that has ended: {event}")
    elif kind == "token":
        n_tokens[id] += 1
        if not wanted[id]:
            tally.violate("a token for a request that does not stream")
    elif kind == "error":
        tally.add(f"error/{event['name']}")
        del wanted[id]
    else:
        tally.add(f"final/{event['reason']}")
        if event["reason"] not in REASONS or n_tokens[id] > event["usage"]["completion_tokens"]:
            tally.violate(f"an impossible final event: {event}")
        del wanted[id]


def line(path: str, rng: random.Random, tally: Tally) -> None:
    """Send a prompt line, as netcat would."""
    with _connected(path) as sock:
        sock.sendall(prompt_of(rng).encode() + b"\n")
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
        tally.add("visit/line answered")


def slow(path: str, rng: random.Random, tally: Tally) -> None:
    """Read in small pieces with pauses. The end must come nevertheless, unless the daemon drops this slow reader, whose
    socket buffers only 4 KiB.
    """
    with _connected(path) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        _send(sock, {**request(rng, 1), "max_tokens": 400})
        n_pauses = rng.randrange(1, 30)
        data = b""
        while b'"eos"' not in data and b'"error"' not in data:
            piece = sock.recv(512)
            if not piece:
                tally.add("visit/slow dropped")
                return
            data = data[-64:] + piece
            if n_pauses:
                n_pauses -= 1
                time.sleep(rng.random() * 0.2)
        tally.add("visit/slow answered")


def rude(path: str, rng: random.Random, tally: Tally) -> None:
    """Break the rules of the protocol in ways that must be answered with a code."""
    with Client(path, TIMEOUT_S) as client:
        client.send(rng.choice(_RUDE)(rng))
        with contextlib.suppress(BrokenProtocol):  # some of it ends the connection
            while True:
                event = client.next_event()
                if event.get("event") == "error":
                    if event.get("code") not in BY_CODE:
                        tally.violate(f"an error without a known code: {event}")
                    tally.add(f"error/{event['name']}")
                    return
                if event.get("event") in ("eos", "reply"):
                    return


_RUDE: tuple[Callable[[random.Random], dict[str, Any]], ...] = (
    lambda rng: {"type": "nonsense", "id": 1},
    lambda rng: {"prompt": 17, "id": 1},
    lambda rng: {"prompt": "x", "id": 1, "max_tokens": -5},
    lambda rng: {"prompt": "x" * 300_000, "id": 1},
    lambda rng: {"id": 1},
    lambda rng: {"type": "cancel", "id": "nobody"},
    lambda rng: {"prompt": "x", "tokens": [1], "id": 1},
    lambda rng: {"tokens": [10**8], "id": 1},
    lambda rng: {"messages": [{"role": "user"}], "id": 1},
    lambda rng: {"type": "cache", "action": "unpin", "key": "none", "id": 1},
)


def garbage(path: str, rng: random.Random, tally: Tally) -> None:
    """Send meaningless bytes, or truncated frames."""
    data = rng.randbytes(rng.randrange(1, 2000))
    if rng.random() < 0.5:
        data = struct.pack("<I", rng.choice((5, 5000, 1 << 19, (1 << 31) - 1))) + data
    with _connected(path) as sock:
        sock.sendall(data)
        sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while sock.recv(4096):
                pass
    tally.add("visit/garbage")


def vanishing(path: str, rng: random.Random, tally: Tally) -> None:
    """Disconnect without notice: before, during or after prefill."""
    with _connected(path) as sock:
        for i in range(rng.randrange(1, 4)):
            payload = json.dumps({**request(rng, i), "max_tokens": 1000, "ignore_eos": True}).encode()
            _send_bytes(sock, payload if rng.random() < 0.8 else payload[: len(payload) // 2])
        time.sleep(rng.choice((0, 0.005, 0.05, 0.5)))
        if rng.random() < 0.5:
            sock.recv(100)
    tally.add("visit/vanished")


def curious(path: str, rng: random.Random, tally: Tally) -> None:
    """Call operations that only report."""
    with Client(path, TIMEOUT_S) as client:
        for operation in ("status", "metrics", "sessions", "health", "help"):
            client.call(operation)
    tally.add("visit/curious")


KINDS: tuple[tuple[Visit, int], ...] = (
    (honest, 8),
    (line, 2),
    (slow, 2),
    (rude, 2),
    (garbage, 2),
    (vanishing, 3),
    (curious, 1),
)


def visit(path: str, rng: random.Random, tally: Tally) -> None:
    """Make one visit of a random kind. For an honest client, a connection that ends without an answer is a
    violation.
    """
    kind: Visit = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    tally.add(f"kind/{kind.__name__}")
    try:
        kind(path, rng, tally)
    except (CtlError, OSError) as error:
        if kind in (honest, line, curious):
            tally.violate(f"{kind.__name__}: {error!r}{_circumstances(path)}")


def _circumstances(path: str) -> str:
    """Return what the daemon reports about itself after it broke a promise."""
    try:
        with Client(path, 10) as client:
            return f"; {client.call('status')}; {client.call('sessions')['sessions']}"
    except CtlError as error:
        return f"; and then: {error!r}"


@contextlib.contextmanager
def _connected(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.settimeout(TIMEOUT_S)
        yield sock


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    _send_bytes(sock, json.dumps(message).encode())


def _send_bytes(sock: socket.socket, payload: bytes) -> None:
    sock.sendall(struct.pack("<I", len(payload)) + payload)
