"""`--engine auto` in the daemon: the first start compares the engines, a reload does not, and a later start remembers
the choice.
"""

from __future__ import annotations

import re

from tests.daemon.support import DRAFT, TINY

MEASURED = re.compile(
    r"engine auto took (\w+): the graph engine has"
    r" [\d.]+ times llama.cpp's speed \(.*128 tokens of a prompt\)(, seen beside other work)?"
)
COMPARED = "the comparison of the engines took"


def note_of(daemon):
    """Return what `status` says about the choice. Check that it is true and logged."""
    engine = daemon.status()["engine"]
    (note,) = [note for note in engine["notes"] if note.startswith("engine auto took")]
    assert note.startswith(f"engine auto took {engine['engine']}: ")
    daemon.logs(note)
    return note


def test_a_first_start_compares_a_reload_does_not_and_a_later_start_remembers(serve_model, supervisor):
    first = serve_model("--calibrate", "auto", model=DRAFT, environ=supervisor.environ())
    at, _ = supervisor.hear("STATUS", "the engines are compared")
    assert at < supervisor.hear("READY", "1")[0]
    assert "EXTEND_TIMEOUT_USEC" in supervisor.messages[at - 1]
    note = note_of(first)
    measured = MEASURED.match(note)
    assert measured
    assert first.generate("The shell is", max_tokens=8)[-1]["reason"] == "length"
    assert first.ask("reload", model=str(TINY))["event"] == "reply"
    assert re.match(rf"engine auto took {measured[1]}: .*next start with this model compares them", note_of(first))
    assert first.log.count(COMPARED) == 1
    assert first.stop() == 0
    second = serve_model("--calibrate", "auto", model=DRAFT)
    is_calm = not measured[2]
    assert second.log.count(COMPARED) == (0 if is_calm else 1)
    assert note_of(second) == note or not is_calm


def test_a_reload_with_other_options_keeps_the_engine_in_use(serve_model, folder):
    config = folder / "config.yaml"
    config.write_text("engine: {engine: graph, n_seq: 2}")
    daemon = serve_model("--config", str(config), "--calibrate", "auto", model=DRAFT)
    config.write_text("engine: {engine: auto, n_seq: 3}")
    assert daemon.ask("reload")["event"] == "reply"
    engine = daemon.status()["engine"]
    assert (engine["engine"], engine["n_seq_max"]) == ("graph", 3)
    assert "it was in use, and no comparison is stored" in note_of(daemon)
    config.write_text("engine: {engine: auto, n_seq: 2, flash_attn: 'off'}")
    assert daemon.ask("reload")["event"] == "reply"
    assert "the graph engine does not support attention that is not fused" in note_of(daemon)


def test_without_calibration_nothing_is_compared(serve_model):
    daemon = serve_model("--calibrate", "off", model=DRAFT)
    assert "not compared while the calibration is off" in note_of(daemon)
    assert COMPARED not in daemon.log


def test_without_room_nothing_is_compared(serve_model):
    daemon = serve_model(
        "--calibrate", "auto", model=TINY, has_levers=True, environ={"TEST_LEVERS": '{"available_mb": 105}'}
    )
    assert "barely fits into memory" in note_of(daemon)
