"""The commands that replay recordings and show their ticks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from perf.simulator import MS
from tests.trace.support import busy_second, lines_of
from uma_core.policy.cost.model import PREFILL
from uma_core.trace.__main__ import main
from uma_core.trace.words import DEPRECATED


def test_the_command_tells_same_from_different(tmp_path, capsys):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    lines = lines_of(busy_second())
    good.write_text("\n".join(lines) + "\n")
    bad.write_text("\n".join(lines).replace('"run_ns": 450000000', '"run_ns": 1') + "\n")
    assert main(["replay", str(good)]) == 0
    assert main(["replay", str(bad)]) == 1
    assert "recorded 1, now 450000000" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["replay", "--help"]) == main(["-h"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("usage: python -m uma_core.trace replay FILE")
    assert "uma-ctl trace --jsonl" in told and "Exit status" in told


def test_a_tick_is_shown_with_names_and_with_other_settings(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    ticks = busy_second(guard_cap=1.01, pause_cap=1.02)
    path.write_text("\n".join(lines_of(ticks)) + "\n")
    number = str(next(t.state.tick for t in ticks if t.plan.guard is not None and t.plan.guard.holds_prompt))
    assert main(["show", str(path), number]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tick"] == int(number) and told["guard"]["holds_prompt"]
    assert all(0 <= view["progress_ms_ago"] < 10_000 for view in told["sessions"])
    assert [view["phase"] for view in told["sessions"] if "first_ms_ago" not in view][-1:] == ["prefill"]
    assert {view["phase"] for view in told["sessions"]} == {"decode", "prefill"}
    state = next(t.state for t in ticks if t.state.tick == int(number))
    assert told["learned"]["factors"]["prefill"] == round(state.cost.factors[PREFILL], 3)
    assert told["learned"]["step_ms"] > 0
    assert told["learned"]["debt_ms"] == round(state.memory.latency_guard.debt_ns / MS, 4)
    assert not DEPRECATED.keys() & told["guard"].keys()
    assert main(["show", str(path), number, "guard_cap=3.0", "pause_cap=4.0"]) == 0
    assert not json.loads(capsys.readouterr().out)["guard"]["holds_prompt"]
    assert main(["show", str(path), "999999"]) == 1
    assert f"{path} has ticks {ticks[0].state.tick} to {ticks[-1].state.tick}" in capsys.readouterr().err
    assert main(["show", str(path), number, "no_such=1"]) == 2
    err = capsys.readouterr().err
    assert "no_such: not among aging_ns, " in err
    assert main(["show", str(path), number, "guard_cap=high"]) == 2
    assert "a setting's value is JSON" in capsys.readouterr().err
    assert main(["show", str(path), "first"]) == 2
    assert "TICK is a number, not 'first'" in capsys.readouterr().err
    assert main(["show", str(path), number, number]) == 2
    assert "only one TICK" in capsys.readouterr().err


def test_the_command_survives_a_closed_pipe_and_names_an_absent_file(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines_of(busy_second())) + "\n")
    command = [sys.executable, "-m", "uma_core.trace", "show"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*command, str(path)], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
    done = subprocess.run([*command, str(tmp_path / "none")], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == f"{tmp_path / 'none'}: No such file or directory\n"


def test_what_is_no_recording_is_refused(tmp_path, capsys):
    path = tmp_path / "t"
    lines = lines_of(busy_second())
    for text in (
        "",
        "# Notes\n\nNot one line of them is JSON.\n",
        lines[0] + "\n",
        "{}\n",
        "hello\n" + lines[1] + "\n",
        "\n".join([lines[0], lines[1][:-9], *lines[2:]]),
    ):
        path.write_text(text)
        for command in ("replay", "show"):
            assert main([command, str(path)]) == 2
            assert "is not a recording of this version" in capsys.readouterr().err
