"""What a user is told if a load fails with an error of Python or of a library."""

from __future__ import annotations

import errno

import pytest

from uma_core.errors import ErrorCode
from uma_core.server.lifecycle.host import _load_failure


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (RuntimeError("can't start new thread"), ErrorCode.INSUFFICIENT_MEMORY, "ulimit -u"),
        (OSError(errno.ENOMEM, "no room"), ErrorCode.INSUFFICIENT_MEMORY, "no room"),
        (MemoryError("buffer"), ErrorCode.INSUFFICIENT_MEMORY, "buffer"),
        (RuntimeError("another"), ErrorCode.MODEL_LOAD_FAILED, "another"),
        (OSError(errno.EIO, "broken"), ErrorCode.MODEL_LOAD_FAILED, "broken"),
    ],
)
def test_a_load_without_memory_or_threads_is_not_the_model_s_fault(
    error: Exception, code: ErrorCode, word: str
) -> None:
    told = _load_failure(error)
    assert told.error is code and word in told.message
