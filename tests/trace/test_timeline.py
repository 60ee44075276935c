"""Ticks are drawn as a time line."""

from __future__ import annotations

import json
import re

from perf.simulator import MS, Job, Sim
from tests.trace.support import busy_second
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.trace.lines import Tick
from uma_core.trace.recorder import Recorder, encoded
from uma_core.types import Priority


def drawn(ticks) -> list[dict]:
    """Return the events of the ticks' time line."""
    recorder = Recorder()
    for tick in ticks:
        recorder(*tick)
    return json.loads(b"{%b}" % encoded(recorder, "chrome", 1 << 30))["traceEvents"]


def test_the_time_line_is_chrome_json_with_ticks_calls_and_sessions():
    ticks = busy_second()
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
    events = drawn(Tick(state, plan, state.reports) for state, plan in sim.log)
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
        room = r"of them \d+\.\d{3} ms > (long )?room \d+\.\d{3}( \(long \d+\.\d{3}\))?, credit \d\.\d\d"
        room += r"(, \d+ rounds without a token, forced after \d+.*)?$"
        assert re.search(f"{room}|: prompt 3 goes first: prompts had .* ms less than background streams$", note), note


def test_the_time_line_tells_how_far_a_run_came():
    names = [e["name"] for e in drawn(busy_second()) if e["name"].startswith("prefill")]
    assert any("of a chunk of" in name for name in names)
    assert not any("0 tokens" in name for name in names)
