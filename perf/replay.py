"""How much speculation gains on recorded texts: the same daemon with and without it, in turn, alone and beside a
prefill storm.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.recorded import N_TURNS, recorded
from perf.replayed import constraint_of, seed_of, vocabulary
from perf.servers import Settings, UmaServer
from perf.stats import percentile
from perf.wire import frame

OFF = "off"
N_TOKENS = 256  # of an answer; the first 96 repeat too little (JSON was 1.38x as fast with drafts, but 1.74x with 256)
N_TURNS_EACH = 4  # of the agent's turns, for each stream
N_STORM, N_STORM_PROMPT, STORM_EVERY_S = 6, 1200, 0.4
SAME_STEP_NS = 200_000  # tokens of one step arrive together: within this much of each other
TIMEOUT_S = 180.0


class ReplayServer(UmaServer):
    """Serves recorded answers. It drafts nothing from earlier answers, because each text is answered many times."""

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("uma_core")] = "perf.replayed"
        # drawn tokens are replaced: a step that was begun ahead with one would be wasted
        return [*command, "--history-tokens", "0", "--engine", "graph", "--decode-ahead", "off"]


@dataclass(frozen=True, slots=True)
class Case:
    workload: str
    n_streams: int
    has_storm: bool

    @property
    def name(self) -> str:
        return f"spec-{self.workload}-{self.n_streams}{'-storm' if self.has_storm else ''}"

    @property
    def title(self) -> str:
        beside = " beside a prefill storm" if self.has_storm else ""
        return f"speculation, {self.workload}, {self.n_streams} streams{beside}"


class Replayer:
    """Asks a `ReplayServer`. Blocking; one connection a request."""

    def __init__(self, path: str) -> None:
        self._path = path
        vocab = vocabulary()
        self._texts = [
            (t, vocab.tokenize(t.prompt, True, False), vocab.tokenize(t.answer, False, False)) for t in recorded()
        ]
        self._n_storm = 0

    def numbers(self, workload: str) -> list[int]:
        return [i for i, (text, _, _) in enumerate(self._texts) if text.workload == workload]

    def warm(self, case: Case, repeat: int) -> None:
        """Let the daemon read the case's prompts, so that both modes find them in the cache. Raises: OSError."""
        for i in range(case.n_streams):
            for which in self._turns(case, i, repeat):
                with self._send(id="w", tokens=self._texts[which][1], max_tokens=1, speculate=OFF) as sock:
                    buffer = bytearray()
                    while not any(event.get("event") in ("eos", "error") for event in _events(buffer)):
                        data = sock.recv(1 << 16)
                        if not data:
                            raise OSError(f"{case.name}: the daemon hung up")
                        buffer += data

    def measure(self, case: Case, mode: str, repeat: int) -> dict[str, float]:
        """Return tokens a second of all streams, and the gaps between their steps and tokens. Each repeat has
        other texts.

        Raises: OSError if the daemon fails.
        """
        streams = [list(self._turns(case, i, repeat)) for i in range(case.n_streams)]
        sockets: dict[socket.socket, tuple[int, bytearray]] = {}
        asked: list[int] = [turns[0] for turns in streams]  # the text that each stream is answered with
        tokens: list[list[int]] = [[] for _ in streams]
        times: list[list[int]] = [[] for _ in streams]
        gaps: list[float] = []
        usage = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
        begin = time.monotonic_ns()
        spans: list[tuple[int, int, int]] = []  # first token, last token, tokens
        storms: list[socket.socket] = []
        for i, turns in enumerate(streams):
            asked[i] = turns.pop(0)
            sockets[self._ask(asked[i], mode)] = i, bytearray()
        while sockets:
            now = time.monotonic_ns()
            if now - begin > TIMEOUT_S * 1e9:
                raise OSError(f"{case.name}: not answered within {TIMEOUT_S:.0f} s")
            if case.has_storm and len(storms) < N_STORM and now - begin > (0.3 + len(storms) * STORM_EVERY_S) * 1e9:
                storms.append(self._storm())
            for sock in select.select(list(sockets), [], [], 0.05)[0]:
                i, buffer = sockets[sock]
                data, now = sock.recv(1 << 16), time.monotonic_ns()
                if not data:
                    raise OSError(f"{case.name}: the daemon hung up")
                buffer += data
                for event in _events(buffer):
                    if event.get("event") == "token":
                        times[i].append(now)
                        tokens[i].append(event["token_id"])
                    elif event.get("event") in ("eos", "error"):
                        if event.get("reason") != "length" or tokens[i] != self._texts[asked[i]][2][: len(tokens[i])]:
                            raise OSError(f"{case.name}: not the recorded answer: {event}")
                        for name in usage:
                            usage[name] += event["usage"].get(name, 0)
                        spans.append((times[i][0], times[i][-1], len(times[i])))
                        gaps += [(b - a) / 1e6 for a, b in zip(times[i], times[i][1:], strict=False)]
                        times[i], tokens[i] = [], []
                        del sockets[sock]
                        sock.close()
                        if streams[i]:
                            asked[i] = streams[i].pop(0)
                            sockets[self._ask(asked[i], mode)] = i, bytearray()
        for sock in storms:
            sock.close()  # this cancels the rest of the request
        steps = [gap for gap in gaps if gap * 1e6 > SAME_STEP_NS]
        drafted = sum(usage.values())
        return {
            "tok_s": case.n_streams * pace(spans),
            "step_p50_ms": percentile(steps, 50),
            "step_p95_ms": percentile(steps, 95),
            "step_max_ms": max(steps, default=0.0),
            "token_p95_ms": percentile(gaps, 95),
            "accepted": usage["accepted_prediction_tokens"] / drafted if drafted else 0.0,
            "drafted_per_token": drafted / max(1, sum(n for _, _, n in spans)),
        }

    def _turns(self, case: Case, stream: int, repeat: int) -> Iterator[int]:
        known, stream = self.numbers(case.workload), stream + repeat * case.n_streams
        if case.workload == "agent":
            step = N_TURNS // N_TURNS_EACH
            yield from (known[(stream + step * turn) % N_TURNS] for turn in range(N_TURNS_EACH))
        else:
            yield known[stream % len(known)]

    def _ask(self, which: int, mode: str) -> socket.socket:
        text, prompt, answer = self._texts[which]
        n = min(len(answer) - 1, N_TOKENS)  # the last token would end an answer that follows a grammar
        constraint = constraint_of(text)
        held = {} if constraint is None else {"constraint": {constraint.kind: constraint.value}}
        seed = seed_of(which)
        return self._send(
            id="r", tokens=prompt, max_tokens=n, seed=seed, speculate=mode, priority="interactive", **held
        )

    def _storm(self) -> socket.socket:
        self._n_storm += 1
        tokens = [300 + (self._n_storm * 7919 + i * 31) % 7000 for i in range(N_STORM_PROMPT)]
        return self._send(id="s", tokens=tokens, max_tokens=1, priority="background", speculate=OFF)

    def _send(self, **message: Any) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self._path)
        # with a temperature the request has a sampler, whose seed tells the engine which recorded answer to give
        sock.sendall(frame({**message, "temperature": 1, "stream": True}))
        return sock


def pace(spans: Sequence[tuple[int, int, int]]) -> float:
    """Return the tokens a second of a stream with these answers, each given by the times of its first and last token
    and its number of tokens: all tokens by all time, so that a slow answer has the weight of its longer time.
    """
    return 1e9 * sum(n - 1 for _, _, n in spans) / max(1, sum(last - first for first, last, _ in spans))


def _events(buffer: bytearray) -> Iterator[dict[str, Any]]:
    while len(buffer) >= 4:
        (size,) = struct.unpack_from("<I", buffer)
        if len(buffer) < 4 + size:
            return
        yield json.loads(bytes(buffer[4 : 4 + size]))
        del buffer[: 4 + size]


def compare(
    server: ReplayServer, cases: Sequence[Case], mode: str, repeats: int
) -> Iterator[tuple[Case, str, dict[str, float]]]:
    """Yield the figures of every case with a mode of speculation and without, in turn, repeat by repeat; every other
    repeat reverses the order.
    """
    replayer = Replayer(str(server.socket_path))
    for repeat in range(repeats):
        for case in cases:
            replayer.warm(case, repeat)
            for each in (OFF, mode) if repeat % 2 == 0 else (mode, OFF):
                yield case, each, replayer.measure(case, each, repeat)


def settings(model: Path, threads: int, n_gpu_layers: int = 0) -> Settings:
    return Settings(model, threads, n_seq=8, n_ctx_seq=2048, n_gpu_layers=n_gpu_layers)


def words(case: Case, on: list[dict[str, float]], off: list[dict[str, float]], alone_step_ms: float) -> str:
    """Return one line: ratios with their spread. Times between tokens are in steps of one stream without drafts."""
    ratios = sorted(a["tok_s"] / b["tok_s"] for a, b in zip(on, off, strict=False))
    figures = {
        name: (
            percentile([row[name] for row in on], 50) / alone_step_ms,
            percentile([row[name] for row in off], 50) / alone_step_ms,
        )
        for name in ("step_p95_ms", "step_max_ms", "token_p95_ms")
    }
    times = "  ".join(f"{name[:-3]} {a:.2f} (off {b:.2f})" for name, (a, b) in figures.items())
    held = percentile([row["accepted"] for row in on], 50)
    return (
        f"{case.name:24} {percentile(ratios, 50):.2f}x tokens/s ({ratios[0]:.2f} to {ratios[-1]:.2f})  {times}  "
        f"held {held:.2f} of {percentile([row['drafted_per_token'] for row in on], 50):.2f} a token"
    )
