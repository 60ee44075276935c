"""The administrators' operations drain, undrain, reload, cache and trace, and `digest` for trusted peers.

Each is answered when it is done.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uma_core.cache.digest import PAGE, Digesters, Part, held
from uma_core.config.options import ns
from uma_core.errors import ErrorCode, UmaError, unexpected
from uma_core.executor.executor import Executor
from uma_core.executor.waits import predicted_waits_ms
from uma_core.server.io.aside import run_aside
from uma_core.server.io.loop import Loop
from uma_core.server.io.ports import Answer
from uma_core.server.lifecycle.host import Host
from uma_core.server.lifecycle.lifecycle import Lifecycle
from uma_core.server.lifecycle.reload import Reloader
from uma_core.server.memory import budget
from uma_core.trace.recorder import Recorder, encoded
from uma_core.types import Priority

log = logging.getLogger(__name__)

NS_PER_S = 1_000_000_000
TRACE_CAP_BYTES = 48 << 20  # of a reply; clients read up to 64 MiB
STOP_S = 5.0  # to encode what was recorded until the daemon stops; ticks that take longer are left out


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A `trace` that is not answered yet."""

    recorder: Recorder
    form: str
    answer: Answer


class Admin:
    """Runs on the I/O thread."""

    def __init__(self, loop: Loop, host: Host, lifecycle: Lifecycle, reloader: Reloader) -> None:
        self._loop = loop
        self._host = host
        self._lifecycle = lifecycle
        self._reloader = reloader
        self._digesters = Digesters()
        self._recordings: list[Recording] = []
        self._ops: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "drain": self._drain,
            "undrain": self._undrain,
            "reload": self._reload,
            "cache": self._cache,
            "trace": self._trace,
            "digest": self._digest,
        }

    def __call__(self, op: str, args: dict[str, Any], answer: Answer) -> None:
        try:
            self._ops[op](args, answer)
        except UmaError as error:
            answer(error)

    def _drain(self, args: dict[str, Any], answer: Answer) -> None:
        timeout_ms = args.get("timeout_ms")
        answer(self._lifecycle.drain(None if timeout_ms is None else ns(timeout_ms), args["then"]))

    def _undrain(self, args: dict[str, Any], answer: Answer) -> None:
        answer(self._lifecycle.undrain())

    def _reload(self, args: dict[str, Any], answer: Answer) -> None:
        self._reloader.reload(answer, args["check"], args.get("model"))

    def _cache(self, args: dict[str, Any], answer: Answer) -> None:
        if args["action"] == "clear":  # the C library keeps freed memory that lies between blocks in use
            answer = self._giving_back(answer)
        self._host.ask(lambda executor: executor.cache_admin(args), answer)

    def _giving_back(self, answer: Answer) -> Answer:
        def give_back(outcome: dict[str, Any] | bytes | UmaError) -> None:
            run_aside(self._loop, "give-back", budget.give_back, lambda _: answer(outcome))

        return lambda outcome: self._loop.call_soon(lambda: give_back(outcome))

    def _trace(self, args: dict[str, Any], answer: Answer) -> None:
        """Record, wait, answer. Recordings are independent of each other."""
        if self._host.engine is None:
            raise UmaError(ErrorCode.MODEL_NOT_LOADED)
        form = args["format"]
        recorder = Recorder(is_every_tick=form == "chrome")
        recording = Recording(recorder, form, answer)
        self._recordings.append(recording)
        self._host.record(recorder)

        def encode() -> None:
            run_aside(self._loop, "trace", lambda: encoded(recorder, form, TRACE_CAP_BYTES), end)

        def end(outcome: bytes | UmaError) -> None:
            self._recordings.remove(recording)
            answer(outcome)

        self._loop.call_later(int(args["seconds"] * NS_PER_S), lambda: self._host.forget(recorder, encode))

    def close(self) -> None:
        """Answer recordings in progress with what they have, because the daemon stops. Blocks for at most STOP_S."""
        t_end_s = time.monotonic() + STOP_S
        for each in self._recordings:
            each.answer(_rest_of(each, t_end_s))

    def _digest(self, args: dict[str, Any], answer: Answer) -> None:
        """Read the cache between two ticks; hash on a thread of its own."""
        digester = self._digesters.of(args["uid"], bytes.fromhex(args["key"]), args["n_pages"])
        state, found = self._lifecycle.state, list[Part]()

        def look(executor: Executor) -> dict[str, Any]:
            found.extend(held(executor.cache, args["uid"]))
            return {"state": state, **digest_figures(executor, self._loop.clock.now_ns())}

        def looked(figures: dict[str, Any] | bytes | UmaError) -> None:
            if not isinstance(figures, dict):
                answer(figures)
                return
            run_aside(self._loop, "digest", lambda: figures | digester.tell(found, args["since"]), answer)

        self._host.ask(look, lambda outcome: self._loop.call_soon(lambda: looked(outcome)))


def _rest_of(recording: Recording, t_end_s: float) -> bytes | UmaError:
    """Encode what there is. A failure must not keep the daemon from stopping properly."""
    try:
        fields = encoded(recording.recorder, recording.form, TRACE_CAP_BYTES, t_end_s)
    except Exception as error:
        log.exception("trace failed")
        return unexpected(error)
    return fields + b',"is_cut_short":true'


def digest_figures(executor: Executor, now_ns: int) -> dict[str, Any]:
    """Return what a router needs to know of an engine besides its cache. Runs on the compute thread."""
    info, table, facts = executor.engine.info, executor.table, executor.engine.facts()
    templates = "\0".join(text for text in (facts.chat_template, facts.chat_template_tool_use) if text)
    n_queued = {priority.name.lower(): table.n_queued[priority] for priority in Priority}
    return {
        "fingerprint": info.fingerprint,
        "template": hashlib.sha256(templates.encode()).hexdigest()[:16] if templates else "",
        "page": PAGE,
        "wait_ms": predicted_waits_ms(executor, now_ns),
        "queued": n_queued,
        "active": len(table) - sum(n_queued.values()),
        "free_pages": max(0, table.n_cells_total - table.n_cells_reserved) // PAGE,
        "total_pages": table.n_cells_total // PAGE,
        "n_seq_max": info.n_seq_max,
        "max_requests": executor.admission.limits.max_sessions,
        "token_ms": round(executor.cost.prompt_ns(PAGE, 0) / PAGE / 1e6, 6),
    }
