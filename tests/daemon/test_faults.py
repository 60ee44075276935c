"""Injected failures: the affected requests get coded errors, and all other streams stay identical byte for byte."""

from __future__ import annotations

import os
import socket

import pytest

from tests.daemon.support import eventually, text_of

PROMPTS = [f"conversation number {n} about" for n in range(4)]


def references(daemon, prompts, n: int) -> list[str]:
    return [text_of(daemon.generate(prompt, max_tokens=n)) for prompt in prompts]


def check_clean(daemon) -> None:
    assert daemon.eventually_idle()["kv"]["reserved"] == 0
    assert daemon.generate("after all that", max_tokens=3)[-1]["reason"] == "length"


def test_a_storm_of_full_calls_costs_nobody_a_token(serve):
    daemon = serve()
    expected = references(daemon, PROMPTS, 60)
    daemon.pull(step_ms=2)
    streams = [daemon.stream(prompt, max_tokens=60).begun() for prompt in PROMPTS]
    daemon.pull(n_full=40)
    assert [s.end()["reason"] for s in streams] == ["length"] * 4
    assert [s.text for s in streams] == expected
    check_clean(daemon)


@pytest.mark.parametrize("status, code", [("FATAL", "decode_failed"), ("BAD_BATCH", "bad_batch")])
def test_a_failed_decode_fails_its_batch_and_nobody_else(serve, status, code):
    daemon = serve()
    expected = references(daemon, PROMPTS, 30)
    daemon.pull(step_ms=5)
    hit = [daemon.stream(prompt, max_tokens=4000).begun() for prompt in PROMPTS[:2]]
    daemon.pull(statuses=[status])
    finals = [s.end() for s in hit]
    assert {(f["event"], f["reason"], f["error"]["name"]) for f in finals if f["reason"] == "error"} == {
        ("eos", "error", code)
    }
    for stream, final in zip(hit, finals, strict=True):
        if final["reason"] != "error":
            stream.cancel()
    assert references(daemon, PROMPTS, 30) == expected
    check_clean(daemon)


def test_logits_that_are_not_finite_end_one_session(serve):
    daemon = serve()
    expected = references(daemon, PROMPTS[:2], 60)
    daemon.pull(step_ms=5)
    streams = [daemon.stream(prompt, max_tokens=60).begun() for prompt in PROMPTS[:2]]
    eventually(lambda: daemon.status()["sessions"]["decode"] == 2)
    daemon.pull(nan_rows=[0])
    finals = [s.end() for s in streams]
    assert sorted(f["reason"] for f in finals) == ["error", "length"]
    for stream, final, text in zip(streams, finals, expected, strict=True):
        if final["reason"] == "error":
            assert final["error"]["name"] == "sampler_failed"
            assert text.startswith(stream.text)
        else:
            assert stream.text == text
    check_clean(daemon)


def test_a_lost_prefill_fails_its_session(serve):
    daemon = serve()
    expected = references(daemon, PROMPTS[:1], 60)
    daemon.pull(step_ms=5)
    stream = daemon.stream(PROMPTS[0], max_tokens=60).begun()
    daemon.pull(prefill_failures=1)
    assert daemon.generate("unlucky", max_tokens=3)[-1]["error"]["name"] == "decode_failed"
    assert stream.end()["reason"] == "length"
    assert [stream.text] == expected
    check_clean(daemon)


@pytest.mark.parametrize(
    "lever", [{"statuses": ["FATAL"]}, {"statuses": ["ABORTED"] * 3}, {"n_full": 20}, {"nan_rows": [0]}], ids=str
)
def test_the_real_engine_survives_the_same(serve_model, lever):
    daemon = serve_model(has_levers=True)
    expected = references(daemon, PROMPTS[:2], 40)
    daemon.pull(step_ms=5)
    streams = [daemon.stream(prompt, max_tokens=40).begun() for prompt in PROMPTS[:2]]
    daemon.pull(**lever)
    for stream, text in zip(streams, expected, strict=True):
        if stream.end()["reason"] == "length":
            assert stream.text == text
        else:
            assert text.startswith(stream.text)
    daemon.pull(step_ms=0)
    assert references(daemon, PROMPTS[:2], 40) == expected
    check_clean(daemon)


def test_an_allocation_failure_in_a_reload_changes_nothing(serve_model):
    daemon = serve_model(has_levers=True)
    daemon.pull(load_errors=["INSUFFICIENT_MEMORY"])
    assert daemon.ask("reload", model=daemon.status()["model"]["path"])["name"] == "insufficient_memory"
    check_clean(daemon)


def test_out_of_descriptors_clients_are_told_and_the_rest_goes_on(serve):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(PROMPTS[0], max_tokens=300).begun()
    daemon.pull(nofile=daemon.descriptors() + 3)
    crowd = [daemon.connect() for _ in range(12)]
    told = []
    for wire in reversed(crowd):
        wire.sock.settimeout(0.5)
        try:
            told.append(wire.event()["name"])
        except (TimeoutError, EOFError, ConnectionResetError):
            continue
    assert "too_many_sessions" in told
    assert stream.end()["reason"] == "length"
    for wire in crowd:
        wire.sock.close()
    daemon.pull(nofile=1024)
    check_clean(daemon)


@pytest.mark.parametrize("name", ["ENOBUFS", "ENOMEM", "ECONNABORTED"])
def test_accept_failures_pass(serve, name):
    daemon = serve()
    daemon.pull(accept_errors=[name] * 3)
    assert daemon.generate("in the end", max_tokens=3)[-1]["reason"] == "length"


def test_a_full_disk_under_log_and_calibration_stops_nothing(folder, serve):
    full = "/dev/full"
    if not os.path.exists(full):
        pytest.fail("this system has no /dev/full")
    blocked = folder / "blocked"
    blocked.write_text("a file where a directory should be made")
    daemon = serve("--log-level", "debug", "--calibrate", "force", environ={"UMA_BUILD_CACHE": str(blocked)})
    daemon.logs("calibration was not stored")
    check_clean(daemon)


def test_a_log_that_cannot_be_written_is_counted(folder, serve):
    with open("/dev/full", "wb") as full:
        daemon = serve("--log-level", "debug", has_levers=True, log=full.fileno())
        check_clean(daemon)
        assert daemon.ask("metrics")["metrics"]["log_lines_dropped_total"] > 0


def test_a_connection_reset_in_the_middle_of_everything(serve):
    """The client closes while unread data is pending, so the kernel sends RST instead of FIN."""
    daemon = serve()
    daemon.pull(step_ms=2)
    for n in range(20):
        wire = daemon.connect()
        wire.send(id=n, prompt="reset", ignore_eos=True, max_tokens=4000)
        wire.first_token(n)
        wire.sock.shutdown(socket.SHUT_RD)
        wire.sock.close()
    check_clean(daemon)


@pytest.mark.parametrize("trouble", ["full", "no directory"])
def test_a_cache_directory_in_trouble_is_a_warning(folder, serve_model, trouble):
    """Snapshots cannot be written. Everything else continues, and no half-written file is left."""
    cache = folder / "snapshots"
    if trouble == "no directory":
        cache.write_text("a file")
    daemon = serve_model("--cache-dir", str(cache), has_levers=True)
    if trouble == "full":
        daemon.pull(fsize=100_000)  # a write past this size fails as on a full disk
    for n in range(8):
        assert daemon.generate(f"{n} " + "many words of a conversation " * 40, max_tokens=2)[-1]["reason"] == "length"
    eventually(lambda: "E_IO_002" in daemon.log)
    check_clean(daemon)
    daemon.pull(fsize=1 << 30)
    assert daemon.stop() == 0
    if trouble == "full":
        assert [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size == 100_000] == []


def test_a_slow_disk_delays_nobody_and_the_end_waits_for_it_only_so_long(folder, serve_model):
    daemon = serve_model("--cache-dir", str(folder / "snapshots"), has_levers=True)
    expected = references(daemon, PROMPTS[:1], 60)
    daemon.pull(disk_ms=1000, step_ms=5)
    stream = daemon.stream(PROMPTS[0], max_tokens=60).begun()
    for n in range(6):  # with more conversations than sequences, snapshots queue up for the disk
        assert daemon.generate(f"{n} " + "many words of a conversation " * 40, max_tokens=2)[-1]["reason"] == "length"
    assert stream.end()["reason"] == "length"
    assert [stream.text] == expected
    check_clean(daemon)
    assert daemon.stop() == 0
    again = serve_model("--cache-dir", str(folder / "snapshots"))
    check_clean(again)
    removed = [line for line in again.log.splitlines() if "removed" in line and "was removed: unfinished" not in line]
    assert not removed, "a file that was half written was taken for a snapshot"


def test_a_removed_socket_comes_back_and_streams_go_on(serve):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=4000).begun()
    os.unlink(daemon.path)
    daemon.reach("ready")
    assert daemon.generate("x", max_tokens=2)[-1]["reason"] == "length"
    assert not stream.has_ended
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"
    assert daemon.stop() == 0
    assert not os.path.exists(daemon.path) and not os.path.exists(daemon.path + ".lock")
