"""An engine call that does not return is detected and reported, and the daemon survives it."""

from __future__ import annotations

import signal

from tests.daemon.support import eventually, text_of

HANG_MS = ("--hang-timeout-ms", "200", "--metrics-interval-ms", "50")


def test_a_hang_is_degraded_and_ends_in_ready(serve):
    daemon = serve(*HANG_MS)
    daemon.pull(step_ms=5)
    reference = text_of(daemon.generate("one two three", max_tokens=40))
    stream = daemon.stream("one two three", max_tokens=40).begun()
    daemon.pull(is_hanging=True)
    daemon.reach("degraded")
    status = daemon.status()
    assert "has not returned" in status["reason"]
    assert status["lanes"]["interactive"]["active"] == 1
    refused = daemon.generate("not now")[-1]
    assert (refused["name"], refused["detail"]["retry_after_ms"] > 0) == ("engine_hung", True)
    assert daemon.ask("metrics")["metrics"]["ready"] == 0
    daemon.pull(is_hanging=False)
    daemon.reach("ready")
    assert stream.end()["reason"] == "length"
    assert stream.text == reference, "what hung goes on as if nothing had happened"
    daemon.logs("E_RUNTIME_004")
    eventually(lambda: "degraded -> ready" in daemon.log)


def test_status_and_metrics_answer_during_a_call_of_any_length(serve):
    daemon = serve("--hang-timeout-ms", "0")
    daemon.stream(max_tokens=4000)
    eventually(lambda: daemon.ask("sessions")["sessions"])
    daemon.pull(is_hanging=True)
    for _ in range(20):
        assert daemon.status()["state"] == "ready"
        assert daemon.ask("metrics")["metrics"]["connections_open"] >= 1
        assert len(daemon.ask("sessions")["sessions"]) == 1


def test_a_client_that_leaves_during_a_hang_is_forgotten_after_it(serve):
    daemon = serve(*HANG_MS)
    daemon.pull(step_ms=5)
    with daemon.connect() as wire:
        wire.send(id=1, prompt="gone soon", ignore_eos=True, max_tokens=4000)
        wire.first_token(1)
        daemon.pull(is_hanging=True)
        daemon.reach("degraded")
    daemon.pull(is_hanging=False)
    assert daemon.eventually_idle()["kv"]["reserved"] == 0


def test_drain_past_its_deadline_aborts_a_hung_call(serve):
    daemon = serve(*HANG_MS)
    stream = daemon.stream(max_tokens=4000).begun()
    daemon.pull(is_hanging=True)
    daemon.ask("drain", timeout_ms=1, then="exit")
    eventually(lambda: daemon.pull()["n_aborts"] > 0)
    assert stream.end()["reason"] == "draining"
    assert daemon.wait() == 0


def test_a_drained_daemon_stays_drained_after_a_swap_that_a_hang_prevents(serve):
    daemon = serve("--drain-deadline-ms", "100", *HANG_MS)
    daemon.pull(step_ms=5, available_mb=400)
    stream = daemon.stream(max_tokens=100_000).begun()
    assert daemon.ask("drain", timeout_ms=600_000)["state"] == "draining"
    daemon.pull(is_hanging=True, is_deaf=True)
    assert daemon.ask("reload", model="another")["name"] == "engine_hung"
    daemon.pull(is_hanging=False)
    assert stream.end()["reason"] == "draining"
    assert daemon.state() == "draining"
    assert daemon.ask("undrain")["state"] == "ready"


def test_a_hang_that_nothing_ends_still_ends_with_final_events(serve):
    daemon = serve(*HANG_MS)
    streams = [daemon.stream(max_tokens=4000).begun() for _ in range(2)]
    daemon.pull(is_hanging=True, is_deaf=True, gives_up_soon=True)
    daemon.reach("degraded")
    daemon.ask("drain", timeout_ms=1, then="exit")
    for stream in streams:
        final = stream.end()
        assert (final["event"], final["reason"], final["error"]["name"]) == ("eos", "error", "engine_hung")
    assert daemon.wait() == 1


def test_a_prompt_that_is_read_for_ever_does_not_hold_a_drain(serve):
    daemon = serve()
    daemon.pull(is_reading=True, gives_up_soon=True)
    with daemon.connect() as wire:
        wire.send(id=1, prompt="read for ever")
        wire.ask("health")  # the reply shows that the prompt was taken in
        daemon.ask("drain", timeout_ms=1, then="exit")
        assert wire.until_final(1)[-1]["event"] == "error"
    assert daemon.wait() in (0, 1)


def test_sigint_leaves_a_hung_engine(serve):
    daemon = serve(*HANG_MS)
    stream = daemon.stream(max_tokens=4000).begun()
    daemon.pull(is_hanging=True, is_deaf=True, gives_up_soon=True)
    daemon.reach("degraded")
    daemon.signal(signal.SIGINT)
    daemon.reach("draining")
    daemon.signal(signal.SIGINT)
    assert stream.end()["error"]["name"] == "engine_hung"
    assert daemon.wait() == 1


def test_an_abort_costs_nobody_a_token(serve):
    """The aborted call is made again."""
    daemon = serve()
    reference = text_of(daemon.generate("a b c", max_tokens=30))
    daemon.pull(step_ms=5)
    stream = daemon.stream("a b c", max_tokens=30).begun()
    daemon.pull(statuses=["ABORTED"] * 5)
    assert stream.end()["reason"] == "length"
    assert stream.text == reference
