"""The configuration is read on a thread that blocks no other: a file system that does not answer costs one reload and
nothing else.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from uma_core.config.load import Inputs, Sources, load
from uma_core.config.options import Config
from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics.catalog import new_registry
from uma_core.server.io.loop import Loop
from uma_core.server.lifecycle import reload
from uma_core.server.lifecycle.reload import Reloader

WAIT_S = 20.0


class FakeHost:
    engine = object()
    is_loading = False

    def apply(self, config, done):
        done(None)


class World:
    """A reloader on a loop that this thread turns. Reading waits while `answers` is cleared."""

    def __init__(self, monkeypatch, limit_ns: int) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.loop = Loop()
        self.host = FakeHost()
        inputs = Inputs({}, {}, "uma.yaml")
        self.reloader = Reloader(Config(), Sources(inputs, {}, ()), self.loop, self.host, None, new_registry())
        self.n_read = 0
        monkeypatch.setattr(reload, "READ_NS", limit_ns)
        monkeypatch.setattr(reload, "load", self._load)

    def _load(self, inputs):
        self.n_read += 1
        assert self.answers.wait(WAIT_S)
        return load(inputs._replace(path=""))

    def ask(self, **args) -> list:
        outcomes: list = []
        self.reloader.reload(outcomes.append, **args)
        return outcomes

    def turn_until(self, condition) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline
            self.loop.turn(0.05)


@pytest.fixture
def world(monkeypatch, request):
    made = World(monkeypatch, getattr(request, "param", 10**12))
    yield made
    made.answers.set()
    made.loop.close()


def test_the_loop_turns_while_the_file_is_read(world):
    world.answers.clear()
    outcomes = world.ask()
    n = world.loop.n_turns
    world.turn_until(lambda: world.loop.n_turns > n + 3)
    assert not outcomes
    assert world.reloader.report()["is_under_way"]
    (busy,) = world.ask(is_check=True)
    assert busy.error is ErrorCode.RELOAD_BUSY
    world.answers.set()
    world.turn_until(lambda: outcomes)
    assert outcomes[0]["generation"] == 2
    assert not world.reloader.report()["is_under_way"]


@pytest.mark.parametrize("world", [20_000_000], indirect=True)
@pytest.mark.parametrize("is_check", [True, False])
def test_a_file_system_that_does_not_answer_fails_the_reload_and_later_ones_until_it_does(world, is_check):
    world.answers.clear()
    outcomes = world.ask(is_check=is_check)
    world.turn_until(lambda: outcomes)
    assert outcomes[0].error is ErrorCode.CONFIG_INVALID
    assert "could not be read within" in outcomes[0].message
    assert world.reloader.report()["last"] == ("none" if is_check else "failed")
    (again,) = world.ask(is_check=is_check)
    assert isinstance(again, UmaError) and "still being read" in again.message
    assert world.n_read == 1, "no thread is left behind for each attempt"
    world.answers.set()
    world.turn_until(lambda: world.reloader._reader is None)
    world.loop.turn(0)
    assert world.reloader.report()["generation"] == 1, "what came too late is not put in force"
    outcomes = world.ask()
    world.turn_until(lambda: outcomes)
    assert outcomes[0]["generation"] == 2


def test_the_end_of_the_daemon_does_not_wait_for_the_file(world):
    world.answers.clear()
    outcomes = world.ask()
    world.reloader.give_up()
    assert outcomes[0].error is ErrorCode.SHUTTING_DOWN


def test_what_cannot_be_read_is_refused(world, monkeypatch):
    def fail(inputs):
        raise UmaError(ErrorCode.CONFIG_INVALID, "no")

    monkeypatch.setattr(reload, "load", fail)
    outcomes = world.ask()
    world.turn_until(lambda: outcomes)
    assert (outcomes[0].error, outcomes[0].message) == (ErrorCode.CONFIG_INVALID, "no")
    assert world.reloader.report()["last"] == "failed"


def test_a_reload_right_after_another_ones_answer_is_taken(monkeypatch):
    """The thread that read the file may take a moment longer to end."""
    world = World(monkeypatch, limit_ns=10**10)
    real = reload.run_aside

    def lingering(*args):
        real(*args)
        return SimpleNamespace(is_alive=lambda: True)

    monkeypatch.setattr(reload, "run_aside", lingering)
    for _ in range(2):
        outcomes = world.ask(is_check=True)
        world.turn_until(lambda outcomes=outcomes: outcomes)
        assert not isinstance(outcomes[0], UmaError), outcomes


def test_an_option_that_only_a_restart_can_change_is_named_with_its_origin(world, monkeypatch):
    """A preset brings options that its user never wrote."""
    monkeypatch.setattr(reload, "load", lambda inputs: load(inputs._replace(path="", flags={"preset": "server"})))
    outcomes = world.ask(is_check=True)
    world.turn_until(lambda: outcomes)
    assert outcomes[0].message == "only a restart can change ipc.backlog (preset server)"
    assert outcomes[0].detail["keys"] == ["ipc.backlog"]
