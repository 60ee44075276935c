"""Blocking work on a thread of its own: its end is reported on the loop's thread, whatever it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from uma_core.clock import MonotonicClock
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.aside import run_aside
from uma_core.server.io.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop(MonotonicClock())
    yield loop
    loop.close()


def outcome(loop: Loop, work: Callable[[], Any], **more: Any) -> Any:
    """Return what `done` gets; it must get it on this thread, in a turn of the loop."""
    got: list[tuple[Any, threading.Thread]] = []
    thread = run_aside(loop, "work", work, lambda result: got.append((result, threading.current_thread())), **more)
    if thread.ident is not None:
        thread.join()
    assert not got
    loop.turn(0)
    ((result, on),) = got
    assert on is threading.current_thread()
    return result


def test_a_result_comes_back(loop: Loop) -> None:
    assert outcome(loop, threading.current_thread) is not threading.current_thread()


def test_an_error_with_a_code_comes_back_as_it_is(loop: Loop) -> None:
    error = UmaError(ErrorCode.MODEL_NOT_LOADED)

    def fail() -> None:
        raise error

    assert outcome(loop, fail) is error


def test_any_other_error_gets_a_code(loop: Loop) -> None:
    assert isinstance(outcome(loop, lambda: 1 // 0), UmaError)


def test_a_thread_that_cannot_start_is_an_error_that_comes_back(loop: Loop) -> None:
    error = UmaError(ErrorCode.INSUFFICIENT_MEMORY)

    def refuse(thread: threading.Thread) -> threading.Thread:
        raise error

    assert outcome(loop, lambda: 1, start=refuse) is error


def test_a_thread_does_not_hold_up_the_end_of_the_process(loop: Loop) -> None:
    assert run_aside(loop, "work", lambda: None, lambda result: None).daemon
