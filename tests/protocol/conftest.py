"""A driver for connections, and the ways in which a test feeds bytes to it."""

from __future__ import annotations

import pytest

from uma_core.protocol.connection import Connection, Limits, Rejected, Signal
from uma_core.protocol.framing import encode_frame
from uma_core.protocol.messages import Message

LIMITS = Limits(frame_cap_bytes=1 << 20, line_cap_bytes=1 << 16, max_in_flight=4)


class Driver:
    """Feeds bytes in chunks of a given size, and records every message that comes out."""

    def __init__(self, limits: Limits = LIMITS, chunk: int = 0) -> None:
        self.connection = Connection(limits)
        self.chunk = chunk
        self.messages: list[Message | Rejected] = []
        self.signal = Signal.NEED_DATA
        self.sent = b""

    def feed(self, data: bytes) -> Driver:
        step = self.chunk or max(1, len(data))
        for i in range(0, len(data), step):
            self.connection.receive_data(data[i : i + step])
            self.pump()
        return self

    def frame(self, payload: bytes) -> Driver:
        return self.feed(encode_frame(payload))

    def eof(self) -> Driver:
        self.connection.receive_eof()
        return self.pump()

    def disambiguate(self) -> Driver:
        self.connection.disambiguate()
        return self.pump()

    def pump(self) -> Driver:
        while not isinstance(event := self.connection.next_event(), Signal):
            self.messages.append(event)
            if isinstance(event, Rejected):
                self.sent += self.connection.send(event)
        self.signal = event
        return self

    def send(self, event) -> bytes:  # type: ignore[no-untyped-def]
        return self.connection.send(event)


@pytest.fixture
def make_driver():
    return Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture(params=[0, 1, 3], ids=["whole", "bytewise", "threes"])
def chunked(request):
    """Makes drivers of one chunk size. A test that uses it runs once per size."""
    return lambda limits=LIMITS: Driver(limits, request.param)
