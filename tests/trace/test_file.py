"""Ticks are written to a file by a separate thread."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from perf.simulator import MS, Job, Sim
from tests.policy.build import state_of, talking
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.policy.pipeline import compose
from uma_core.trace.file import CAPACITY, TraceFile
from uma_core.trace.lines import Tick
from uma_core.trace.replay import differences
from uma_core.types import Priority

MIB = 1 << 20
WAIT_S = 20.0


def some_ticks() -> list[Tick]:
    sim = Sim(CPU_SHAPE, keep_states=True)
    sim.submit(Job(32, 40))
    sim.submit(Job(400, 20, Priority.BACKGROUND, 2, at_ns=100 * MS))
    sim.run()
    assert sim.log is not None
    return [Tick(state, plan, state.reports) for state, plan in sim.log]


def written(path: Path, ticks: list[Tick], max_bytes: int = 64 * MIB) -> TraceFile:
    file = TraceFile(str(path), max_bytes)
    for tick in ticks:
        file(*tick)
    assert file.close(WAIT_S)
    return file


def replayed(path: Path) -> int:
    """Replay a file. Return its number of ticks; all of them must have the recorded result."""
    lines = path.read_text().splitlines(keepends=True)
    assert list(differences(lines)) == []
    return sum('"result"' in line for line in lines)  # the last line of a tick


def test_what_is_written_replays(tmp_path):
    ticks = some_ticks()
    assert written(tmp_path / "t", ticks).n_dropped == 0
    assert replayed(tmp_path / "t") == len(ticks)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600


def test_a_second_start_goes_on_in_the_same_file(tmp_path):
    ticks = some_ticks()
    written(tmp_path / "t", ticks)
    whole = (tmp_path / "t").read_text()
    (tmp_path / "t").write_text(whole[: whole.rindex('"plan"')])  # the writer was stopped in the middle of a line
    written(tmp_path / "t", ticks)
    assert replayed(tmp_path / "t") == 2 * len(ticks) - 1


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    ticks = some_ticks()
    written(tmp_path / "t", ticks)
    whole = (tmp_path / "t").read_text()
    (tmp_path / "t").write_text(whole[: len(whole) - 40])
    assert list(differences((tmp_path / "t").open())) == []


def test_a_file_that_another_program_moved_is_begun_again(tmp_path):
    ticks = some_ticks()
    file = TraceFile(str(tmp_path / "t"), 40_000)
    file(*ticks[0])
    deadline = time.monotonic() + WAIT_S
    while not (tmp_path / "t").exists() or not (tmp_path / "t").stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "t").rename(tmp_path / "moved")
    for tick in ticks[:30]:  # more than the first file holds, less than two hold
        file(*tick)
    assert file.close(WAIT_S) and not file.has_failed
    assert replayed(tmp_path / "moved") > 1 and replayed(tmp_path / "t") > 0


def test_a_full_file_is_set_aside_and_each_begins_with_its_context(tmp_path):
    ticks = some_ticks()
    written(tmp_path / "t", ticks, max_bytes=40_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.1"]
    n = replayed(tmp_path / "t") + replayed(tmp_path / "t.1")
    assert 0 < n < len(ticks), "of what was set aside, only the last one is kept"
    assert (tmp_path / "t.1").stat().st_size < 60_000


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "nowhere"])
def test_what_cannot_be_written_to_is_logged_and_stops_nobody(tmp_path, kind, caplog):
    path = tmp_path / "t"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "other").touch()
        path.symlink_to(tmp_path / "other")
    else:
        path = tmp_path / "none" / "t"
    file = written(path, some_ticks())
    assert file.n_dropped == 0
    assert f"no longer written to {path}" in caplog.text


def test_a_file_of_another_user_is_not_written(tmp_path, monkeypatch, caplog):
    """Who creates the file first, as anybody may in /tmp, could read when everybody's requests ran, and how long."""
    (tmp_path / "t").touch()
    uid = (tmp_path / "t").stat().st_uid
    monkeypatch.setattr("uma_core.trace.file.os.geteuid", lambda: uid + 1)
    monkeypatch.setattr("uma_core.trace.file.ROOT", uid + 2)
    written(tmp_path / "t", some_ticks())
    assert not (tmp_path / "t").stat().st_size
    assert "it belongs to another user" in caplog.text


def test_a_queue_that_is_full_drops_and_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    state = state_of(talking(0))
    tick = Tick(state, compose(state.config.stages)(state), ())
    file = TraceFile(str(tmp_path / "none" / "t"), MIB)
    file.close(WAIT_S)  # the writer has stopped
    for _ in range(CAPACITY + 5):
        file(*tick)
    assert file.n_dropped == 5
