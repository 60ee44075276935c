"""The system runs short of memory: the daemon gives up caches and idle sequences, but no streams."""

from __future__ import annotations

from tests.daemon.support import eventually, text_of

PROMPT = "Once upon a time there was a kernel that had many tasks to run and "


def relieved(daemon) -> int:
    return int(daemon.ask("metrics")["metrics"]["relieved_bytes_total"])


def test_caches_and_idle_sequences_go_and_streams_stay(serve_model):
    daemon = serve_model(has_levers=True)
    expected = text_of(daemon.generate("The shell is", max_tokens=100, cache_prompt=False))
    for n in range(12):  # with more conversations than sequences, some become snapshots
        daemon.generate(f"{n} {PROMPT * 4}", max_tokens=2)
    status = daemon.status()
    assert status["kv"]["cached"] > 0
    assert status["memory"]["cache"] > 0
    daemon.pull(step_ms=10)
    stream = daemon.stream("The shell is", max_tokens=100, cache_prompt=False).begun()

    def are_gone() -> bool:
        daemon.pull(pressure=1)
        status = daemon.status()
        return not status["memory"]["cache"] and not status["kv"]["cached"]

    eventually(are_gone)
    assert relieved(daemon) > 0
    daemon.pull(step_ms=0)
    assert stream.end()["reason"] == "length"
    assert stream.text == expected
    daemon.logs("memory is short")
    assert daemon.generate(PROMPT, max_tokens=2)[-1]["reason"] == "length"


def test_switched_off_nothing_is_watched(serve, folder):
    config = folder / "config.yaml"
    config.write_text("cache:\n  pressure: auto\n")
    daemon = serve("--config", str(config))
    daemon.pull(pressure=1)
    config.write_text("cache:\n  pressure: 'off'\n")
    assert daemon.ask("reload")["generation"] == 2
    assert daemon.status()["state"] == "ready"


def test_the_daemon_watches_what_the_system_offers(serve):
    """Without levers. The daemon uses a trigger, or polls, or logs why it does neither."""
    daemon = serve("--log-level", "debug", has_levers=False)
    assert daemon.state() == "ready"
    assert "callback failed" not in daemon.log
