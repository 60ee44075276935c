"""What the daemon tells a supervisor, and what a supervisor may pass to it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time

import pytest

from tests.daemon.supervisor import Supervisor, start_with_descriptor
from tests.daemon.support import SMALL, TINY, WAIT_S, DaemonProcess, Wire, eventually


def test_ready_reload_and_stop_are_told(serve, supervisor):
    daemon = serve(environ=supervisor.environ())
    at, ready = supervisor.hear("READY", "1")
    assert "serving fake" in ready["STATUS"]
    before_us = time.monotonic_ns() // 1000
    daemon.signal(signal.SIGHUP)
    at, reloading = supervisor.hear("RELOADING", "1", at + 1)
    assert before_us <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    at, _ = supervisor.hear("READY", "1", at + 1)
    daemon.signal(signal.SIGTERM)
    at, _ = supervisor.hear("STATUS", "draining", at + 1)
    supervisor.hear("STOPPING", "1", at + 1)
    assert daemon.wait() == 0


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_a_model_whose_path_is_not_utf_8_is_served_and_told(serve, folder, supervisor, engine):
    path = os.path.join(os.fsencode(folder), b"caf\xe9", b"caf\xe9.gguf")
    os.mkdir(os.path.dirname(path))
    with open(path, "wb") as file:  # without the name that is told otherwise
        file.write(TINY.read_bytes().replace(b"general.name", b"general.nama", 1))
    daemon = serve("--model", os.fsdecode(path), "--engine", engine, *SMALL, environ=supervisor.environ())
    _, ready = supervisor.hear("READY", "1")
    assert ready["STATUS"] == "serving caf\N{REPLACEMENT CHARACTER}.gguf"
    assert daemon.generate("hello", max_tokens=2)[-1]["reason"] == "length"
    assert daemon.status()["model"]["name"] in daemon.ask("metrics", format="prometheus")["text"]


def test_an_abstract_address_is_heard_too(serve, folder):
    supervisor = Supervisor(folder, is_abstract=True)
    serve(environ=supervisor.environ())
    supervisor.hear("READY", "1")
    supervisor.close()


def test_ready_comes_after_the_load_which_asks_for_time(serve, supervisor):
    levers = {"TEST_LEVERS": '{"load_ms": 2500}'}
    daemon = serve(state="starting", environ={**supervisor.environ(), **levers})
    at, message = supervisor.hear("EXTEND_TIMEOUT_USEC")
    assert int(message["EXTEND_TIMEOUT_USEC"]) > 1_000_000
    supervisor.hear("STATUS", "loading")
    ready_at, _ = supervisor.hear("READY", "1")
    assert at < ready_at
    assert daemon.state() == "ready"


def test_a_failed_reload_ends_in_ready_and_says_why_in_status(serve, supervisor):
    daemon = serve(environ=supervisor.environ())
    at, _ = supervisor.hear("READY")
    daemon.pull(load_errors=["MODEL_LOAD_FAILED"])
    assert daemon.ask("reload", model="elsewhere")["name"] == "model_load_failed"
    at, _ = supervisor.hear("RELOADING", "1", at + 1)
    supervisor.hear("READY", "1", at + 1)
    assert daemon.status()["reload"]["last"] == "failed"


def test_the_watchdog_is_fed_while_idle_and_while_busy(serve, supervisor):
    daemon = serve(environ=supervisor.environ(watchdog_ms=100))
    eventually(lambda: supervisor.count("WATCHDOG") >= 3)
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=4000).begun()
    n_before = supervisor.count("WATCHDOG")
    eventually(lambda: supervisor.count("WATCHDOG") >= n_before + 3)
    stream.cancel()
    stream.end()


def test_a_hung_call_starves_the_watchdog_although_the_socket_answers(serve, supervisor):
    daemon = serve(
        "--hang-timeout-ms", "200", "--metrics-interval-ms", "50", environ=supervisor.environ(watchdog_ms=300)
    )
    supervisor.hear("WATCHDOG", "1")
    daemon.stream(max_tokens=4000).begun()
    daemon.pull(is_hanging=True)
    daemon.reach("degraded")
    supervisor.hear("STATUS", "degraded")
    n_before = supervisor.count("WATCHDOG")
    for _ in range(12):  # together, several times the watchdog's interval
        daemon.state()
        time.sleep(0.1)
    assert supervisor.count("WATCHDOG") == n_before
    daemon.pull(is_hanging=False)
    eventually(lambda: supervisor.count("WATCHDOG") > n_before)


def test_a_watchdog_that_is_meant_for_another_process_is_not_fed(serve, supervisor):
    daemon = serve(environ={**supervisor.environ(watchdog_ms=50), "WATCHDOG_PID": "1"})
    supervisor.hear("READY")
    for _ in range(10):
        daemon.state()
        time.sleep(0.05)
    assert supervisor.count("WATCHDOG") == 0


def test_a_drain_to_exit_asks_for_time(serve, supervisor):
    daemon = serve(environ=supervisor.environ())
    daemon.pull(step_ms=20)
    at, _ = supervisor.hear("READY")
    stream = daemon.stream(max_tokens=4000).begun()
    daemon.signal(signal.SIGTERM)
    supervisor.hear("EXTEND_TIMEOUT_USEC", after=at + 1)
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"
    assert daemon.wait() == 0


def test_a_supervisor_that_vanished_harms_nobody(serve, folder):
    supervisor = Supervisor(folder)
    daemon = serve(environ=supervisor.environ(watchdog_ms=100))
    supervisor.close()
    (folder / "notify").unlink()
    assert daemon.generate("still here", max_tokens=3)[-1]["reason"] == "length"
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_a_passed_socket_is_served_and_survives_the_daemon(folder):
    path = str(folder / "passed.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(8)
        early = Wire(path)  # connected before the daemon exists: its request waits in the backlog
        early.send(id=1, type="health")
        for _ in range(2):
            process = start_with_descriptor(listening.fileno())
            if early is not None:
                assert early.event()["event"] == "reply"
                early = None
            with Wire(path) as wire:
                eventually(lambda wire=wire: wire.ask("health")["is_ready"])
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, log
            assert b"a passed socket" in log
            assert stat.S_ISSOCK((folder / "passed.sock").stat().st_mode), "its owner removes it, not we"


def test_a_passed_socket_that_is_none_is_a_coded_error(folder):
    with open(folder / "file", "w+b") as file:
        process = start_with_descriptor(file.fileno())
        _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert b"E_CONFIG_001" in log


def test_without_a_supervisor_nothing_is_said(serve, folder):
    daemon: DaemonProcess = serve(environ={"NOTIFY_SOCKET": ""})
    assert daemon.state() == "ready"
