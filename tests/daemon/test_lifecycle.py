"""Start, drain, undrain and stop, and the signals that ask for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.daemon.support import ROOT, WAIT_S, eventually, is_ready

LEAVING = (signal.SIGTERM, signal.SIGINT)
FOREVER = {"max_tokens": 4000}


def test_ready_is_reported_with_how_long_it_took(serve):
    daemon = serve()
    status = daemon.status()
    assert (status["state"], status["reason"], status["generation"]) == ("ready", "", 1)
    assert status["start_ms"] > 0
    daemon.logs("ready after")


def test_while_the_model_loads_the_socket_answers(serve):
    daemon = serve("--calibrate", "off", state="ready")
    daemon.pull(load_ms=600_000, gives_up_soon=True)
    with daemon.connect() as wire:
        wire.send(type="reload", id="r", model="other")
        eventually(lambda: daemon.status()["reload"]["is_under_way"])
        assert daemon.ask("reload")["name"] == "reload_busy"
        assert daemon.state() == "ready"
        assert daemon.generate("still served", max_tokens=2)[-1]["reason"] == "length"
        daemon.pull(load_ms=600_000, gives_up_soon=True, step_ms=20)
        stream = daemon.stream(**FOREVER).begun()  # the drain lasts as long as this stream
        daemon.signal(signal.SIGINT)
        daemon.reach("draining")
        daemon.signal(signal.SIGINT)
        assert stream.end()["error"]["name"] == "shutting_down"
        assert wire.event()["name"] == "shutting_down"
    assert daemon.wait() == 0


def test_sigterm_while_loading_ends_cleanly(serve):
    levers = {"TEST_LEVERS": '{"load_ms": 600000, "gives_up_soon": true}'}
    daemon = serve("--drain-deadline-ms", "60000", state="starting", environ=levers)
    refused = daemon.generate("too early")[-1]
    assert (refused["event"], refused["name"]) == ("error", "model_not_loaded")
    assert refused["detail"]["retry_after_ms"] > 0
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_a_load_that_ends_while_the_daemon_does_is_no_failure(serve):
    levers = {"TEST_LEVERS": '{"load_ms": 1000, "end_ms": 1500}'}
    daemon = serve(state="starting", environ=levers)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


@pytest.mark.parametrize("number", LEAVING)
def test_streams_finish_before_the_daemon_leaves(serve, number):
    daemon = serve()
    daemon.pull(step_ms=5)
    streams = [daemon.stream(max_tokens=50).begun() for _ in range(3)]
    daemon.signal(number)
    assert [(s.end()["reason"], s.end()["usage"]["completion_tokens"]) for s in streams] == [("length", 50)] * 3
    assert daemon.wait() == 0


@pytest.mark.parametrize("first", LEAVING)
@pytest.mark.parametrize("second", LEAVING)
def test_a_second_signal_stops(serve, first, second):
    daemon = serve()
    daemon.pull(step_ms=20)
    stream = daemon.stream(**FOREVER).begun()
    daemon.signal(first)
    daemon.reach("draining")
    daemon.logs("running requests (1) have up to 30 s to finish")
    daemon.logs("another Ctrl-C ends it at once" if first is signal.SIGINT else "another SIGTERM ends it at once")
    daemon.signal(second)
    final = stream.end()
    assert (final["reason"], final["error"]["name"]) == ("error", "shutting_down")
    assert daemon.wait() == 0


def test_sigterm_after_a_drain_that_stays_still_drains(serve):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=100).begun()
    assert daemon.ask("drain")["state"] == "draining"
    daemon.signal(signal.SIGTERM)
    assert stream.end()["reason"] == "length"
    assert daemon.wait() == 0


def test_signals_without_a_meaning_end_nothing(serve):
    """By default, each of these signals would end the process without a drain and leave the socket behind."""
    ends = {*LEAVING, signal.SIGQUIT, signal.SIGXCPU, signal.SIGPWR}
    faults = {
        signal.SIGABRT,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
    stops = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    others = signal.valid_signals() - ends - faults - stops
    assert {signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPROF, signal.SIGIO, signal.SIGRTMAX} <= others
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=100).begun()
    for number in sorted(others - {signal.SIGHUP}):
        os.kill(daemon.process.pid, number)
        assert daemon.state() == "ready", f"{number!r}: {daemon.log}"
    assert stream.end()["reason"] == "length"
    daemon.logs("SIGUSR1 has no meaning here")


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGPWR])
def test_the_last_signals_before_an_end_drain(serve, number):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=100).begun()
    for _ in range(3):
        daemon.signal(number)
        daemon.reach("draining")
    assert stream.end()["reason"] == "length"
    assert daemon.wait() == 0


def test_sigquit_dumps_all_stacks(serve):
    daemon = serve()
    daemon.pull(step_ms=20)
    daemon.stream(**FOREVER).begun()
    daemon.signal(signal.SIGQUIT)
    assert daemon.wait() == 128 + signal.SIGQUIT
    assert daemon.log.count("Thread 0x") >= 3
    assert "executor/thread.py" in daemon.log


def test_sigquit_dumps_stacks_of_a_hung_engine(serve):
    daemon = serve()
    daemon.pull(is_hanging=True, is_deaf=True)
    daemon.stream()
    daemon.signal(signal.SIGQUIT)
    assert daemon.wait() == 128 + signal.SIGQUIT


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGTRAP, signal.SIGSYS])
def test_a_fatal_signal_dumps_all_stacks(serve, number):
    daemon = serve()
    daemon.signal(number)
    status = daemon.wait()
    # faulthandler reads the frames of running threads. Now and then it meets a half-made frame and faults
    # itself; the process then ends by that signal, with a partial dump.
    assert status in (-number, -signal.SIGSEGV)
    assert daemon.log.count("hread 0x") >= (3 if status == -number else 1)


def test_drain_refuses_new_work_and_undrain_takes_it_again(serve):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=200).begun()
    for _ in range(2):
        progress = daemon.ask("drain", timeout_ms=60_000)
        assert (progress["state"], progress["remaining"]) == ("draining", 1)
    refused = daemon.generate("no")[-1]
    assert (refused["name"], refused["detail"]["retry_after_ms"] > 0) == ("draining", True)
    assert daemon.ask("health")["is_ready"] is False
    assert daemon.status()["drain"]["then"] == "stay"
    assert daemon.ask("undrain")["state"] == "ready"
    assert daemon.generate("yes", max_tokens=3)[-1]["reason"] == "length"
    assert stream.end()["reason"] == "length"


def test_past_the_deadline_the_rest_ends_with_what_it_has(serve):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(**FOREVER).begun()
    with daemon.connect() as wire:
        wire.send(id="whole", prompt="all at once", stream=False, ignore_eos=True, **FOREVER)
        eventually(lambda: len(daemon.ask("sessions")["sessions"]) == 2)
        eventually(lambda: min(row["completion_tokens"] for row in daemon.ask("sessions")["sessions"]) > 3)
        daemon.ask("drain", timeout_ms=0)
        (whole,) = wire.until_final("whole")
    final = stream.end()
    assert (final["reason"], whole["reason"]) == ("draining", "draining")
    assert whole["usage"]["completion_tokens"] > 3
    assert whole["text"]
    assert daemon.state() == "draining", "it stays until it is told otherwise"
    assert daemon.ask("undrain")["state"] == "ready"


@pytest.mark.parametrize("then", ["exit", "reload"])
def test_what_follows_a_drain(serve, then):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=60).begun()
    daemon.ask("drain", then=then)
    assert stream.end()["reason"] == "length"
    if then == "exit":
        assert daemon.wait() == 0
    else:
        daemon.reach("ready")
        assert daemon.status()["reload"]["generation"] == 2


def test_the_socket_and_its_lock_are_gone_after_a_clean_end(serve, folder):
    daemon = serve()
    assert (folder / "uma.sock").stat().st_mode & 0o777 == 0o600
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("uma")) == []


def test_closed_standard_descriptors_are_not_taken_by_sockets(folder):
    """If the daemon is started with `>&- 2>&-`, no log line and no library message may reach a client's answer."""
    path = folder / "uma.sock"
    script = 'exec 0<&- 1>&- 2>&-; exec "$@"'
    command = [
        "/bin/sh",
        "-c",
        script,
        "sh",
        sys.executable,
        "-m",
        "uma_core",
        "daemon",
        "--engine",
        "fake",
        "--socket",
        str(path),
    ]
    process = subprocess.Popen([*command, "--log-level", "debug"], cwd=ROOT)
    try:
        eventually(lambda: is_ready(path))
        links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)]
        assert links == [os.devnull] * 3
    finally:
        process.terminate()
    assert process.wait(WAIT_S) == 0


def test_a_preset_is_in_force_and_what_is_given_goes_before_it(serve):
    daemon = serve("--preset", "laptop", "--max-sessions", "9")
    daemon.logs("with the preset laptop")
    engine = daemon.status()["engine"]
    assert (engine["n_seq_max"], engine["n_ctx"]) == (2, 8192)
