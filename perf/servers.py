"""The servers that are compared: how each is started, recognised as ready, watched and stopped.

Rules: a server is ended by the id of the process that we started, and then waited for; its log is kept beside the
results.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perf.driver import Endpoint, frames_endpoint, sse_endpoint
from perf.proc import Usage, usage
from perf.results import file_name
from perf.wire import gateway_request, openai_request

_STOP_S = 10.0
_HARNESS_VARIABLES = frozenset({"UMA_PEER_DIR", "UMA_PERF_COMMIT", "UMA_PERF_PYTHON", "UMA_PERF_EXAMPLE_SERVER"})
ALLOCATOR_WARNING = "failed to find a memory slot"


class ServerError(Exception):
    """A server did not start, or ended unexpectedly; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options with which every server of a run is started."""

    model: Path
    threads: int
    n_seq: int
    n_ctx_seq: int
    n_gpu_layers: int = 0
    has_disk: bool = False  # a cache directory of its own, if it can have one
    start_timeout_s: float = 180.0

    @property
    def n_ctx(self) -> int:
        return self.n_seq * self.n_ctx_seq


class Server(ABC):
    """One server process. `start` returns when it answers."""

    def __init__(self, label: str, settings: Settings, folder: Path) -> None:
        self.label = label  # as the user wrote it: name[:variant]
        self.settings = settings
        self.log_path = folder / f"{file_name(label)}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._was_started = False
        self.cwd: Path | None = None

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def endpoint(self) -> Endpoint: ...

    @abstractmethod
    def is_ready(self) -> bool: ...

    def environ(self) -> dict[str, str]:
        """Return our environment, without the variables for this harness and the build."""
        return {name: value for name, value in os.environ.items() if name not in _HARNESS_VARIABLES}

    def counters(self) -> dict[str, float]:
        """Return figures that the server keeps about itself; empty if it keeps none."""
        return {}

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.label} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server. Blocks until it answers. Raises: ServerError."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = self.log_path.open("ab" if self._was_started else "wb")  # a restart appends to its log
        self._was_started = True
        self._process = subprocess.Popen(
            self.command(),
            env=self.environ(),
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + self.settings.start_timeout_s
        while not self.is_ready():
            if self._process.poll() is not None:
                code = self._process.returncode
                self.stop()
                raise ServerError(f"{self.label} ended with status {code} at start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise ServerError(
                    f"{self.label} did not answer within {self.settings.start_timeout_s:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """End the process and wait for it. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            for sign in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # politely, at once, by force
                process.send_signal(sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_S)
                    break
        if self._log is not None:
            self._log.close()
            self._log = None

    def restart(self) -> None:
        """End the server and start it again, with the data that it keeps on disk. Raises: ServerError."""
        self.stop()
        self.start()

    def usage(self) -> Usage:
        """CPU and memory of the process. Raises: ServerError when it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"{self.label} ended unexpectedly:\n{self.log_tail()}")
        return usage(self._process.pid)

    def log_tail(self, n_lines: int = 15) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-n_lines:])

    def n_allocator_warnings(self) -> int:
        """Return how often it found no KV cells for its work. llama.cpp's servers report that in their log."""
        return self.log_path.read_text(errors="replace").count(ALLOCATOR_WARNING) if self.log_path.exists() else 0


@contextlib.contextmanager
def running(servers: list[Server]) -> Iterator[list[Server]]:
    """Start all servers, and stop all of them in any case: a request to end this process ends the servers too."""
    with asked_to_end(), contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)  # of all, even if an impatient second Ctrl-C interrupts one of these calls
            server.start()
        yield servers


@contextlib.contextmanager
def asked_to_end() -> Iterator[None]:
    """Turn SIGTERM, and the SIGHUP of a terminal that is closed, into an exception inside, so that the processes that
    this one started can be ended first. A signal that is ignored, as under nohup, stays ignored.
    """
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class UmaServer(Server):
    """Our daemon. Variants: `default`, `no-STAGE` (that policy stage left out), `without-MECHANISM` (perf/ablation.py),
    `guard-off`, `at=FOLDER` (another checkout, built), or `OPTION=VALUE[,...]`.
    """

    def __init__(self, label: str, settings: Settings, folder: Path) -> None:
        folder = folder.resolve()  # the daemon may run elsewhere
        super().__init__(label, settings, folder)
        self._n_refused = 0  # by processes that have ended
        self._variant = label.partition(":")[2]
        at = [part[3:] for part in self._variant.split(",") if part.startswith("at=")]
        self.cwd = Path(at[0]).resolve() if at else None  # where Python looks for the package first
        self.socket_path = folder / f"{file_name(label)}.sock"
        if len(os.fsencode(self.socket_path)) > 100:  # the system's limit on such paths is about 104 bytes
            self.socket_path = (
                Path(os.environ.get("TMPDIR") or "/tmp") / f"uma-perf-{os.getpid()}-{abs(hash(label)) % 10**6}.sock"
            )
        self._cache_dir = folder / f"{file_name(label)}-kv"

    def command(self) -> list[str]:
        s = self.settings
        off = [part[8:] for part in self._variant.split(",") if part.startswith("without-")]
        program = ["perf.ablation", *off] if off else ["uma_core"]
        command = [sys.executable, "-m", *program, "daemon", "--model", str(s.model), "--socket", str(self.socket_path)]
        command += ["--threads", str(s.threads), "--n-ctx", str(s.n_ctx), "--parallel", str(s.n_seq)]
        command += ["--n-gpu-layers", str(s.n_gpu_layers)] if s.n_gpu_layers else []
        command += ["--cache-dir", str(self._cache_dir)] if s.has_disk else []
        return command + self._variant_flags()

    def start(self) -> None:
        if not self._was_started:  # files of an earlier run must not count for this one
            shutil.rmtree(self._cache_dir, ignore_errors=True)
        super().start()

    def stop(self) -> None:
        self._n_refused += self._n_refused_now()  # the next process counts from 0
        super().stop()

    def n_allocator_warnings(self) -> int:
        """Return the daemon's own count, which both engines feed; its log has only llama.cpp's messages."""
        return self._n_refused + self._n_refused_now()

    def _n_refused_now(self) -> int:
        return int(self.counters().get("alloc_warnings_total", 0))

    def _variant_flags(self) -> list[str]:
        mine = ("without-", "at=")
        parts = [p for p in self._variant.split(",") if p not in ("", "default") and not p.startswith(mine)]
        return [flag for part in parts for flag in _flag(part)]

    def endpoint(self) -> Endpoint:
        return frames_endpoint(str(self.socket_path))

    def is_ready(self) -> bool:
        """Whether the model is loaded: the daemon answers even while it loads."""
        try:
            return self._line("/status").get("state") == "ready"
        except (OSError, ValueError):
            return False

    def counters(self) -> dict[str, float]:
        try:
            return flatten(self._line("/metrics"))
        except (OSError, ValueError):
            return {}

    def _line(self, verb: str) -> dict[str, object]:
        """Send one line of text, and return one line of JSON, as in the daemon's text mode."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5.0)
            sock.connect(str(self.socket_path))
            sock.sendall(verb.encode() + b"\n")
            reply = b""
            while part := sock.recv(1 << 16):
                reply += part
        answer = json.loads(reply)
        return answer if isinstance(answer, dict) else {}


class UmaHttpServer(UmaServer):
    """Our daemon behind its HTTP gateway; CPU and memory are those of both processes.

    Variants: those of the daemon.
    """

    def __init__(self, label: str, settings: Settings, folder: Path) -> None:
        super().__init__(label, settings, folder)
        self.port = free_port()
        self._gateway: subprocess.Popen[bytes] | None = None
        self._gateway_log: IO[bytes] | None = None

    def start(self) -> None:
        super().start()  # below: if the gateway does not answer, everything is stopped
        deadline = time.monotonic() + self.settings.start_timeout_s
        while not is_answered(f"http://127.0.0.1:{self.port}/health"):
            if self._gateway is None or self._gateway.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"{self.label}: the gateway does not answer; {self.log_path}.gateway says why")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        if not super().is_ready():
            return False
        if self._gateway is None:
            self._gateway_log = Path(f"{self.log_path}.gateway").open("ab")  # noqa: SIM115 # closed in `stop`
            command = [
                sys.executable,
                "-m",
                "uma_gateway",
                "--socket",
                str(self.socket_path),
                "--port",
                str(self.port),
                "--no-log-access",
            ]
            self._gateway = subprocess.Popen(
                command,
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._gateway_log,
                start_new_session=True,
            )
        return True

    def stop(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.kill()  # its answers are no longer needed
            gateway.wait()
        if self._gateway_log is not None:
            self._gateway_log.close()
            self._gateway_log = None
        super().stop()

    def usage(self) -> Usage:
        daemon, gateway = super().usage(), self.gateway_usage()
        return Usage(daemon.cpu_s + gateway.cpu_s, daemon.rss_mb + gateway.rss_mb)

    def gateway_usage(self) -> Usage:
        """Return the usage of the gateway alone. Raises: ServerError if it has ended."""
        if self._gateway is None or self._gateway.poll() is not None:
            raise ServerError(f"{self.label}: the gateway ended unexpectedly; {self.log_path}.gateway says why")
        return usage(self._gateway.pid)

    def endpoint(self) -> Endpoint:
        return sse_endpoint("127.0.0.1", self.port, gateway_request)


def flatten(document: dict[str, object], prefix: str = "") -> dict[str, float]:
    """Return the numbers of nested objects under dotted names; a distribution's `sum` is its count times its mean."""
    out: dict[str, float] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            out |= flatten(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[prefix + name] = float(value)
    if isinstance(document.get("count"), int) and f"{prefix}mean" in out:
        out[f"{prefix}sum"] = out[f"{prefix}count"] * out[f"{prefix}mean"]
    return out


def _stages_without(stage: str) -> list[str]:
    from uma_core.policy.config import DEFAULT_STAGES

    if stage not in DEFAULT_STAGES:
        raise ServerError(f"no stage {stage!r}; choose from {', '.join(DEFAULT_STAGES)}")
    return [name for name in DEFAULT_STAGES if name != stage]


def _flag(part: str) -> list[str]:
    if part == "guard-off":
        part = "no-latency_guard"
    if part.startswith("no-"):
        return ["--stages", ",".join(_stages_without(part[3:]))]
    name, equals, value = part.partition("=")
    if not equals:
        raise ServerError(f"variant {part!r}: expected OPTION=VALUE")
    return ["--" + name.replace("_", "-"), value.replace("+", ",")]


def is_answered(url: str) -> bool:
    """Whether the URL is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


class HttpServer(Server):
    """A server on a loopback port that answers GET `ready_path` with 200 once it serves."""

    ready_path = "/health"

    def __init__(self, label: str, settings: Settings, folder: Path) -> None:
        super().__init__(label, settings, folder)
        self.port = free_port()

    def is_ready(self) -> bool:
        return is_answered(f"http://127.0.0.1:{self.port}{self.ready_path}")


_LLAMA_VARIANTS = {
    "default": [],
    "b64": ["-b", "64", "-ub", "64"],
    "kvu": ["-kvu"],
    "ngram-simple": ["--spec-type", "ngram-simple"],
    "ngram-mod": ["--spec-type", "ngram-mod"],
}


class LlamaServer(HttpServer):
    """llama.cpp's own server, of the source that UMA Serve is built from.

    Variants: `_LLAMA_VARIANTS`, and `draft=PATH`, the GGUF of a draft model.
    """

    def __init__(self, label: str, settings: Settings, folder: Path, binary: Path) -> None:
        super().__init__(label, settings, folder)
        self._binary = binary
        variant = label.partition(":")[2] or "default"
        draft = variant.removeprefix("draft=")
        if draft != variant:
            self._flags = ["--spec-type", "draft-simple", "--model-draft", draft]
        elif variant in _LLAMA_VARIANTS:
            self._flags = _LLAMA_VARIANTS[variant]
        else:
            names = ", ".join(_LLAMA_VARIANTS)
            raise ServerError(f"llama-server has no variant {variant!r}; choose from {names}, draft=PATH")

    def command(self) -> list[str]:
        s = self.settings
        command = [str(self._binary), "-m", str(s.model), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["-t", str(s.threads), "-tb", str(s.threads), "-c", str(s.n_ctx), "-np", str(s.n_seq)]
        command += ["-ngl", str(999 if s.n_gpu_layers < 0 else s.n_gpu_layers)] if s.n_gpu_layers else []
        return command + self._flags

    def endpoint(self) -> Endpoint:
        return sse_endpoint("127.0.0.1", self.port)


class LlamaCppPythonServer(HttpServer):
    """The example server in llama-cpp-python's source distribution, run by an interpreter that has its packages."""

    ready_path = "/v1/models"

    def __init__(self, label: str, settings: Settings, folder: Path, script: Path) -> None:
        super().__init__(label, settings, folder)
        self._script = script
        self._config = folder / f"{file_name(label)}.json"

    def command(self) -> list[str]:
        s = self.settings
        model = {
            "path": str(s.model),
            "alias": "perf",
            "n_ctx": s.n_ctx,
            "n_seq_max": s.n_seq,
            "n_batch": 512,
            "n_ubatch": 512,
            "threads": s.threads,
            "threads_batch": s.threads,
            "n_gpu_layers": s.n_gpu_layers,
            "max_output_tokens": s.n_ctx_seq,
        }
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(json.dumps({"server": {"host": "127.0.0.1", "port": self.port}, "model": model}))
        python = os.environ.get("UMA_PERF_PYTHON") or sys.executable
        return [python, str(self._script), "-C", str(self._config)]

    def endpoint(self) -> Endpoint:
        return sse_endpoint("127.0.0.1", self.port, openai_request)
