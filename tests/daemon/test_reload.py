"""Reload: all or nothing, with the new model beside or instead of the old one, and what failures leave behind."""

from __future__ import annotations

import os
import signal

import pytest

from tests.daemon.support import eventually

FOREVER = {"max_tokens": 4000}


@pytest.fixture
def config(folder):
    path = folder / "config.yaml"
    path.write_text("limits:\n  max_tokens: 4000\n  default_max_tokens: 5\n")
    return path


def test_live_settings_change_without_an_engine(serve, config):
    daemon = serve("--config", str(config))
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=100).begun()
    config.write_text(
        "limits:\n  max_tokens: 7\n  default_max_tokens: 5\nlog:\n  level: debug\nipc:\n  idle_timeout_ms: 200\n"
    )
    quiet = daemon.connect()
    reply = daemon.ask("reload")
    assert reply["generation"] == 2
    assert [change["name"] for change in reply["changes"]] == ["ipc.idle_timeout_ms", "limits.max_tokens", "log.level"]
    assert daemon.generate("short now", max_tokens=100)[-1]["usage"]["completion_tokens"] == 7
    assert quiet.event()["name"] == "idle_timeout", "connections from before know the new timeout"
    assert stream.end()["usage"]["completion_tokens"] == 100
    daemon.logs(" DEBUG ")
    assert daemon.status()["reload"] == {"generation": 2, "last": "ok", "error": None, "is_under_way": False}


def test_check_shows_the_difference_and_changes_nothing(serve, config):
    daemon = serve("--config", str(config))
    config.write_text("limits:\n  max_tokens: 6\n  default_max_tokens: 5\n")
    reply = daemon.ask("reload", check=True)
    assert [(c["name"], c["old"], c["new"]) for c in reply["changes"]] == [("limits.max_tokens", 4000, 6)]
    assert daemon.status()["generation"] == 1
    assert daemon.generate("as before", max_tokens=9)[-1]["usage"]["completion_tokens"] == 9
    assert daemon.ask("reload", check=True, model="x")["fit"] == "beside"
    assert daemon.status()["generation"] == 1


@pytest.mark.parametrize(
    "text, code",
    [
        ("limits: [", "config_invalid"),
        ("limits:\n  max_tokens: many\n", "config_invalid"),
        ("limits:\n  no_such: 1\n", "config_invalid"),
        ("limits:\n  max_tokens: 4000\nscheduler:\n  stages: [admission, nonsense]\n", "config_invalid"),
        ("limits:\n  max_tokens: 4000\nipc:\n  uds_path: /elsewhere\n", "config_invalid"),
    ],
)
def test_a_bad_configuration_leaves_the_old_one(serve, config, text, code):
    daemon = serve("--config", str(config), "--socket", str(config.parent / "uma.sock"))
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=50).begun()
    config.write_text(text.replace("uds_path: /elsewhere", "backlog: 3"))
    assert daemon.ask("reload")["name"] == code
    reload = daemon.status()["reload"]
    assert (reload["generation"], reload["last"], reload["error"]["name"]) == (1, "failed", code)
    assert stream.end()["reason"] == "length"
    config.write_text("limits:\n  max_tokens: 3000\n")
    assert daemon.ask("reload")["generation"] == 2
    assert daemon.status()["reload"]["error"] is None


def test_a_pipe_in_place_of_the_file_freezes_nobody(serve, config):
    daemon = serve("--config", str(config))
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=100).begun()
    config.unlink()
    os.mkfifo(config)
    for check in (True, False):
        refused = daemon.ask("reload", check=check)
        assert refused["name"] == "config_invalid"
        assert "not a regular file" in refused["message"]
    daemon.signal(signal.SIGHUP)
    daemon.logs("not a regular file")
    assert stream.end()["reason"] == "length"
    assert daemon.status()["reload"]["last"] == "failed"


def test_another_engine_beside_running_streams(serve):
    daemon = serve()
    daemon.pull(step_ms=50)
    streams = [daemon.stream(max_tokens=1000).begun() for _ in range(4)]
    assert daemon.ask("reload", model="another")["generation"] == 2
    status = daemon.status()
    assert status["retiring"] == [{"model": "fake", "sessions": 4}]
    assert status["state"] == "ready"
    assert daemon.generate("on the new one", max_tokens=3)[-1]["reason"] == "length"
    daemon.pull(step_ms=0)
    assert [s.end()["usage"]["completion_tokens"] for s in streams] == [1000] * 4
    daemon.eventually_idle()
    eventually(lambda: "fake is closed" in daemon.log)


def test_without_room_the_old_model_goes_first(serve):
    daemon = serve()
    daemon.pull(step_ms=5, available_mb=400)
    stream = daemon.stream(max_tokens=100).begun()
    assert daemon.ask("reload", check=True, model="another")["fit"] == "swap"
    with daemon.connect() as wire:
        wire.send(type="reload", id="r", model="another")
        daemon.reach("draining")
        assert daemon.generate("wait a little")[-1]["name"] == "draining"
        assert stream.end()["reason"] == "length"
        assert wire.event()["generation"] == 2
    assert daemon.state() == "ready"
    daemon.logs("fake is closed")
    assert daemon.generate("new", max_tokens=3)[-1]["reason"] == "length"


def test_a_failed_swap_brings_the_old_model_back(serve):
    daemon = serve()
    daemon.pull(available_mb=400, load_errors=["MODEL_LOAD_FAILED"])
    assert daemon.ask("reload", model="bad")["name"] == "model_load_failed"
    status = daemon.status()
    assert (status["state"], status["generation"], status["reload"]["last"]) == ("ready", 1, "failed")
    assert daemon.generate("old", max_tokens=3)[-1]["reason"] == "length"


def test_without_any_model_the_daemon_says_so_until_a_reload_works(serve):
    daemon = serve()
    daemon.pull(available_mb=400, load_errors=["MODEL_LOAD_FAILED", "INSUFFICIENT_MEMORY"])
    assert daemon.ask("reload", model="bad")["name"] == "model_load_failed"
    status = daemon.status()
    assert (status["state"], "insufficient_memory" in status["reason"]) == ("degraded", True)
    assert daemon.generate("nobody home")[-1]["name"] == "model_not_loaded"
    assert daemon.ask("reload")["generation"] == 2
    assert daemon.state() == "ready"
    assert daemon.generate("back", max_tokens=3)[-1]["reason"] == "length"


def test_a_load_that_cannot_fit_is_refused_before_anything_is_touched(serve, config):
    daemon = serve("--config", str(config))
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=100).begun()
    config.write_text("limits:\n  max_tokens: 4000\nengine:\n  n_ctx: 16000000\n")
    assert daemon.ask("reload")["name"] == "insufficient_memory"
    config.write_text("limits:\n  max_tokens: 4000\nengine:\n  memory_budget_mb: 100\n")
    assert daemon.ask("reload", model="same")["name"] == "insufficient_memory"
    assert daemon.ask("reload", check=True, model="same")["name"] == "insufficient_memory"
    assert stream.end()["reason"] == "length"
    assert daemon.state() == "ready"


def begin_slow_reload(daemon, wire, load_ms):
    daemon.pull(load_ms=load_ms)
    wire.send(type="reload", id="r", model="slow")
    eventually(lambda: daemon.status()["reload"]["is_under_way"])


def test_reloads_come_one_at_a_time(serve):
    daemon = serve()
    with daemon.connect() as wire:
        begin_slow_reload(daemon, wire, load_ms=1500)
        assert daemon.ask("reload")["name"] == "reload_busy"
        assert wire.event()["generation"] == 2
    assert daemon.status()["reload"]["last"] == "ok", "who came second changed nothing"


def test_a_signal_during_a_reload_gets_a_reload_of_its_own(serve, config):
    daemon = serve("--config", str(config))
    with daemon.connect() as wire:
        begin_slow_reload(daemon, wire, load_ms=1000)
        config.write_text("limits:\n  max_tokens: 4000\n  default_max_tokens: 3\n")
        for _ in range(3):
            daemon.signal(signal.SIGHUP)
        assert wire.event()["generation"] == 2
    eventually(lambda: daemon.status()["generation"] == 3)
    assert daemon.generate("x")[-1]["usage"]["completion_tokens"] == 3
    assert daemon.status()["reload"] == {"generation": 3, "last": "ok", "error": None, "is_under_way": False}


def test_a_drain_to_reload_waits_for_the_reload_in_progress(serve, config):
    daemon = serve("--config", str(config))
    with daemon.connect() as wire:
        begin_slow_reload(daemon, wire, load_ms=1000)
        config.write_text("limits:\n  max_tokens: 4000\n  default_max_tokens: 3\n")
        assert daemon.ask("drain", then="reload")["then"] == "reload"
        assert wire.event()["generation"] == 2
    daemon.reach("ready")
    assert daemon.generate("x")[-1]["usage"]["completion_tokens"] == 3


def test_a_drain_during_the_reload_that_another_drain_began_stays(serve, config):
    daemon = serve("--config", str(config))
    daemon.pull(load_ms=1000)
    config.write_text("limits:\n  max_tokens: 4000\nengine:\n  n_ctx: 1024\n")
    daemon.ask("drain", then="reload")
    eventually(lambda: daemon.status()["reload"]["is_under_way"])
    assert daemon.ask("drain")["then"] == "stay"
    eventually(lambda: daemon.status()["generation"] == 2)
    assert (daemon.state(), daemon.status()["drain"]["then"]) == ("draining", "stay")


@pytest.mark.parametrize("available_mb", [None, 400], ids=["beside", "swap"])
def test_a_drained_daemon_stays_drained(serve, available_mb):
    daemon = serve()
    daemon.ask("drain")
    daemon.pull(available_mb=available_mb)
    assert daemon.ask("reload", model="another")["generation"] == 2
    assert daemon.state() == "draining"
    assert daemon.ask("undrain")["state"] == "ready"
    assert daemon.generate("go", max_tokens=2)[-1]["reason"] == "length"


def test_undrain_gives_a_swap_up(serve):
    daemon = serve()
    daemon.pull(step_ms=5, available_mb=400)
    stream = daemon.stream(**FOREVER).begun()
    with daemon.connect() as wire:
        wire.send(type="reload", id="r", model="another")
        daemon.reach("draining")
        assert daemon.ask("undrain")["state"] == "ready"
        assert wire.event()["name"] == "reload_busy"
    assert daemon.status()["generation"] == 1
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"


def test_sigterm_during_a_swap_ends_the_daemon(serve):
    daemon = serve("--drain-deadline-ms", "100")
    daemon.pull(step_ms=5, available_mb=400)
    stream = daemon.stream(**FOREVER).begun()
    with daemon.connect() as wire:
        wire.send(type="reload", id="r", model="another")
        daemon.reach("draining")
        assert daemon.ask("drain", then="exit")["then"] == "exit"
        assert wire.event()["name"] == "draining"
    assert stream.end()["reason"] == "draining"
    assert daemon.wait() == 0


def test_requests_sent_during_reloads_are_all_answered(serve):
    """A prompt that was tokenized with the old model is tokenized again for the new one."""
    daemon = serve()
    for n in range(6):
        streams = [daemon.stream(f"prompt {i} " * 50, max_tokens=5) for i in range(6)]
        assert daemon.ask("reload", model=f"m{n}")["generation"] == n + 2
        assert {s.end()["reason"] for s in streams} == {"length"}
    assert daemon.eventually_idle()["kv"]["reserved"] == 0
