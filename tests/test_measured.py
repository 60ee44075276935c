"""Stored measurements of a machine are read back only if they are exactly as written. Anything else in their place is
ignored at once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from native.cache import cache_root
from uma_core import measured

VALUES = {"engine": "graph", "splits": [[1], [2, 1]], "ns": 1.5e6, "mixed": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "calibration" / "one.json"
    measured.save(path, VALUES)
    return path


def test_what_was_saved_is_loaded(path: Path) -> None:
    assert measured.load(path) == VALUES
    assert list(path.parent.iterdir()) == [path]


def test_every_changed_bit_shows(path: Path) -> None:
    raw = path.read_bytes()
    for i in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[i // 8] ^= 1 << i % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError):
            measured.load(path)


def test_a_part_of_a_file_and_another_file_s_content_show(path: Path) -> None:
    raw = path.read_bytes()
    for n in range(len(raw)):
        path.write_bytes(raw[:n])
        with pytest.raises(ValueError):
            measured.load(path)
    other = path.with_name("other.json")
    other.write_bytes(raw)
    with pytest.raises(ValueError, match="copied from another file"):
        measured.load(other)


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "device", "huge", "deep", "list", "number"])
def test_what_is_none_of_ours_is_refused_at_once(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("loop", "device"):
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.write_text({"deep": "[" * 100_000, "list": "[1]", "number": "1"}[kind])
    with pytest.raises((OSError, ValueError)):
        measured.load(path)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_another_user_may_have_written_is_not_read(path: Path, mode: int) -> None:
    """In a shared folder anybody could store a calibration, with its checksum."""
    path.chmod(mode)
    with pytest.raises(ValueError, match="only this user"):
        measured.load(path)
    measured.save(path, VALUES)
    assert measured.load(path) == VALUES


def test_a_link_that_another_user_left_is_not_written_through(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name in (path.name, path.with_suffix(f".{os.getpid()}.tmp").name):
        path.with_name(name).unlink(missing_ok=True)
        path.with_name(name).symlink_to(precious)
    measured.save(path, VALUES)
    assert measured.load(path) == VALUES
    assert precious.read_text() == "kept"


def test_what_cannot_be_stored_leaves_nothing_behind(path: Path) -> None:
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        measured.save(path, VALUES)
    assert list(path.parent.iterdir()) == [path]


def test_a_user_without_a_home_folder_has_no_store(homeless: Path) -> None:
    """A folder named `~` was made in the working directory, where other users may write, too."""
    with pytest.raises(FileNotFoundError, match="set HOME or XDG_CACHE_HOME"):
        measured.folder()


def test_a_tilde_in_the_variable_is_the_home_folder_as_for_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UMA_BUILD_CACHE", "~/here")
    assert measured.home() == cache_root() == tmp_path / "here"


def test_text_of_all_languages_is_kept(path: Path) -> None:
    measured.save(path, {"reason": "schneller, 1,3-mal: später ✓"})
    assert json.loads(path.read_text())["values"] == measured.load(path)
