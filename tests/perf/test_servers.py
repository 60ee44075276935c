"""Servers: their commands, and how they are started, watched and stopped."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perf.peers import make_server
from perf.proc import usage
from perf.servers import LlamaServer, Server, ServerError, Settings, UmaServer, flatten, running
from tests.perf.fake_server import uds_server


def settings(tmp_path: Path, layers: int = 0) -> Settings:
    return Settings(tmp_path / "m.gguf", 2, 4, 4096, layers, start_timeout_s=5.0)


def test_both_servers_get_the_same_settings(tmp_path: Path) -> None:
    ours = UmaServer("uma", settings(tmp_path), tmp_path).command()
    theirs = LlamaServer("llama-server:b64", settings(tmp_path), tmp_path, Path("llama-server")).command()

    def value(command: list[str], flag: str) -> str:
        return command[command.index(flag) + 1]

    assert value(ours, "--n-ctx") == value(theirs, "-c") == "16384"
    assert value(ours, "--parallel") == value(theirs, "-np") == "4"
    assert value(ours, "--threads") == value(theirs, "-t") == value(theirs, "-tb") == "2"
    assert theirs[-4:] == ["-b", "64", "-ub", "64"]
    assert "-ngl" not in theirs


def test_all_layers_on_the_gpu_for_both(tmp_path: Path) -> None:
    assert UmaServer("uma", settings(tmp_path, -1), tmp_path).command()[-2:] == ["--n-gpu-layers", "-1"]
    assert LlamaServer("llama-server", settings(tmp_path, -1), tmp_path, Path("x")).command()[-2:] == ["-ngl", "999"]


@pytest.mark.parametrize(
    ("variant", "absent", "flags"),
    [("guard-off", "latency_guard", 2), ("no-bmt_guard", "bmt_guard", 2), ("default", "", 0)],
)
def test_variants_of_ours_leave_stages_out(tmp_path: Path, variant: str, absent: str, flags: int) -> None:
    plain = UmaServer("uma", settings(tmp_path), tmp_path).command()
    command = UmaServer(f"uma:{variant}", settings(tmp_path), tmp_path).command()
    assert len(command) == len(plain) + flags
    if flags:
        assert command[-2] == "--stages" and absent not in command[-1].split(",") and "decode_first" in command[-1]


def test_variant_sets_options(tmp_path: Path) -> None:
    command = UmaServer("uma:bmt_budget=auto,guard_cap=1.5", settings(tmp_path), tmp_path).command()
    assert command[-4:] == ["--bmt-budget", "auto", "--guard-cap", "1.5"]


def test_another_checkout_is_a_variant_with_options_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    server = UmaServer(f"uma:at={tmp_path}/other,guard_cap=1.5", settings(tmp_path), folder)
    plain = UmaServer("uma:guard_cap=1.5", settings(tmp_path), folder)
    command = server.command()
    assert len(command) == len(plain.command()) and command[-2:] == ["--guard-cap", "1.5"]
    assert server.cwd == tmp_path / "other" and plain.cwd is None
    assert server.log_path.parent == folder, "a path in a label adds no folders"


def test_ours_gets_a_cache_directory_where_a_scenario_wants_one(tmp_path: Path) -> None:
    command = UmaServer("uma", replace(settings(tmp_path), has_disk=True), tmp_path).command()
    assert command[command.index("--cache-dir") + 1] == str(tmp_path / "uma-kv")


@pytest.mark.parametrize("label", ["nginx", "uma:no-such_stage", "llama-server:turbo"])
def test_unknown_labels_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-server").touch()
    monkeypatch.setenv("UMA_PEER_DIR", str(tmp_path))
    with pytest.raises(ServerError, match="no "):
        make_server(label, settings(tmp_path), tmp_path).command()


class Sleeper(Server):
    """A process that never answers, or ends at once."""

    def __init__(self, tmp_path: Path, code: str, is_up: bool) -> None:
        super().__init__("sleeper", settings(tmp_path), tmp_path)
        self._code, self._is_up = code, is_up

    def command(self) -> list[str]:
        return [sys.executable, "-c", self._code]

    def endpoint(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def is_ready(self) -> bool:
        return self._is_up


def test_server_that_ends_at_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)status 3.*no model here"):
        Sleeper(tmp_path, "print('no model here', flush=True); raise SystemExit(3)", False).start()


def test_servers_are_stopped_and_gone(tmp_path: Path) -> None:
    server = Sleeper(tmp_path, "import time; time.sleep(60)", True)
    with pytest.raises(RuntimeError), running([server]):
        pid = server.pid
        assert usage(pid).rss_mb > 0
        raise RuntimeError
    with pytest.raises(ProcessLookupError):
        usage(pid)
    with pytest.raises(ServerError):
        _ = server.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_us_ends_the_servers(tmp_path: Path, number: signal.Signals) -> None:
    server = Sleeper(tmp_path, "import time; time.sleep(60)", True)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit), running([server]):
            pid = server.pid
            signal.raise_signal(number)
        with pytest.raises(ProcessLookupError):
            usage(pid)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_under_nohup_the_end_of_the_terminal_ends_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running([Sleeper(tmp_path, "import time; time.sleep(60)", True)]):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_interrupt_leaves_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[Server] = [Sleeper(tmp_path, "import time; time.sleep(60)", True) for _ in range(3)]
    stop = servers[1].stop

    def interrupted() -> None:
        stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(servers[1], "stop", interrupted)
    with pytest.raises(KeyboardInterrupt), running(servers):
        pids = [server.pid for server in servers]
        raise KeyboardInterrupt
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            usage(pid)


def test_allocator_warnings_are_counted_from_the_log(tmp_path: Path) -> None:
    server = Sleeper(tmp_path, "", True)
    server.log_path.write_text("x\ndecode: failed to find a memory slot for batch of size 64\n")
    assert server.n_allocator_warnings() == 1


def test_flatten_names_and_sums() -> None:
    flat = flatten({"tokens_total": 5, "ready": True, "name": "x", "tick_ms": {"count": 4, "mean": 2.5, "p95": 9}})
    assert flat == {
        "tokens_total": 5.0,
        "tick_ms.count": 4.0,
        "tick_ms.mean": 2.5,
        "tick_ms.p95": 9.0,
        "tick_ms.sum": 10.0,
    }


@pytest.mark.parametrize(
    ("reply", "ready"), [(b'{"state":"ready"}\n', True), (b'{"state":"loading"}\n', False), (b"?", False)]
)
def test_our_daemon_is_ready_when_it_says_so(tmp_path: Path, socket_path: Path, reply: bytes, ready: bool) -> None:
    server = UmaServer("uma", settings(tmp_path), tmp_path)
    server.socket_path = socket_path
    assert server.is_ready() is False  # nobody listens
    with uds_server(socket_path, lines=reply):
        assert server.is_ready() is ready
