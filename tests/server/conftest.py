"""The I/O side on a real socket. Its compute side echoes the prompt byte by byte."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from typing import Any

import pytest

from tests.frames import WAIT_S, Frames
from uma_core.config.options import Config
from uma_core.engine.api import ModelFacts
from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics.catalog import new_registry
from uma_core.server.io.app import IoApp
from uma_core.server.io.listener import bind_unix
from uma_core.server.io.loop import Loop
from uma_core.server.io.ports import Services
from uma_core.session.events import Accepted, Cancel, Final, HangUp, Hold, Refused, Stale, Submit, Token
from uma_core.types import FinishReason, SamplingParams

TICK_S = 0.0003


class FakeText:
    """One token per byte; the template marks roles with <role>."""

    template: str | None = (
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt "
        "%}<a>{% endif %}"
    )

    def __init__(self) -> None:
        self.known = ModelFacts(None, None, {"bos": (1, "[B]")}, True, False, 0, 0, "fake", "fake")
        self.n_ctx_seq = 4096
        self.fingerprint = "f" * 8
        self.prepared: list[SamplingParams] = []
        self.calls: list[tuple[str, bool]] = []
        self.gates: dict[str, threading.Event] = {}  # by text: tokenizing the text waits for this
        self.started: dict[str, threading.Event] = {}

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        self.calls.append((text, add_special))
        if text in self.gates:
            self.started[text].set()
            assert self.gates[text].wait(WAIT_S)
        return ([1] if add_special else []) + list(text.encode())

    def block(self, text: str) -> tuple[threading.Event, threading.Event]:
        """Make `tokenize(text)` wait. Return the event of its start, and the event that lets it continue."""
        self.started[text], self.gates[text] = threading.Event(), threading.Event()
        return self.started[text], self.gates[text]

    @property
    def n_vocab(self) -> int:
        return 256

    def piece(self, token: int, unparse_special: bool = False) -> bytes:
        return bytes([token]) if token != 1 else b"[B]" * unparse_special

    @property
    def info(self) -> FakeText:
        return self

    def facts(self) -> ModelFacts:
        return self.known

    def prepare(self, params: SamplingParams) -> None:
        self.prepared.append(params)

    def chat_template(self) -> str | None:
        return self.template

    def special(self, name: str) -> str:
        return {"bos": "[B]", "eos": "[E]"}[name]


@dataclasses.dataclass
class FakeSession:
    submit: Submit
    text: str
    n_max: int
    n_done: int = 0
    is_held: bool = False

    @property
    def key(self) -> tuple[int, str]:
        return self.submit.conn_id, self.submit.request.id


class FakeCompute(threading.Thread):
    """In each tick, gives each session one character of its own prompt. Begins again at the prompt's end, until
    max_tokens.
    """

    def __init__(self, wake) -> None:
        super().__init__(daemon=True)
        self.events: deque = deque()
        self.seen: list = []
        self.is_in_call = False
        self.sessions: dict[tuple[int, str], FakeSession] = {}
        self.refuse: UmaError | None = None
        self.stale_for: Any = None  # a text port whose prompts are stale
        self.go = threading.Event()  # cleared: no tick
        self.go.set()
        self._wake = wake
        self._commands: deque = deque()
        self._signal = threading.Event()
        self._is_stopping = False

    def submit(self, command) -> None:
        self._commands.append(command)
        self._signal.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._signal.set()
        self.join(WAIT_S)

    def run(self) -> None:
        while not self._is_stopping:
            self._signal.wait(TICK_S if self.sessions and self.go.is_set() else None)
            self._signal.clear()
            while self._commands:
                self._obey(self._commands.popleft())
            if self.go.is_set():
                for session in list(self.sessions.values()):
                    if not session.is_held:
                        self._step(session)
            if self.events:
                self._wake()
        for key in list(self.sessions):
            self._end(key, FinishReason.DRAINING)
        self._wake()

    def _obey(self, command) -> None:
        self.seen.append(command)
        if isinstance(command, Submit):
            self._open(command)
        elif isinstance(command, Cancel):
            self._end((command.conn_id, command.request_id), FinishReason.CANCELLED)
        elif isinstance(command, HangUp):
            self.sessions = {key: s for key, s in self.sessions.items() if key[0] != command.conn_id}
        elif isinstance(command, Hold):
            for key, session in self.sessions.items():
                session.is_held = command.is_held if key[0] == command.conn_id else session.is_held

    def _open(self, command: Submit) -> None:
        key = (command.conn_id, command.request.id)
        if self.refuse is not None:
            self.events.append(Refused(*key, self.refuse))
        elif self.stale_for is not None and command.text is self.stale_for:
            self.events.append(Stale(*key))
        else:
            text = bytes(map(int, command.tokens[int(command.tokens[0] == 1) :])).decode()
            self.sessions[key] = FakeSession(command, text, command.request.max_tokens or len(text))
            self.events.append(Accepted(*key, 0))

    def _step(self, session: FakeSession) -> None:
        text = session.text[session.n_done % len(session.text)]
        session.n_done += 1
        if session.submit.request.stream:
            self.events.append(Token(*session.key, text, ord(text)))
        if session.n_done >= session.n_max:
            self._end(session.key, FinishReason.LENGTH)

    def _end(self, key: tuple[int, str], reason: FinishReason) -> None:
        session = self.sessions.pop(key, None)
        if session is None:
            return
        repeated = session.text * (session.n_done // len(session.text) + 1)
        text = "" if session.submit.request.stream else repeated[: session.n_done]
        usage = {"prompt_tokens": len(session.submit.tokens), "cached_tokens": 0, "completion_tokens": session.n_done}
        self.events.append(Final(*key, reason, text, usage, {"total_ms": 1.0}, None))


class WireClient(Frames):
    """A blocking client that uses only struct and json."""

    def until_final(self, *ids: Any) -> list[dict[str, Any]]:
        """Read until each id has its `eos` or `error`."""
        events, open_ids = [], set(ids)
        while open_ids:
            events.append(self.event())
            if events[-1]["event"] in ("eos", "error"):
                open_ids.discard(events[-1]["id"])
        return events

    def ask(self, **request: Any) -> dict[str, Any]:
        self.send(**request)
        return self.event()

    def rest(self) -> bytes:
        """Return everything until the server closes the connection."""
        data = b""
        while chunk := self.sock.recv(1 << 16):
            data += chunk
        return data

    def line(self) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            data += self.exactly(1)
        return data


def text_of(events: list[dict[str, Any]], id: Any) -> str:
    return "".join(event["text"] for event in events if event["event"] == "token" and event["id"] == id)


class Harness:
    """An app on a socket, with its loop in a thread."""

    def __init__(self, path: str, **sections: dict[str, Any]) -> None:
        self.path = path
        self.config = configured(**sections)
        self.text = FakeText()
        self.model: FakeText | None = self.text
        self.closed: UmaError | None = None
        self.registry = new_registry()
        self.loop = Loop()
        self.compute = FakeCompute(self.loop.wake)
        self.admin_calls: list[tuple[str, dict[str, Any], Any]] = []
        self.app = IoApp(self.loop, self.compute, self._services(), self.registry)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _services(self) -> Services:
        return Services(
            config=lambda: self.config,
            text=lambda: self.model,
            gate=lambda: self.closed,
            status=lambda: {"state": "ready"},
            health=lambda: {"state": "ready", "is_ready": True},
            metrics=lambda: {"answer": 42},
            prometheus=lambda: "uma_answer 42\n",
            sessions=lambda: [],
            props=lambda is_trusted: {"is_trusted": is_trusted},
            admin=lambda op, args, answer: self.admin_calls.append((op, args, answer)),
        )

    def _run(self) -> None:
        self.loop.run()
        self.compute.stop()
        self.app.close()
        self.loop.close()

    def start(self) -> Harness:
        self.app.start([bind_unix(self.path, 64)])
        self.compute.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        self.loop.stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def connect(self) -> WireClient:
        return WireClient(self.path)

    def on_loop(self, function):
        """Run `function` on the loop's thread and return its result."""
        done, result = threading.Event(), []

        def call() -> None:
            result.append(function())
            done.set()

        self.loop.call_soon(call)
        assert done.wait(WAIT_S)
        return result[0]

    def eventually(self, condition) -> None:
        """Wait until `condition()`, evaluated on the loop's thread, holds."""
        deadline = time.monotonic() + WAIT_S
        while not self.on_loop(condition):
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.002)

    def value(self, metric, **labels: str) -> float:
        return self.registry.snapshot().value(metric, *labels.values())


def configured(**sections: dict[str, Any]) -> Config:
    config = Config()
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **values) for name, values in sections.items()}
    )


@pytest.fixture
def make_config():
    return configured


@pytest.fixture
def fake_text():
    return FakeText()


@pytest.fixture
def make_client():
    return WireClient


@pytest.fixture
def texts():
    return text_of


@pytest.fixture
def socket_path(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("s") / "uma.sock")


@pytest.fixture
def serve(socket_path):
    """Start an app with these configuration sections. At the end its state must be consistent."""
    running = []

    def start(**sections: dict[str, Any]) -> Harness:
        running.append(Harness(socket_path, **sections).start())
        return running[-1]

    yield start
    for harness in running:
        harness.stop()
        assert harness.app.ledger.n_violations == 0
        assert len(harness.app.ledger) == 0
        assert harness.app.clients == {}
        assert harness.app.intake.n_jobs == 0


@pytest.fixture
def server(serve) -> Harness:
    return serve()


@pytest.fixture
def overloaded() -> UmaError:
    return UmaError(ErrorCode.OVERLOADED, "busy", retry_after_ms=5)
