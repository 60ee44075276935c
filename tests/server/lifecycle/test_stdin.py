"""Standard input as a lifeline. With a daemon: tests/daemon/test_stdin.py."""

from __future__ import annotations

import os
import threading

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.server.lifecycle.stdin import PIECE, watch

WAIT_S = 20.0


def test_what_is_written_is_discarded_and_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with open(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        told = threading.Event()
        watch(told.set)
        os.write(write, b"x" * 3 * PIECE)
        assert not told.is_set()
        os.close(write)
        assert told.wait(WAIT_S)


def test_a_descriptor_that_cannot_be_read_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        told = threading.Event()
        watch(told.set)
        assert told.wait(WAIT_S)


def test_without_standard_input_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UmaError, match="stop_at_eof") as caught:
        watch(lambda: None)
    assert caught.value.error is ErrorCode.CONFIG_INVALID
