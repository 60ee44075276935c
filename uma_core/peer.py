"""Who is at the other end of a Unix socket, by the kernel's word, and whether that peer still is there."""

from __future__ import annotations

import logging
import select
import socket
import struct
import sys
from typing import Any

from uma_core.types import Peer

log = logging.getLogger(__name__)

_SOL_LOCAL = 0  # macOS <sys/un.h>
_LOCAL_PEERPID = 2
_UCRED = struct.Struct("iII")  # Linux: pid, uid, gid


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel; unknown parts are -1. Source: unix(7) SO_PEERCRED; getpeereid(3), LOCAL_PEERPID."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            return Peer(uid, gid, pid)
        import ctypes  # clients start faster without it

        return bsd_peer(sock, ctypes.CDLL(None, use_errno=True))
    except (OSError, AttributeError) as error:
        log.warning("no peer credentials: %s", error)
        return Peer()


def bsd_peer(sock: Any, libc: Any) -> Peer:
    """Use getpeereid, and on macOS the pid option beside it."""
    import ctypes

    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    if libc.getpeereid(sock.fileno(), ctypes.byref(uid), ctypes.byref(gid)) != 0:
        raise OSError(ctypes.get_errno(), "getpeereid failed")
    pid = sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID) if sys.platform == "darwin" else -1
    return Peer(uid.value, gid.value, pid)


def has_hung_up(sock: socket.socket) -> bool:
    """Tell whether the peer closed both directions, not only the one in which it writes."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)  # asked for in vain, but macOS tells of a hang-up only through it
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
