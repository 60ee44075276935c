"""Ctrl-C while an answer is generated: the first one asks the daemon to cancel it, the second one exits at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.is_set = False


@contextmanager
def cancel_on_sigint(cancel: Callable[[], None]) -> Iterator[Interrupt]:
    """Call `cancel` at the first SIGINT within the block; a second one raises KeyboardInterrupt.

    The handler does not raise at the first one, so the interrupted read continues and no byte of the stream is lost.
    Enter the block after the request was sent: a cancel sent in the middle of it would break the frame.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield interrupt
        return

    def on_sigint(number: int, frame: FrameType | None) -> None:
        if interrupt.is_set:
            raise KeyboardInterrupt
        interrupt.is_set = True
        cancel()

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
