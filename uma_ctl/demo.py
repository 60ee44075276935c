"""`python -m uma_ctl.demo`: the daemon with its embedded model, three clients at once, a chat over HTTP, status, and a
clean stop.

All files are in a temporary folder. It takes about five minutes at most.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from uma_ctl import generation, output, render, units
from uma_ctl.client import Client, Event
from uma_ctl.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE, EXIT_USAGE, CtlError

START_S = 120.0  # loading, calibration and warm-up on a slow and busy machine
ANSWER_S = 120.0  # seconds on a quiet machine become a minute on a crowded one
STOP_S = 20.0
LOG_LINES = 20  # last lines of the daemon's log that are shown after a failure
POLL_S = 0.1
LOOPBACK = "127.0.0.1"
QUESTION = "What is a socket?"
MISSED = """\
A gap is the time between two tokens of a stream. Its limit is a multiple of the gap that the streams have without other
work. Fewer gaps than promised stayed within it here. That is usual if other programs use the same cores, or if a
virtual machine's host takes them away: steps then vary by more than the limit allows."""
LINE_LENGTH = 48  # characters of a client's text that are shown at once

BEGINNINGS = (
    ("ann", "36", "The shell is a program that"),
    ("bob", "33", "The Linux kernel is"),
    ("cat", "35", "To search for text in files,"),
)
# ignore_eos: the small model ends some texts early, and streams that have ended do not interleave
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 240, "ignore_eos": True, "priority": "interactive"}


class DemoFailed(Exception):
    """A step failed; the message says why."""


@dataclass
class Voice:
    """One client, which asks for the continuation of a text and shows it line by line on the stage."""

    name: str
    colour: str
    beginning: str
    stage: Stage
    pending: str = field(init=False)
    summary: str = ""
    failure: str = ""

    def __post_init__(self) -> None:
        self.pending = self.beginning

    def run(self, socket_path: str) -> None:
        """Ask, and show the answer. A failure is kept in `failure`, because nobody sees an exception in a thread."""
        request = {"prompt": self.beginning, "seed": 7, "timeout_ms": int(ANSWER_S * 1000), **SAMPLING}
        try:
            with Client(socket_path) as client:
                answer = generation.run(client, request, on_event=self.on_event)
            self.say(is_last=True)
            self.summary = render.summary(answer.usage, answer.timing, answer.reason)
            if answer.reason not in generation.COMPLETE:
                self.failure = f"ended with {answer.reason}"
        except (CtlError, output.ReaderGone) as error:
            self.failure = str(error) or "standard output has no reader"

    def on_event(self, event: Event) -> None:
        if event.get("event") == "token":
            self.stage.note_token(self.name)
            self.pending += event["text"]
            if len(self.pending) >= LINE_LENGTH:
                self.say()

    def say(self, is_last: bool = False) -> None:
        """Show whole words; the rest waits for the next line."""
        end = len(self.pending) if is_last else self.pending.rfind(" ") + 1 or len(self.pending)
        spoken, self.pending = " ".join(self.pending[:end].split()), self.pending[end:]
        if spoken:
            self.stage.show(self, spoken)


@dataclass
class Stage:
    """Shows the clients' texts, one line at a time, and counts how often the speaker changes."""

    is_coloured: bool = field(default_factory=lambda: sys.stdout.isatty())
    n_turns: int = 0
    _speaker: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_token(self, name: str) -> None:
        with self._lock:
            self.n_turns += name != self._speaker
            self._speaker = name

    def show(self, voice: Voice, text: str) -> None:
        line = f"{voice.name} | {units.printable(text)}"
        with self._lock:
            output.line(f"\033[{voice.colour}m{line}\033[0m" if self.is_coloured else line)


def main() -> int:
    """Run the demonstration. The exit status is 0 when every step worked."""
    output.tolerate_any_text()
    with tempfile.TemporaryDirectory(prefix="uma-demo-") as folder:
        log_path = Path(folder) / "daemon.log"
        socket_path = str(Path(folder) / "uma.sock")
        port = _free_port() if importlib.util.find_spec("uvicorn") else 0
        with log_path.open("wb") as log:
            command = [sys.executable, "-m", "uma_core", "daemon", "--socket", socket_path, "--http", str(port)]
            daemon = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            _play(daemon, socket_path, port)
            return EXIT_OK
        except (DemoFailed, CtlError) as error:
            output.note(f"the demonstration failed: {error}\n\nthe daemon's log:\n{_tail(log_path)}")
            return EXIT_USAGE
        except output.ReaderGone:
            output.forget_stdout()
            return EXIT_PIPE
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def _ask_over_http(port: int) -> None:
    """Send one chat through the gateway, as curl or OpenAI's client would. A port of 0 skips it. Raises: DemoFailed."""
    if not port:
        output.line("skipped: it needs the extra [http]\n")
        return
    question = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 48, "temperature": 0.7, "seed": 7}
    output.line(f"POST http://{LOOPBACK}:{port}/v1/chat/completions  {QUESTION}")
    deadline = time.monotonic() + START_S
    while True:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(question))
            answer = connection.getresponse()
            text = answer.read()
            break
        except OSError as error:  # the gateway is still starting
            if time.monotonic() >= deadline:
                raise DemoFailed(f"the gateway does not answer: {error}") from None
            time.sleep(POLL_S)
        finally:
            connection.close()
    if answer.status != 200:
        raise DemoFailed(f"the gateway answered {answer.status}: {text.decode('utf-8', 'replace')}")
    said = json.loads(text)["choices"][0]["message"]["content"]
    output.line(f"{answer.status} | {units.printable(' '.join(said.split()))}\n")


def _play(daemon: subprocess.Popen[bytes], socket_path: str, port: int) -> None:
    _title("uma-core daemon, on the embedded demonstration model")
    _wait_ready(daemon, socket_path)
    output.line("ready\n")
    _title("three clients at once, one stream each")
    _talk(socket_path)
    _title("a chat over HTTP")
    _ask_over_http(port)
    _title("uma-ctl status")
    with Client(socket_path) as client:
        status = client.call("status")
    output.line(render.status(status) + "\n")
    if render.sub(status, "latency").get("slo_verdict") == "missed":
        output.line(MISSED + "\n")
    _title("SIGTERM")
    _stop(daemon)


def _title(text: str) -> None:
    output.line(f"== {text}")


def _wait_ready(daemon: subprocess.Popen[bytes], socket_path: str) -> None:
    deadline = time.monotonic() + START_S
    state = ""
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            raise DemoFailed(f"the daemon ended with status {daemon.returncode} while it started")
        try:
            with Client(socket_path) as client:
                state = str(client.call("status").get("state"))
        except CtlError:
            state = "not listening"
        if state == "ready":
            return
        time.sleep(POLL_S)
    raise DemoFailed(f"the daemon was not ready after {START_S:.0f} s: {state}")


def _talk(socket_path: str) -> None:
    """Let all clients ask at once. Raises: DemoFailed if one failed, or if the streams did not interleave."""
    stage = Stage()
    voices = [Voice(*beginning, stage) for beginning in BEGINNINGS]
    threads = [threading.Thread(target=voice.run, args=(socket_path,), daemon=True) for voice in voices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ANSWER_S + generation.GRACE_S + 5)
    output.line("")
    for voice, thread in zip(voices, threads, strict=True):
        if voice.failure or thread.is_alive():
            raise DemoFailed(f"{voice.name}: {voice.failure or 'its stream did not end'}")
        output.line(f"{voice.name}: {voice.summary}")
    output.line(f"the speaker changed {stage.n_turns} times\n")
    if stage.n_turns <= len(voices):
        raise DemoFailed("the streams did not interleave")


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        status = daemon.wait(STOP_S)
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"the daemon did not stop within {STOP_S:.0f} s") from None
    if status:
        raise DemoFailed(f"the daemon ended with status {status}")
    output.line("stopped cleanly")


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])


if __name__ == "__main__":
    sys.exit(main())
