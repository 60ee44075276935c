"""Text lines for `nc -U`, and the test that tells a stream of lines from a stream of frames.

A line that begins with `{` is a JSON request; `/metrics`, `/status` and `/help` are commands; an empty line is ignored;
any other line is a prompt.
"""

from __future__ import annotations

from enum import Enum

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.framing import HEADER, TEXT_LEAST

COMMANDS: dict[str, tuple[str, dict[str, str]]] = {  # line -> operation, and the fields that differ from their defaults
    "/metrics": ("metrics", {}),
    "/metrics prometheus": ("metrics", {"format": "prometheus"}),
    "/status": ("status", {}),
    "/help": ("help", {}),
}


class Mode(Enum):
    UNDECIDED = "undecided"
    FRAMES = "frames"
    LINES = "lines"


def detect_mode(head: bytes | bytearray) -> Mode:
    """Tell frames from text by the first bytes of a connection.

    The frame cap plays no part: a length too small to be text belongs to a frame, which is then refused if it is too
    large. A NUL also means a frame, because text has none. Up to three bytes can be a short line ("Hi\\n") or part of a
    header; then the caller decides, by silence or the end of the stream.
    """
    if len(head) < HEADER.size:
        return Mode.UNDECIDED
    (length,) = HEADER.unpack_from(head)
    return Mode.LINES if length >= TEXT_LEAST and b"\0" not in head[: HEADER.size] else Mode.FRAMES


class LineReader:
    """Split a byte stream into lines, without their line endings.

    Raises: FRAME_TOO_LARGE (the stream is unusable after it); BAD_UTF8 (only that line is lost).
    """

    __slots__ = ("_buffer", "_scanned", "cap_bytes")

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self._buffer = bytearray()
        self._scanned = 0  # bytes known to contain no newline: keeps byte-at-a-time input linear

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | bytearray) -> None:
        self._buffer += data

    @property
    def begins_with_brace(self) -> bool:
        return self._buffer.startswith(b"{")

    def next_line(self, is_last: bool = False) -> str | None:
        """Take the next line; None if it is not complete yet. `is_last`: the stream has ended, which ends the line."""
        end = self._buffer.find(b"\n", self._scanned)
        length = len(self._buffer) if end < 0 else end
        if length > self.cap_bytes:
            raise UmaError(
                ErrorCode.FRAME_TOO_LARGE, f"a line of more than {self.cap_bytes} bytes", limit=self.cap_bytes
            )
        if end < 0 and not (is_last and self._buffer):
            self._scanned = length
            return None
        raw = bytes(self._buffer[:length])
        del self._buffer[: length + 1]
        self._scanned = 0
        return to_text(raw.rstrip(b"\r"))


def to_text(raw: bytes) -> str:
    """Decode strict UTF-8 without NUL. Raises: BAD_UTF8."""
    if b"\0" in raw:
        raise UmaError(ErrorCode.BAD_UTF8, "the text contains NUL")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UmaError(ErrorCode.BAD_UTF8, f"not valid UTF-8 at byte {error.start}") from None
