"""Transfers that run one after the other."""

from __future__ import annotations

from uma_core.cache.chain import Chain, Steps
from uma_core.clock import ManualClock
from uma_core.errors import ErrorCode, UmaError


class Step:
    """Takes `n` steps of 10 ns, and records what happens to it."""

    def __init__(self, clock: ManualClock, n: int, log: list[str], name: str, fails: bool = False) -> None:
        self.n_bytes = 0
        self._clock, self._n, self._log, self._name, self._fails = clock, n, log, name, fails

    def step(self, until_ns: int) -> bool:
        while self._n:
            self._n -= 1
            self._clock.advance(10)
            if self._fails:
                raise UmaError(ErrorCode.STATE_RESTORE_FAILED)
            if self._n and self._clock.now_ns() >= until_ns:
                return False
        return True

    def close(self) -> None:
        self._log.append(f"close {self._name}")


def test_legs_run_in_order_and_stop_at_the_time() -> None:
    clock, log = ManualClock(0), []

    def steps() -> Steps:
        yield Step(clock, 3, log, "a")
        log.append("between")
        yield Step(clock, 2, log, "b")
        log.append("end")

    chain = Chain(steps(), clock)
    assert not chain.step(20) and clock.now_ns() == 20
    assert not chain.step(25) and log == ["close a", "between"]
    assert chain.step(1000) and log == ["close a", "between", "close b", "end"]
    assert chain.is_done and chain.step(0)
    chain.close()
    assert clock.now_ns() == 50


def test_nothing_to_do_is_done_at_once() -> None:
    def steps() -> Steps:
        return
        yield

    assert Chain(steps(), ManualClock(0)).is_done


def test_an_error_of_a_leg_reaches_the_plan_after_the_leg_is_closed() -> None:
    clock, log = ManualClock(0), []

    def steps() -> Steps:
        try:
            yield Step(clock, 1, log, "bad", fails=True)
        except UmaError:
            log.append("caught")
        yield Step(clock, 1, log, "next")

    chain = Chain(steps(), clock)
    assert chain.step(100)
    assert log == ["close bad", "caught", "close next"]


def test_closing_early_closes_the_leg_and_then_the_plan() -> None:
    clock, log = ManualClock(0), []

    def steps() -> Steps:
        try:
            yield Step(clock, 5, log, "a")
        finally:
            log.append("cleaned")

    chain = Chain(steps(), clock)
    chain.step(10)
    chain.close()
    chain.close()
    assert log == ["close a", "cleaned"]


def test_an_interruption_ends_the_present_step() -> None:
    clock, log = ManualClock(0), []

    def steps() -> Steps:
        try:
            yield Step(clock, 5, log, "a")
        except UmaError as error:
            log.append(error.error.name)

    chain = Chain(steps(), clock)
    chain.interrupt(UmaError(ErrorCode.STATE_RESTORE_FAILED))
    assert log == ["close a", "STATE_RESTORE_FAILED"]
    assert chain.is_done and chain.step(0)
