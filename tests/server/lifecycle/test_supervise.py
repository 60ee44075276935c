"""What a supervisor is told, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from uma_core.clock import ManualClock
from uma_core.server.io.loop import Loop
from uma_core.server.lifecycle import supervise
from uma_core.server.lifecycle.lifecycle import DEGRADED, DRAINING, READY, STARTING, STOPPING


class Notifier:
    def __init__(self, watchdog_ns: int = 0, is_heard: bool = True) -> None:
        self.watchdog_ns, self.is_heard = watchdog_ns, is_heard
        self.sent: list[dict[str, Any]] = []

    def send(self, **fields: Any) -> None:
        self.sent.append(fields)

    def extend(self, ns: int) -> None:
        self.sent.append({"extend": ns})

    def heard(self) -> list[dict[str, Any]]:
        heard, self.sent = self.sent, []
        return heard


class Supervised:
    def __init__(self, notifier: Notifier) -> None:
        self.clock = ManualClock(1)
        self.loop = Loop(self.clock)
        self.calls: list[Any] = []
        self.lifecycle = SimpleNamespace(
            state=STARTING, is_leaving=False, n_remaining=lambda: 2, reason=lambda: "no model"
        )
        host = SimpleNamespace(
            doing="loading", progress=0.5, engine=SimpleNamespace(info=SimpleNamespace(model_name="m"))
        )
        compute = SimpleNamespace(submit=self.calls.append)
        self.it = supervise.Supervision(notifier, self.loop, compute, host, self.lifecycle)

    def become(self, state: str) -> None:
        self.lifecycle.state = state
        self.it.on_state(state)

    def after(self, ns: int) -> None:
        self.clock.advance(ns)
        self.loop.turn(0)


@pytest.fixture
def supervised(request):
    made = []

    def make(notifier: Notifier) -> Supervised:
        made.append(Supervised(notifier))
        return made[-1]

    yield make
    for each in made:
        each.loop.close()


def test_it_is_ready_once_even_without_a_model(supervised):
    notifier = Notifier()
    daemon = supervised(notifier)
    for state in (STARTING, DEGRADED, STARTING, READY, DRAINING, STOPPING):
        daemon.become(state)
    assert notifier.heard() == [
        {"STATUS": "loading: 50%"},
        {"READY": 1, "STATUS": "degraded: no model"},
        {"STATUS": "loading: 50%"},
        {"STATUS": "serving m"},
        {"STATUS": "draining: 2 requests still run"},
        {"STOPPING": 1, "STATUS": "stopping"},
    ]


def test_a_load_asks_for_time_until_it_takes_too_long(supervised):
    notifier = Notifier()
    daemon = supervised(notifier)
    daemon.it.start()
    assert notifier.heard() == [{"extend": supervise.ASK_FOR_NS}, {"STATUS": "loading: 50%"}]
    daemon.after(supervise.ASK_EVERY_NS)
    assert len(notifier.heard()) == 2
    daemon.after(supervise.LOAD_LIMIT_NS)
    assert notifier.heard() == []


@pytest.mark.parametrize(
    ("state", "is_leaving", "asks"), [(READY, False, 0), (DRAINING, False, 0), (DRAINING, True, 2), (DEGRADED, True, 0)]
)
def test_only_a_drain_to_exit_asks_for_time_later(supervised, state, is_leaving, asks):
    notifier = Notifier()
    daemon = supervised(notifier)
    daemon.it.start()
    daemon.lifecycle.state, daemon.lifecycle.is_leaving = state, is_leaving
    notifier.heard()
    daemon.after(supervise.ASK_EVERY_NS)
    assert len(notifier.heard()) == asks


def test_the_watchdog_is_fed_only_when_the_compute_thread_answers(supervised):
    notifier = Notifier(watchdog_ns=supervise.BEATS_PER_WATCHDOG * 100)
    daemon = supervised(notifier)
    daemon.it.start()
    notifier.heard()
    for _ in range(5):
        daemon.after(100)
    assert notifier.heard() == [] and len(daemon.calls) == 1, "a hung thread is asked once"
    daemon.calls.pop().reply(None, None)
    daemon.after(0)
    assert notifier.heard() == [{"WATCHDOG": 1}]
    daemon.after(100)
    assert len(daemon.calls) == 1


def test_without_a_supervisor_nothing_is_started(supervised):
    notifier = Notifier(watchdog_ns=300, is_heard=False)
    daemon = supervised(notifier)
    daemon.it.start()
    daemon.after(supervise.ASK_EVERY_NS)
    assert not notifier.heard() and not daemon.calls
