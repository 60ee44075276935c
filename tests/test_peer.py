from __future__ import annotations

import ctypes
import os
import socket

import pytest

from uma_core.peer import bsd_peer, has_hung_up, peer_of
from uma_core.types import Peer


@pytest.fixture
def pair():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_who_is_there(pair):
    assert peer_of(pair[0]) == Peer(os.getuid(), os.getgid(), os.getpid())


class FakeLibc:
    """Stands in for macOS's getpeereid."""

    def __init__(self, status: int) -> None:
        self.status = status

    def getpeereid(self, fd, uid, gid) -> int:
        ctypes.cast(uid, ctypes.POINTER(ctypes.c_uint32))[0] = 501
        ctypes.cast(gid, ctypes.POINTER(ctypes.c_uint32))[0] = 20
        return self.status


class FakeSocket:
    def fileno(self) -> int:
        return 5

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (0, 2)
        return 4242


@pytest.mark.parametrize(("platform", "pid"), [("darwin", 4242), ("freebsd14", -1)])
def test_who_is_there_on_bsd(monkeypatch, platform, pid):
    monkeypatch.setattr("uma_core.peer.sys.platform", platform)
    assert bsd_peer(FakeSocket(), FakeLibc(0)) == Peer(501, 20, pid)


def test_the_kernel_does_not_say():
    with pytest.raises(OSError):
        bsd_peer(FakeSocket(), FakeLibc(-1))
    closed = socket.socket(socket.AF_UNIX)
    closed.close()
    assert peer_of(closed) == Peer(-1, -1, -1)


def test_half_close_is_no_hang_up(pair):
    assert not has_hung_up(pair[0])
    pair[1].shutdown(socket.SHUT_WR)
    assert not has_hung_up(pair[0])
    pair[1].close()
    assert has_hung_up(pair[0])
