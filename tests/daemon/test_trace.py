"""Ticks of a daemon, recorded by a command or continuously, and replayed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.support import DRAFT, ROOT, WAIT_S, DaemonProcess, eventually

PROMPT = "Once upon a time there was a kernel that had many tasks to run, and it ran them one after another. "


def replay(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uma_core.trace", "replay", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)


def record(daemon: DaemonProcess, path: Path, seconds: float) -> None:
    command = [
        sys.executable,
        "-m",
        "uma_ctl",
        "--socket",
        daemon.path,
        "trace",
        "--jsonl",
        "--seconds",
        str(seconds),
        "--out",
        str(path),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=WAIT_S)


def check_replay(path: Path) -> None:
    """Check that the trace replays as recorded, and that a changed plan is reported."""
    done = replay(path)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "every plan is the same" in done.stdout
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "plan" in (tick := json.loads(line)) and tick["plan"]["items"])
    tick = json.loads(lines[at])
    tick["plan"]["items"] = []
    changed = path.with_name("changed.jsonl")
    changed.write_text("\n".join([*lines[:at], json.dumps(tick), *lines[at + 1 :]]) + "\n")
    done = replay(changed)
    assert done.returncode == 1 and f"line {at + 1}, tick {tick['tick']}: items" in done.stdout


def test_a_recording_of_a_chat_beside_prompts_replays(serve_model, tmp_path):
    daemon = serve_model("--n-ctx", "8192", model=DRAFT, has_levers=True)
    daemon.pull(step_ms=10)
    chat = daemon.stream(PROMPT, max_tokens=1500).begun()
    pastes = [daemon.stream(f"{i} {PROMPT * 40}", max_tokens=20, priority="background") for i in range(3)]
    record(daemon, tmp_path / "t.jsonl", 1.0)
    for stream in (chat, *pastes):
        stream.cancel()
    check_replay(tmp_path / "t.jsonl")


def test_ticks_go_to_the_configured_file(serve, tmp_path, folder):
    path = tmp_path / "ticks.jsonl"
    config = folder / "config.yaml"
    config.write_text(f"log: {{trace: {path}}}\n")
    daemon = serve("--config", str(config))
    daemon.generate(PROMPT, max_tokens=50)
    eventually(lambda: path.exists() and '"plan"' in path.read_text())
    other = tmp_path / "other.jsonl"
    config.write_text(f"log: {{trace: {other}, trace_mb: 1}}\n")
    assert daemon.ask("reload")["generation"] == 2

    def is_set_aside() -> bool:
        for _ in range(20):
            daemon.generate("x", max_tokens=2)
        return other.with_name("other.jsonl.1").exists()

    eventually(is_set_aside)
    daemon.generate(PROMPT, max_tokens=50)
    assert daemon.stop() == 0
    check_replay(path)
    check_replay(other)


@pytest.mark.parametrize("format", ["chrome", "jsonl"])
def test_two_recordings_at_once_both_have_their_ticks(serve, format):
    daemon = serve()
    daemon.pull(step_ms=2)
    stream = daemon.stream(PROMPT, max_tokens=20_000).begun()
    with daemon.connect() as one, daemon.connect() as two:
        one.send(type="trace", id=1, seconds=0.3, format=format)
        two.send(type="trace", id=2, seconds=1.8, format=format)
        first, second = one.event(), two.event()
    stream.cancel()
    assert 0 < first["n_ticks"] < second["n_ticks"]
    assert first["n_left_out"] == 0


def test_recordings_end_with_the_daemon_and_keep_what_they_have(serve):
    daemon = serve()
    with daemon.connect() as chrome, daemon.connect() as lines:
        chrome.send(type="trace", id=1, seconds=60, format="chrome")
        lines.send(type="trace", id=2, seconds=60, format="jsonl")
        daemon.generate(PROMPT, max_tokens=50)
        assert daemon.stop() == 0
        timeline, ticks = chrome.event(), lines.event()
    assert timeline["n_ticks"] > 0 and timeline["traceEvents"] and timeline["is_cut_short"]
    assert ticks["n_ticks"] > 0 and ticks["lines"] and ticks["is_cut_short"]


def test_a_reply_that_is_larger_than_what_a_slow_reader_may_leave_arrives_whole(serve):
    daemon = serve("--tx-soft-bytes", "1024", "--tx-hard-bytes", "4096")
    stream = daemon.stream(PROMPT, max_tokens=50_000).begun()
    reply = daemon.ask("trace", seconds=1.0)
    stream.cancel()
    assert len(json.dumps(reply)) > 10 * 4096
