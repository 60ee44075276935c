"""A thread that the system does not allow is an error with a code; any other failure stays what it is."""

from __future__ import annotations

import threading

import pytest

from uma_core import threads
from uma_core.errors import ErrorCode, UmaError


def refused(monkeypatch, error):
    def fail(self):
        raise error

    monkeypatch.setattr(threading.Thread, "start", fail)


def test_a_thread_runs():
    done = threading.Event()
    thread = threads.start(threading.Thread(target=done.set))
    thread.join(10)
    assert done.is_set()


@pytest.mark.parametrize("error", [RuntimeError(threads.REFUSAL), MemoryError()])
def test_a_refusal_has_a_code_and_names_the_thread(monkeypatch, error):
    refused(monkeypatch, error)
    with pytest.raises(UmaError, match="no thread for 'uma-disk'") as caught:
        threads.start(threading.Thread(name="uma-disk"))
    assert caught.value.error is ErrorCode.INSUFFICIENT_MEMORY and caught.value.__cause__ is error


def test_a_mistake_of_ours_is_no_refusal():
    thread = threads.start(threading.Thread(target=lambda: None))
    thread.join(10)
    with pytest.raises(RuntimeError, match="once") as caught:
        threads.start(thread)
    assert not threads.is_refusal(caught.value) and not threads.is_refusal(ValueError(threads.REFUSAL))
