"""One step of relief for each signal of pressure."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import uma_core.metrics.catalog as m
from uma_core.clock import ManualClock
from uma_core.server.io.loop import Loop
from uma_core.server.memory import budget, relief


@pytest.fixture
def loop():
    loop = Loop(ManualClock(1))
    yield loop
    loop.close()


class Compute:
    """Runs calls when it is told to."""

    def __init__(self, *steps: int | Exception) -> None:
        self.steps = list(steps)
        self.calls: list[Any] = []
        self.executors = [self, SimpleNamespace(relieve=lambda: 1)]
        self.submit = self.calls.append

    def relieve(self) -> int:
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def run(self) -> None:
        call = self.calls.pop(0)
        try:
            result = call.function()
        except Exception as error:
            call.reply(None, error)
        else:
            call.reply(result, None)


@pytest.fixture
def given(monkeypatch):
    given = threading.Semaphore(0)
    monkeypatch.setattr(budget, "give_back", given.release)
    return given


def test_a_signal_during_a_step_asks_for_no_second_one(loop, given):
    compute, registry = Compute(10, 20), m.new_registry()
    reaction = relief.Relief(loop, compute, registry)
    for n_bytes in (11, 32):  # of both executors, in all
        reaction.on_pressure()
        reaction.on_pressure()
        assert len(compute.calls) == 1
        compute.run()
        loop.turn(0)
        assert given.acquire(timeout=20), "what was freed goes back to the system"
        assert registry.counter(m.RELIEVED_BYTES).value == n_bytes


def test_a_step_that_fails_is_not_the_last_one(loop, given):
    compute, registry = Compute(RuntimeError("x"), 4), m.new_registry()
    reaction = relief.Relief(loop, compute, registry)
    for n_bytes in (0, 5):
        reaction.on_pressure()
        compute.run()
        loop.turn(0)
        assert registry.counter(m.RELIEVED_BYTES).value == n_bytes


def test_it_watches_as_the_configuration_says(loop, monkeypatch):
    watchers = []

    def watch(*given):
        watchers.append(SimpleNamespace(is_open=True))
        watchers[-1].close = lambda watcher=watchers[-1]: setattr(watcher, "is_open", False)
        return watchers[-1]

    monkeypatch.setattr(relief, "watch", watch)
    reaction = relief.Relief(loop, Compute(), m.new_registry())
    for mode, is_open in [
        ("off", []),
        ("auto", [True]),
        ("auto", [True]),
        ("off", [False]),
        ("auto", [False, True]),
    ]:
        reaction.apply(SimpleNamespace(cache=SimpleNamespace(pressure=mode)))
        assert [watcher.is_open for watcher in watchers] == is_open
    reaction.close()
    assert not watchers[-1].is_open
