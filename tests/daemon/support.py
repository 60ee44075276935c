"""A daemon in a separate process, and its clients. Tests wait for conditions and never assert wall-clock time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.forks import Forked, server_of
from tests.frames import WAIT_S, Event, Frames
from tests.trained import DRAFT as DRAFT
from tests.trained import MOE as MOE
from tests.trained import TINY as TINY

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--threads", "1", "--n-ctx", "2048", "--n-ubatch", "64", "--calibrate", "off")  # quick to load, light to run

LOOK_S = 0.04  # between two looks at a daemon that starts: each look costs 1 to 2 ms of a core (AMD EPYC)

# modules that daemons import at their start
IMPORTED = (
    "uma_core.server.lifecycle.daemon",
    "uma_core.engine.fake.open",
    "uma_core.engine.graph.engine",
    "uma_core.engine.llama.engine",
    "uma_core.engine.llama.encoder",
    "uma_core.engine.select.compare",
    "uma_core.server.operations.helper_child",
    "tests.daemon.helper",
    "numpy.random",
    "click",
)
FORKED_HELPER = "tests.daemon.helper"  # forks the process that reads large requests
OF_GATEWAYS = ("uma_gateway.cli", "uma_gateway.server")  # modules that gateways import at their start


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
        if sys.platform != "linux":
            return True
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the two
        return False


def eventually(condition: Callable[[], Any], what: str = "it never came true", every_s: float = 0.01) -> Any:
    """Wait until the condition holds; return its value. `every_s`: the pause between two looks."""
    deadline = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(every_s)
    return value


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Wire(Frames):
    """A blocking client that uses only struct and json."""

    def ask(self, type: str, **fields: Any) -> Event:
        """Send an operation; return its reply or its error."""
        self.send(type=type, id=f"ask {type}", **fields)
        while (event := self.event()).get("id") not in (f"ask {type}", None):
            pass
        return event

    def first_token(self, id: Any) -> Event:
        while (event := self.event()).get("id") != id:
            pass
        assert event["event"] == "token", event
        return event

    def until_final(self, id: Any) -> list[Event]:
        events = [self.event()]
        while events[-1].get("id") != id or events[-1]["event"] not in ("eos", "error"):
            events.append(self.event())
        return [event for event in events if event.get("id") == id]

    def is_closed_by_peer(self) -> bool:
        """Read until the daemon closes the connection. False: it sent a frame instead."""
        try:
            self.event()
        except (EOFError, ConnectionResetError):
            return True
        return False


def is_ready(path: Path) -> bool:
    """Whether a daemon with a loaded model serves this socket."""
    try:
        with Wire(str(path)) as wire:
            return wire.ask("health")["state"] == "ready"
    except (OSError, EOFError):
        return False


def text_of(events: list[Event]) -> str:
    return "".join(event["text"] for event in events if event["event"] == "token")


class Stream(threading.Thread):
    """One streaming request on a connection of its own, read to its end in the background."""

    def __init__(self, path: str, prompt: str = "The shell is", **fields: Any) -> None:
        super().__init__(daemon=True)
        self.events: list[Event] = []
        self.failure: BaseException | None = None
        self.started = threading.Event()
        self._wire = Wire(path)
        self._wire.send(id="s", prompt=prompt, **{"ignore_eos": True, **fields})
        self.start()

    def run(self) -> None:
        try:
            while not self.events or self.events[-1]["event"] not in ("eos", "error"):
                self.events.append(self._wire.event())
                self.started.set()
        except BaseException as failure:
            self.failure = failure
        self.started.set()

    def begun(self) -> Stream:
        """Wait for the stream's first event."""
        assert self.started.wait(WAIT_S)
        return self

    @property
    def has_ended(self) -> bool:
        return bool(self.events) and self.events[-1]["event"] in ("eos", "error")

    def cancel(self) -> None:
        self._wire.send(type="cancel", id="s")

    def end(self) -> Event:
        """Return the stream's final event."""
        self.join(WAIT_S)
        assert not self.is_alive(), "the stream did not end"
        self._wire.sock.close()
        if self.failure is not None:
            raise self.failure
        return self.events[-1]

    @property
    def text(self) -> str:
        return text_of(self.events)


class Process:
    """A process of the product, and the file that its log is written to."""

    process: Forked
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def logs(self, text: str) -> None:
        """Wait until the log has this text: logging does not wait for the file."""
        eventually(lambda: text in self.log, f"{text!r} is not in the log: {self.log[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return the exit status."""
        return self.process.wait(WAIT_S)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# answers of the simulated engine end only when they are stopped or reach max_tokens
ENDLESS: dict[str, Any] = {"environ": {"TEST_LEVERS": json.dumps({"eog_every": 0})}}


class DaemonProcess(Process):
    """`uma-core daemon` with a socket in `folder`. `forks_gateway`: the gateway that it starts costs no import."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        has_levers: bool = False,
        path: str = "",
        forks_gateway: bool = False,
        **spawn: Any,
    ) -> None:
        self.path = path or str(folder / "uma.sock")
        self.log_path = folder / f"log{len(list(folder.glob('log*')))}"
        module = "tests.daemon.launcher" if has_levers else "uma_core"
        environ = {**os.environ, "UMA_BUILD_CACHE": str(folder / "cache"), **spawn.pop("environ", {})}
        command = [module, "daemon", "--socket", self.path, *args]
        if forks_gateway:
            command.insert(0, "tests.daemon.with_forked_gateway")
            spawn["pass_fds"] = [server_of(*OF_GATEWAYS).fileno()]
        with self.log_path.open("wb") as log:
            self.process: Forked = server_of(*IMPORTED).start(
                command[0],
                command[1:],
                environ=environ,
                has_pipes=has_levers,
                stderr=spawn.pop("log", log.fileno()),
                children=spawn.pop("children", FORKED_HELPER),
                **spawn,
            )

    def connect(self) -> Wire:
        return Wire(self.path)

    def pull(self, **levers: Any) -> dict[str, int]:
        """Set levers; return when they are in force."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(levers).encode() + b"\n")
        self.process.stdin.flush()
        counts: dict[str, int] = json.loads(self.process.stdout.readline())
        return counts

    def ask(self, type: str, **fields: Any) -> Event:
        with self.connect() as wire:
            return wire.ask(type, **fields)

    def status(self) -> Event:
        return self.ask("status")

    def state(self) -> str:
        try:
            return str(self.ask("health")["state"])
        except (OSError, EOFError):
            return "gone" if self.process.poll() is not None else "not yet"

    def reach(self, state: str) -> DaemonProcess:
        """Wait until the daemon reaches a state."""
        eventually(
            lambda: self.state() == state or self.process.poll() is not None, f"never {state}: {self.log}", LOOK_S
        )
        assert self.state() == state, f"ended with {self.process.returncode}: {self.log}"
        return self

    def stream(self, prompt: str = "The shell is", **fields: Any) -> Stream:
        return Stream(self.path, prompt, **fields)

    def generate(self, prompt: str, **fields: Any) -> list[Event]:
        with self.connect() as wire:
            wire.send(id="g", prompt=prompt, **{"ignore_eos": True, **fields})
            return wire.until_final("g")

    def chat(self, messages: list[dict[str, str]], **fields: Any) -> list[Event]:
        with self.connect() as wire:
            wire.send(id="c", messages=messages, **{"ignore_eos": True, **fields})
            return wire.until_final("c")

    def eventually_idle(self) -> Event:
        """Wait until no request is left; return the status."""

        def idle() -> Event | None:
            status = self.status()
            counts = [n for phase, n in status["sessions"].items() if phase != "connections"]
            return status if not any(counts) and not status["retiring"] else None

        return eventually(idle, "requests are left over")  # type: ignore[no-any-return]

    def stop(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):  # not a drain; two SIGTERMs could arrive as one
            self.signal(number)
        status = self.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return status


@contextlib.contextmanager
def running(folder: Path, *args: str, state: str = "ready", **spawn: Any) -> Iterator[DaemonProcess]:
    """Start a daemon and wait until it is up. It is killed at the end if the test left it running."""
    daemon = DaemonProcess(folder, *args, **spawn)
    try:
        yield daemon.reach(state)
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.stop()
