"""How long a request that came now would wait."""

from __future__ import annotations

from tests.executor.rig import Rig
from uma_core.engine.fake.engine import FakeModel
from uma_core.executor.waits import predicted_waits_ms
from uma_core.types import Priority


def waits(rig: Rig) -> dict[str, float]:
    return predicted_waits_ms(rig.executor, rig.clock.now_ns())


def test_an_idle_engine_keeps_nobody_waiting() -> None:
    assert waits(Rig()) == {"interactive": 0, "background": 0}


def test_streams_beside_free_sequences_keep_nobody_waiting() -> None:
    rig = Rig(FakeModel(n_seq_max=4))
    rig.submit("a", max_tokens=200)
    for _ in range(20):
        rig.tick()
    assert waits(rig) == {"interactive": 0, "background": 0}


def test_who_comes_waits_longer_the_more_there_are_before() -> None:
    rig, last = Rig(FakeModel(n_seq_max=1)), -1.0
    rig.submit("runs", max_tokens=100, priority=Priority.INTERACTIVE)
    rig.tick()
    for i in range(4):
        rig.submit(f"r{i}", max_tokens=100, priority=Priority.INTERACTIVE)
        now = waits(rig)["interactive"]
        assert now > last
        last = now


def test_it_is_as_long_as_the_running_request_takes() -> None:
    rig = Rig(FakeModel(n_seq_max=1))
    rig.submit("runs", max_tokens=500, priority=Priority.INTERACTIVE)
    while len(rig.text("runs")) < 100:
        rig.tick()
    told, begin = waits(rig)["interactive"], rig.clock.now_ns()
    rig.run()
    assert 0.7 < told * 1e6 / (rig.clock.now_ns() - begin) < 1.4


def test_background_work_that_waits_is_not_before_an_interactive_request() -> None:
    rig = Rig(FakeModel(n_seq_max=1))
    rig.submit("runs", max_tokens=100, priority=Priority.INTERACTIVE)
    rig.tick()
    before = waits(rig)
    for i in range(3):
        rig.submit(f"r{i}", max_tokens=500, priority=Priority.BACKGROUND)
    after = waits(rig)
    assert after["interactive"] <= before["interactive"] and after["background"] > before["background"]


def test_a_long_prompt_that_is_read_counts() -> None:
    rig = Rig(FakeModel(n_seq_max=4))
    rig.submit("long", "a long prompt, " * 200, max_tokens=5, priority=Priority.INTERACTIVE)
    rig.tick()
    assert waits(rig)["interactive"] > 0
