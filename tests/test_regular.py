"""Files that other users may have replaced are read without waiting, and no further than needed."""

from __future__ import annotations

import os

import pytest

from uma_core.regular import read_regular


@pytest.mark.parametrize(("n_most", "n_read"), [(10, 10), (9, 10), (8, 9), (0, 1), (1000, 10)])
def test_one_byte_more_than_allowed_tells_that_a_file_is_too_large(tmp_path, n_most, n_read):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_regular(path, n_most) == b"0123456789"[:n_read]
    assert read_regular(str(path), n_most) == b"0123456789"[:n_read]


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file") as caught:
            read_regular(path, 10)
        assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "absent", 10)


def test_no_descriptor_stays_open(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/dev/fd")
    for _ in range(3):
        read_regular(tmp_path / "file", 10)
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(tmp_path / "pipe", 10)
    assert len(os.listdir("/dev/fd")) == len(before)
