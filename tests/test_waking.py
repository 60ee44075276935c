"""A wake-up reaches a sleeping reader, and never waits for one that is awake."""

from __future__ import annotations

import os
import select
import socket
import sys

import pytest

from uma_core.waking import wake


def is_awake(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_an_eventfd_counts_and_is_read_once():
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        for _ in range(3):
            wake(fd)
        assert os.eventfd_read(fd) == 3 and not is_awake(fd)
        os.eventfd_write(fd, 2**64 - 2)  # full: one more would block
        wake(fd)
        assert is_awake(fd)
    finally:
        os.close(fd)


def test_a_socket_whose_reader_does_not_read_holds_nobody_up():
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        wake(writer.fileno())
        assert int.from_bytes(reader.recv(8), sys.byteorder) == 1
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(20_000):
            wake(writer.fileno())
        assert is_awake(reader.fileno())


def test_nobody_to_wake_is_no_error():
    wake(-1)
