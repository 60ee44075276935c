"""Whether other users could replace a file."""

from __future__ import annotations

import os
import stat

import pytest

from uma_core.server.io import folders
from uma_core.server.io.folders import weakness

ME = os.geteuid()
OTHER = ME + 4242


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


def test_ones_own_folder_and_the_sticky_one_of_all_are_safe(folder):
    assert weakness(str(folder / "s"), ME) == ""
    assert weakness("/tmp/s", ME) == ""
    assert weakness("/s", ME) == ""
    folder.chmod(0o1777)
    assert weakness(str(folder / "s"), ME) == ""


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o2777])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_to_which_others_may_write(folder, mode, depth):
    """This includes parent folders: a user who can rename a parent replaces everything in it."""
    inner = folder / "a"
    inner.mkdir(mode=0o700)
    folder.chmod(mode)
    assert weakness(str((inner if depth else folder) / "s"), ME) == f"every user may write to the folder {folder}"


def test_a_folder_to_which_a_group_may_write(folder, monkeypatch):
    folder.chmod(0o770)
    monkeypatch.setattr(folders, "_is_private", lambda gid, uid: False)
    assert "may write to the folder" in weakness(str(folder / "s"), ME)
    monkeypatch.setattr(folders, "_is_private", lambda gid, uid: True)
    assert weakness(str(folder / "s"), ME) == ""


def test_another_users_folder(folder, monkeypatch):
    lstat = os.lstat

    def foreign_there(path):
        found = lstat(path)
        return os.stat_result((*found[:4], OTHER, *found[5:])) if path == str(folder) else found

    monkeypatch.setattr(os, "lstat", foreign_there)
    assert weakness(str(folder / "s"), ME) == f"the folder {folder} belongs to uid {OTHER}"


def test_links_are_followed_and_must_not_be_others(folder, tmp_path, monkeypatch):
    open_one = tmp_path / "open"
    open_one.mkdir()
    open_one.chmod(0o777)
    (tmp_path / "link").symlink_to(open_one)
    (tmp_path / "good").symlink_to(folder)
    assert weakness(str(tmp_path / "link" / "s"), ME) == f"every user may write to the folder {open_one}"
    assert weakness(str(tmp_path / "good" / "s"), ME) == ""
    assert (
        weakness(str(tmp_path / "link" / ".." / "good" / "s"), ME) == f"every user may write to the folder {open_one}"
    )
    lstat = os.lstat

    def foreign_links(path):
        found = lstat(path)
        return os.stat_result((*found[:4], OTHER, *found[5:])) if stat.S_ISLNK(found.st_mode) else found

    monkeypatch.setattr(os, "lstat", foreign_links)
    assert weakness(str(tmp_path / "good" / "s"), ME).startswith(f"the link {tmp_path}/good belongs to")


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "belongs to" in weakness(str(tmp_path / "a" / "s"), ME)


def test_a_relative_path_is_in_the_present_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert weakness("s", ME) == ""
    folder.chmod(0o777)
    assert weakness("s", ME) == f"every user may write to the folder {folder}"


def test_a_folder_that_is_not_there_is_the_binds_business():
    assert weakness("/nowhere/at/all/s", ME) == ""
