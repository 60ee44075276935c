"""Finds out whether another user could replace a file: a false socket there would receive clients' prompts.

A folder is safe if it belongs to this user or root, and other users cannot rename its entries: they may not write to
it, or it is sticky like /tmp, where only an entry's owner may rename it. That must hold for every folder on the path,
because a user who can rename one of them can replace everything below it, and for the links on the path.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat

from uma_core.endpoint import ROOT

LINKS_MOST = 40  # as in Linux's path lookup


def weakness(path: str, uid: int) -> str:
    """Return why users other than `uid` and root could replace `path`, which need not exist; "": they cannot."""
    here, n_links = "/", 0
    try:
        folder = os.path.dirname(path)
        # the working folder may have been removed; only a relative path needs it
        todo = _parts(folder if os.path.isabs(folder) else os.path.join(os.getcwd(), folder))
        reason = _of_folder(here, os.stat(here), uid)
        while todo and not reason:
            name = todo.pop()
            if name == "..":
                here = os.path.dirname(here)
                continue
            entry = os.path.join(here, name)
            found = os.lstat(entry)
            if not stat.S_ISLNK(found.st_mode):
                here, reason = entry, _of_folder(entry, found, uid)
                continue
            n_links += 1
            if found.st_uid not in (uid, ROOT) or n_links > LINKS_MOST:
                return f"the link {entry} belongs to {user_name(found.st_uid)}"
            target = os.readlink(entry)
            here = "/" if target.startswith("/") else here
            todo += _parts(target)
    except OSError:
        return ""  # a missing folder is reported when the socket is bound
    return reason


def _parts(path: str) -> list[str]:
    """Return the last part first. `..` is kept, because after a link it is not the parent that the path shows."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _of_folder(folder: str, found: os.stat_result, uid: int) -> str:
    if found.st_uid not in (uid, ROOT):
        return f"the folder {folder} belongs to {user_name(found.st_uid)}"
    if found.st_mode & stat.S_ISVTX:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return f"every user may write to the folder {folder}"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, uid):
        return f"the group {group_name(found.st_gid)} may write to the folder {folder}"
    return ""


def _is_private(gid: int, uid: int) -> bool:
    """Whether only this user or root is in the group: root's group, or the user's own, which has the same name."""
    if gid == ROOT:
        return True
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def group_name(gid: int) -> str:
    try:
        return f"{grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return f"gid {gid}"
