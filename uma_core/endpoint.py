"""Where the daemon's socket is, and which users are trusted to listen on it, for the daemon and all its clients.

Any user may create a socket in /tmp before the daemon does, so a client checks who listens before it sends anything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from uma_core.peer import peer_of

NAME = "uma.sock"
FALLBACK = f"/tmp/{NAME}"
GIVEN = "UMA_SOCK"  # the variable with the path itself
TRUSTED = "UMA_TRUST_UIDS"  # other users whose daemon a client may talk to, besides one's own and root's: `1001,1002`
ROOT = 0
UNKNOWN = -1


def places(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths where a daemon may be, in the order in which clients try them; the daemon creates its socket at
    the first.

    Source: XDG Base Directory Specification: a folder that does not belong to the user is ignored.
    """
    if given := environ.get(GIVEN, ""):
        return (given,)
    folder = environ.get("XDG_RUNTIME_DIR", "")
    return (os.path.join(folder, NAME), FALLBACK) if _is_own_folder(folder) else (FALLBACK,)


def _is_own_folder(folder: str) -> bool:
    try:
        return os.path.isabs(folder) and os.path.isdir(folder) and os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False


def trusted_uids(environ: Mapping[str, str]) -> frozenset[int]:
    """Return the users whose daemon may get this user's requests. Raises: ValueError for a variable that is not a list
    of numbers.
    """
    named = [int(word) for word in environ.get(TRUSTED, "").replace(",", " ").split()]
    return frozenset({os.geteuid(), ROOT, *named})


def stranger(connection: socket.socket, path: str, environ: Mapping[str, str]) -> int | None:
    """Return the listening user if that user is not trusted. Raises: ValueError, OSError.

    The kernel tells who created the listening socket. If it does not, the file's owner is used instead.
    """
    uid = peer_of(connection).uid
    if uid == UNKNOWN:
        uid = os.stat(path).st_uid
    return None if uid in trusted_uids(environ) else uid
