"""Record, replay, draw."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from perf.simulator import MS, Job, Sim
from tests.policy.build import state_of, talking
from uma_core import trace
from uma_core.engine.fake.cost import CPU_SHAPE, GPU_SHAPE
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.model import PREFILL
from uma_core.policy.pipeline import DEPRECATED
from uma_core.policy.plan import Plan
from uma_core.types import Priority


def recorded(cost=CPU_SHAPE, **knobs) -> list[trace.Tick]:
    """Record a busy second: a chat, background prompts and streams, and two clients, with noise, so that corrections
    and margins move.
    """
    sim = Sim(cost, config=SchedulerConfig(**knobs), keep_states=True, noise=0.03)
    sim.submit(Job(32, 40))
    for i in range(3):
        sim.submit(Job(400, 20, Priority.BACKGROUND, 2, at_ns=100 * MS * i))
    sim.run()
    return [
        trace.Tick(state, plan, after[0].reports) for (state, plan), after in zip(sim.log, sim.log[1:], strict=False)
    ]


def lines_of(ticks) -> list[str]:
    lines = trace.Lines()
    return [line for tick in ticks for line in lines.of(tick)]


def drawn(ticks) -> list[dict]:
    """Return the events of the ticks' time line."""
    recorder = trace.Recorder()
    for tick in ticks:
        recorder(*tick)
    return json.loads(b"{%b}" % trace.encoded(recorder, "chrome", 1 << 30))["traceEvents"]


@pytest.mark.parametrize("cost", [CPU_SHAPE, GPU_SHAPE], ids=["cpu", "gpu"])
def test_every_recorded_plan_comes_out_again(cost):
    ticks = recorded(cost, bmt_budget=-1.0)
    lines = lines_of(ticks)
    assert list(trace.differences(lines)) == []
    assert len([x for x in lines if "new_context" in x]) == 1, "tables are written once"


def test_states_survive_the_file_unchanged():
    tick = recorded()[30]
    context, line = map(json.loads, lines_of([tick]))
    assert trace.unpack_state(line, context) == tick.state


def test_a_changed_plan_is_found_and_named():
    lines = lines_of(recorded())
    at = next(i for i, x in enumerate(lines) if '"run_ns": 450000000' in x)
    lines[at] = lines[at].replace('"run_ns": 450000000', '"run_ns": 449999999')
    (found,) = trace.differences(lines)
    assert "run_ns" in found and f"line {at + 1}" in found


def test_the_command_tells_same_from_different(tmp_path, capsys):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    lines = lines_of(recorded())
    good.write_text("\n".join(lines) + "\n")
    bad.write_text("\n".join(lines).replace('"run_ns": 450000000', '"run_ns": 1') + "\n")
    assert trace.main(["replay", str(good)]) == 0
    assert trace.main(["replay", str(bad)]) == 1
    assert "recorded 1, now 450000000" in capsys.readouterr().out
    assert trace.main([]) == 2
    assert trace.main(["replay", "--help"]) == trace.main(["-h"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("usage: python -m uma_core.trace replay FILE")
    assert "uma-ctl trace --jsonl" in told and "Exit status" in told


def test_a_tick_is_shown_with_names_and_with_other_settings(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    ticks = recorded(guard_cap=1.01, pause_cap=1.02)
    path.write_text("\n".join(lines_of(ticks)) + "\n")
    number = str(next(t.state.tick for t in ticks if t.plan.guard is not None and t.plan.guard.holds_prompt))
    assert trace.main(["show", str(path), number]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tick"] == int(number) and told["guard"]["holds_prompt"]
    assert 0 <= told["now_ns"] - min(view["t_progress_ns"] for view in told["sessions"]) < 10_000 * MS
    assert {view["phase"] for view in told["sessions"]} == {"decode", "prefill"}
    state = next(t.state for t in ticks if t.state.tick == int(number))
    assert told["learned"]["factors"]["prefill"] == round(state.cost.factors[PREFILL], 3)
    assert told["learned"]["debt_ms"] == round(state.memory.latency_guard.debt_ns / MS, 4)
    assert not DEPRECATED.keys() & told["guard"].keys()
    assert trace.main(["show", str(path), number, "guard_cap=3.0", "pause_cap=4.0"]) == 0
    assert not json.loads(capsys.readouterr().out)["guard"]["holds_prompt"]
    assert trace.main(["show", str(path), "999999"]) == 1
    assert f"{path} has ticks {ticks[0].state.tick} to {ticks[-1].state.tick}" in capsys.readouterr().err
    assert trace.main(["show", str(path), number, "no_such=1"]) == 2
    assert "no_such" in capsys.readouterr().err
    assert trace.main(["show", str(path), "first"]) == 2
    assert "TICK is a number, not 'first'" in capsys.readouterr().err


def test_the_command_survives_a_closed_pipe_and_names_an_absent_file(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines_of(recorded())) + "\n")
    command = [sys.executable, "-m", "uma_core.trace", "show"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*command, str(path)], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
    done = subprocess.run([*command, str(tmp_path / "none")], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == f"{tmp_path / 'none'}: No such file or directory\n"


def test_what_could_not_be_read_back_is_refused_at_once():
    class Foreign(tuple):
        _fields = ("a",)

    for value in (Foreign((1,)), object()):
        with pytest.raises(ValueError, match=r"record|CARRIED"):
            lines_of([trace.Tick(state_of(talking(0), memory=value), Plan(), ())])


def test_the_ring_keeps_the_last_ticks_only():
    ring = trace.Recorder(5)
    for tick in recorded():
        ring(*tick)
    assert len(ring.ticks) == 5


def test_the_time_line_is_chrome_json_with_ticks_calls_and_sessions():
    ticks = recorded()
    events = drawn(ticks)
    assert all({"ph", "pid", "name"} <= set(e) for e in events)
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] > 0 for e in spans)
    assert {e["name"] for e in spans if e["pid"] == 1} >= {"decode 1 rows", f"tick {ticks[0].state.tick}"}
    assert {e["tid"] for e in spans if e["pid"] == 2} == {1, 2, 3, 4}, "one row per session"
    assert any(e["ph"] == "C" for e in events)


def test_the_time_line_explains_each_decision_beside_a_chat():
    """A tick's arguments have the limits, the room, what was learnt, and what was needed. A refusal gives its
    numbers.
    """
    sim = Sim(CPU_SHAPE, keep_states=True, noise=0.03)
    sim.submit(Job(32, 60, Priority.BACKGROUND, 2))
    sim.submit(Job(32, 100, at_ns=400 * MS))
    sim.submit(Job(900, 1, Priority.BACKGROUND, 2, at_ns=800 * MS))
    sim.run()
    events = drawn(trace.Tick(state, plan, state.reports) for state, plan in sim.log)
    ticks = [e["args"] for e in events if e["name"].startswith("tick ")]
    guards = [args["guard"] for args in ticks if "guard" in args]
    assert len(guards) > 20
    for guard in guards:
        assert 0 < guard["round_ms"] < guard["everyday_ms"] < guard["long_ms"]
        assert {"room_ms", "long_room_ms", "need_ms", "error", "credit"} <= guard.keys()
    held = [args for args in ticks if "guard" in args and args["guard"]["holds_rows"]]
    assert held, "background streams do not fit beside this chat"
    for args in held:
        (note,) = [note for note in args["notes"] if "background streams" in note and "latency_guard" in note]
        room = r"of them \d+\.\d{3} ms > (long )?room \d+\.\d{3}( \(long \d+\.\d{3}\))?, credit \d\.\d\d$"
        assert re.search(f"{room}|: prompt 3 goes first: prompts had .* ms less than background streams$", note), note


def test_the_time_line_tells_how_far_a_run_came():
    names = [e["name"] for e in drawn(recorded()) if e["name"].startswith("prefill")]
    assert any("of a chunk of" in name for name in names)
    assert not any("0 tokens" in name for name in names)


def test_what_is_no_recording_is_refused(tmp_path, capsys):
    path = tmp_path / "t"
    lines = lines_of(recorded())
    for text in (
        "",
        "# Notes\n\nNot one line of them is JSON.\n",
        lines[0] + "\n",
        "{}\n",
        "hello\n" + lines[1] + "\n",
        "\n".join([lines[0], lines[1][:-9], *lines[2:]]),
    ):
        path.write_text(text)
        assert trace.main(["replay", str(path)]) == 2
        assert "is not a recording of this version" in capsys.readouterr().err
