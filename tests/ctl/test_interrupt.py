"""Ctrl-C: the first one cancels, the second one exits."""

from __future__ import annotations

import signal
import threading

import pytest

from uma_ctl.interrupt import cancel_on_sigint


def test_the_first_cancels_and_the_second_exits() -> None:
    before, cancels = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), cancel_on_sigint(lambda: cancels.append(1)) as interrupt:
        assert not interrupt.is_set
        signal.raise_signal(signal.SIGINT)
        assert interrupt.is_set and cancels == [1]
        signal.raise_signal(signal.SIGINT)
    assert cancels == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_cancel_that_fails_leaves_the_old_handler_behind() -> None:
    before = signal.getsignal(signal.SIGINT)

    def fail() -> None:
        raise OSError

    with pytest.raises(OSError), cancel_on_sigint(fail):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_get_no_handler() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with cancel_on_sigint(lambda: None) as interrupt:
            seen.append((interrupt.is_set, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
