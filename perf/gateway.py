"""The cost of the HTTP gateway: its CPU time per token, and how much later the first token comes than on the socket.

A token's time is that of long streams less that of short ones, because a request also takes time (`x*_request_us`; its
limit is the first token's delay). `x*_token_all_us` is the time of long streams divided by their tokens, requests
included.

The daemon behind the gateway runs the simulated engine at a model's pace (perf/paced.py). The socket and the gateway
are measured alternately, never at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from perf.driver import Driver, Endpoint, frames_endpoint, sse_endpoint
from perf.load import Ask, Phase
from perf.paced import STEP
from perf.peers import HTTP
from perf.proc import cpu_ns
from perf.servers import ServerError, Settings, UmaHttpServer, running
from perf.stats import StreamLog, median
from perf.wire import chat_request

COUNTS = (1, 4, 16)  # streams at once
N_TOKENS = 390  # of each stream: a short answer; every token is a separate event
N_SHORT = 4  # tokens of a stream that consists of little more than its request
N_ROUNDS = 3
N_FIRST = 40  # short requests, of each kind
N_CTX_SEQ = 2048


class PacedServer(UmaHttpServer):
    """A daemon on the simulated engine, with the gateway in front of it."""

    def __init__(self, step_ms: float, folder: Path) -> None:
        settings = Settings(Path("none"), threads=1, n_seq=max(COUNTS), n_ctx_seq=N_CTX_SEQ)
        super().__init__(HTTP, settings, folder)
        self._step_ms = step_ms

    def command(self) -> list[str]:
        settings = self.settings
        command = [
            sys.executable,
            "-m",
            "perf.paced",
            "daemon",
            "--engine",
            "fake",
            "--socket",
            str(self.socket_path),
            "--calibrate",
            "off",
        ]
        return [*command, "--n-ctx", str(settings.n_ctx), "--parallel", str(settings.n_seq)]

    def environ(self) -> dict[str, str]:
        return {
            **super().environ(),
            STEP: str(self._step_ms),
            "UMA_CACHE_DIR": os.fspath(self.log_path.parent / "cache"),
        }

    def gateway_cpu_ns(self) -> int:
        """CPU time of all the gateway's threads."""
        if self._gateway is None:
            raise ServerError(f"{self.label} is not running")
        return cpu_ns(self._gateway.pid)


def measure(repeats: int, step_ms: float, folder: Path) -> Iterator[dict[str, float]]:
    """Yield the figures of each repeat. Raises: ServerError."""
    server = PacedServer(step_ms, folder)
    with running([server]):
        chat = sse_endpoint("127.0.0.1", server.port, chat_request)
        socket = frames_endpoint(str(server.socket_path))
        _ask(chat, 4, 20, "warm-up")
        for repeat in range(repeats):
            figures: dict[str, float] = {}
            for n in COUNTS:
                short_ns = long_ns = 0
                for turn in range(N_ROUNDS):
                    short_ns += _spent_ns(server, chat, n, N_SHORT, f"short {repeat}/{turn}")
                    long_ns += _spent_ns(server, chat, n, N_TOKENS, f"tokens {repeat}/{turn}")
                n_streams = n * N_ROUNDS
                figures[f"x{n}_token_us"] = (long_ns - short_ns) / 1e3 / (n_streams * (N_TOKENS - N_SHORT))
                figures[f"x{n}_token_all_us"] = long_ns / 1e3 / (n_streams * N_TOKENS)
                figures[f"x{n}_request_us"] = short_ns / 1e3 / n_streams
            pairs = [(_first_ms(chat, f"{repeat}/{i}"), _first_ms(socket, f"{repeat}/{i}")) for i in range(N_FIRST)]
            figures["first_ms"] = median([there for there, _ in pairs])
            figures["first_later_ms"] = median([there - here for there, here in pairs])
            yield figures


def _spent_ns(server: PacedServer, endpoint: Endpoint, n_streams: int, n_tokens: int, seed: str) -> int:
    """Return the CPU time of the gateway for this many streams."""
    before = server.gateway_cpu_ns()
    _ask(endpoint, n_streams, n_tokens, seed)
    return server.gateway_cpu_ns() - before


def _first_ms(endpoint: Endpoint, seed: str) -> float:
    return _ask(endpoint, 1, 4, seed)[0].ttft_ms


def _ask(endpoint: Endpoint, n_streams: int, n_tokens: int, seed: str) -> list[StreamLog]:
    """Ask for streams. Raises: ServerError if a stream is not complete."""
    driver = Driver(
        endpoint, Phase("gateway", tuple(Ask(f"s{i}", 40, n_tokens) for i in range(n_streams)), timeout_s=120.0), seed
    )
    gc.collect()
    streams = driver.run()
    for stream in streams:
        if not stream.is_complete:
            raise ServerError(f"{stream.name}: {stream.error or f'{len(stream.t_tokens)} of {n_tokens} tokens'}")
    return streams
