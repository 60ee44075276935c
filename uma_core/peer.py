"""Identifies the peer of a Unix socket, as the kernel reports it, and tells whether the peer is still there."""

from __future__ import annotations

import errno
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
_SO_PEERGROUPS = 59  # <asm-generic/socket.h>; Python has no name for it
_GID_BYTES = 4
GETSOCKOPT_BYTES = 1024  # the most that Python's getsockopt returns
MOST_GROUPS = 65_536  # NGROUPS_MAX of Linux
_UCRED = struct.Struct("iII")  # Linux: pid, uid, gid


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel; unknown parts are -1. Source: unix(7) SO_PEERCRED; getpeereid(3), LOCAL_PEERPID."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            return Peer(uid, gid, pid, _groups(sock))
        import ctypes  # imported here, so that clients start faster

        return bsd_peer(sock, ctypes.CDLL(None, use_errno=True))
    except (OSError, AttributeError) as error:
        log.warning("no peer credentials: %s", error)
        return Peer()


def _groups(sock: socket.socket) -> tuple[int, ...]:
    """Return the supplementary groups that the peer had when it connected; () unless this is Linux 4.13 or later.

    Source: SO_PEERGROUPS in socket.h.
    """
    if not sys.platform.startswith("linux"):
        return ()
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, GETSOCKOPT_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            return ()
        packed = _long_getsockopt(sock, _SO_PEERGROUPS, MOST_GROUPS * _GID_BYTES)
    return struct.unpack(f"{len(packed) // _GID_BYTES}I", packed)


def _long_getsockopt(sock: socket.socket, name: int, n_bytes: int) -> bytes:
    """Call getsockopt without the limit of Python's, which returns at most 1 KiB. Raises: OSError."""
    import ctypes

    buffer, size = ctypes.create_string_buffer(n_bytes), ctypes.c_uint32(n_bytes)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, name, buffer, ctypes.byref(size)) != 0:
        raise OSError(ctypes.get_errno(), "getsockopt failed")
    return buffer.raw[: size.value]


def bsd_peer(sock: Any, libc: Any) -> Peer:
    """Use getpeereid, and on macOS also the pid option."""
    import ctypes

    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    if libc.getpeereid(sock.fileno(), ctypes.byref(uid), ctypes.byref(gid)) != 0:
        raise OSError(ctypes.get_errno(), "getpeereid failed")
    pid = sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID) if sys.platform == "darwin" else -1
    return Peer(uid.value, gid.value, pid)


def has_hung_up(sock: socket.socket) -> bool:
    """Whether the peer closed both directions, not only the one in which it writes."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)  # the event itself is not needed, but macOS reports a hang-up only with it
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
