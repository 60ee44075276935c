"""Frames: `uint32_le length | payload`. Bytes may arrive in chunks of any size.

Rules: no JSON here; the cap is checked as soon as the header is there, before the body is complete.
"""

from __future__ import annotations

import struct

from uma_core.errors import ErrorCode, UmaError

HEADER = struct.Struct("<I")
TEXT_LEAST = 0x09000000  # the smallest length that four bytes of text can make: a tab in the top byte
FRAME_CAP_LIMIT = 128 << 20  # less than TEXT_LEAST, so that a valid header is never text


def encode_frame(payload: bytes) -> bytes:
    """Prefix a payload with its length."""
    return HEADER.pack(len(payload)) + payload


class FrameReader:
    """Split a byte stream into payloads.

    Raises: FRAME_TOO_LARGE, BAD_FRAME (a length of 0); the stream is unusable after either.
    """

    __slots__ = ("_buffer", "cap_bytes")

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | bytearray) -> None:
        self._buffer += data

    def whole(self, data: bytes) -> bytes | None:
        """Return the payload if `data` is exactly one frame and no earlier bytes wait. This is the usual case, and
        nothing is copied back and forth. None: use `feed`.
        """
        n = len(data) - HEADER.size
        if self._buffer or not 0 < n <= self.cap_bytes or HEADER.unpack_from(data)[0] != n:
            return None
        return data[HEADER.size :]

    def next_payload(self) -> bytes | None:
        """Take the next payload out of the buffer; None if it is not complete yet."""
        buffer = self._buffer
        if len(buffer) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(buffer)
        if length == 0:
            raise UmaError(ErrorCode.BAD_FRAME, "a frame of length 0")
        if length > self.cap_bytes:
            raise UmaError(
                ErrorCode.FRAME_TOO_LARGE,
                f"a frame of {length} bytes; the cap is {self.cap_bytes}",
                limit=self.cap_bytes,
            )
        end = HEADER.size + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:  # one copy, not two: it may be megabytes
            payload = bytes(view[HEADER.size : end])
        del buffer[:end]
        return payload
