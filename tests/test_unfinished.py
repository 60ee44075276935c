"""A file whose writer was killed can be told from a file that is still being written: at once, and without the
clock.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from uma_core import unfinished
from uma_core.unfinished import hold, is_left_over


def judged(path: Path) -> bool:
    return is_left_over(str(path), path.stat())


@pytest.mark.parametrize("t", [0, 1 << 40])
def test_what_is_held_is_being_written_whatever_the_clock_says(tmp_path: Path, t: int) -> None:
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        hold(file.fileno())
        file.write(b"half")
        os.utime(path, (t, t))
        assert not judged(path)
    assert judged(path)


def test_an_empty_file_may_not_be_held_yet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert not judged(path)
    os.utime(path, (0, 0))
    assert judged(path)


def test_without_locks_time_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(unfinished.fcntl, "flock", refuse)
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        hold(file.fileno())
        file.write(b"half")
    assert not judged(path)
    os.utime(path, (0, 0))
    assert judged(path)
