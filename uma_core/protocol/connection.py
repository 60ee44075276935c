"""One connection's protocol state: bytes in, messages out; events in, bytes out.

Call `receive_data(bytes)`, then `next_event()` until it returns a Signal; `send(event)` returns the bytes to write.

Rules: only this class tells frames from lines and knows which ids are in flight. A request is in flight from the
`next_event` that returns it until its `Eos`, `Error` or `Reply` is sent. In line mode a prompt line or a command has
the connection to itself: later input waits (PAUSED), because raw text has no id to tell answers apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.events import (
    End,
    Eos,
    Error,
    Event,
    Progress,
    Prompt,
    Queued,
    Reply,
    Started,
    Token,
    WireId,
    end_json,
    eos_json,
    error_json,
    progress_json,
    prompt_json,
    queued_json,
    reply_json,
    to_json,
    token_head,
    token_json,
)
from uma_core.protocol.framing import FrameReader, encode_frame
from uma_core.protocol.lines import COMMANDS, LineReader, Mode, detect_mode
from uma_core.protocol.messages import Large, Message, Unfit, generate, read
from uma_core.protocol.ops import OPS
from uma_core.types import FinishReason

HELP_LINE = (
    'Type a prompt, or a JSON request such as {"prompt":"Hello","max_tokens":16}, or one of '
    + ", ".join(COMMANDS)
    + "."
)


class Limits(NamedTuple):
    frame_cap_bytes: int  # payload size; less than framing.FRAME_CAP_LIMIT
    line_cap_bytes: int
    max_in_flight: int  # per connection: requests that the model computes, and separately all others
    has_echo: bool = False  # send a prompt line back before its answer
    inline_bytes: int = 0  # larger requests are decoded elsewhere; 0: none are


class Signal(Enum):
    """Why `next_event` has no message."""

    NEED_DATA = "need data"
    PAUSED = "paused"  # an answer or a decoded request must come first; do not read much more
    END = "end"  # no more messages will come


class Style(Enum):
    """How the answers to a request are written."""

    JSON = "json"  # a frame, or a line of JSON
    RAW = "raw"  # plain text
    COMMAND = "command"  # one line, then the connection closes


class Flight(NamedTuple):
    """A request in flight."""

    wire_id: WireId
    style: Style
    head: str  # token_head(wire_id)
    is_computed: bool  # by the model: generate, embed or rerank
    has_eos: bool  # false: it ends with a reply or an error
    is_stream: bool
    echo: str


class Rejected(NamedTuple):
    """Bytes that are not a valid message. Pass it to `send`, which encodes the error."""

    wire_id: WireId
    error: UmaError
    style: Style = Style.JSON


class Connection:
    """See the module docstring. Invalid input raises nothing: it is returned as `Rejected`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.mode = Mode.UNDECIDED
        self.in_flight: dict[str, Flight] = {}
        self.is_closing = False  # close the socket once everything is written
        self.has_eof = False
        self._frames = FrameReader(limits.frame_cap_bytes)
        self._lines = LineReader(limits.line_cap_bytes)
        self._head = bytearray()  # bytes received before the mode is known
        self._line: str | None = None  # a line that has to wait for a request in flight
        self.is_waiting = False  # for a large request to be decoded
        self._n_computed = 0  # requests in flight that the model computes
        self._n_named = 0
        self._is_raw = False  # the last line was not JSON: errors that belong to no request are sent as text

    # bytes in

    def receive_data(self, data: bytes) -> None:
        if self.mode is Mode.FRAMES:
            self._frames.feed(data)
        elif self.mode is Mode.LINES:
            self._lines.feed(data)
        else:
            self._head += data
            self._decide(detect_mode(self._head))

    def receive_eof(self) -> None:
        """The peer will send nothing more; it may still read."""
        self.has_eof = True
        if self._head:
            self._decide(Mode.LINES)

    @property
    def is_ambiguous(self) -> bool:
        """Whether the first bytes are a short line or part of a frame header. Call `disambiguate` after a silence."""
        return b"\n" in self._head

    def disambiguate(self) -> None:
        """Read ambiguous bytes as text, because no more bytes came."""
        if self.is_ambiguous:
            self._decide(Mode.LINES)

    @property
    def n_buffered(self) -> int:
        """Bytes received that are not messages yet."""
        return len(self._head) + len(self._frames) + len(self._lines) + len(self._line or "")

    def _decide(self, mode: Mode) -> None:
        self.mode = mode
        if mode is not Mode.UNDECIDED:
            (self._frames if mode is Mode.FRAMES else self._lines).feed(self._head)
            self._head.clear()

    # messages out

    def next_event(self) -> Message | Rejected | Large | Signal:
        """Take the next message. After a `Large` it returns PAUSED until `resume` is called."""
        if self.is_closing:
            return Signal.END
        if self.is_waiting:
            return Signal.PAUSED
        try:
            if self.mode is Mode.FRAMES:
                return self._next_frame()
            if self.mode is Mode.LINES:
                return self._next_line()
        except UmaError as error:
            return self._reject(None, error)
        return self._no_more()

    def _no_more(self) -> Signal:
        return Signal.END if self.has_eof else Signal.NEED_DATA

    def resume(self, outcome: Message | Unfit) -> Message | Rejected:
        """Continue with a large request, now decoded."""
        self.is_waiting = False
        return self._take(outcome)

    def _next_frame(self) -> Message | Rejected | Large | Signal:
        payload = self._frames.next_payload()
        if payload is not None:
            return self._request(payload)
        if self.has_eof and len(self._frames):
            raise UmaError(ErrorCode.BAD_FRAME, "the stream ended inside a frame")
        return self._no_more()

    def _next_line(self) -> Message | Rejected | Large | Signal:
        while self._line is None or not self._line.strip():
            self._is_raw = not self._lines.begins_with_brace if len(self._lines) else self._is_raw
            self._line = self._lines.next_line(self.has_eof)
            if self._line is None:
                return self._no_more()
        is_json = self._line.startswith("{")
        if any(flight.style is not Style.JSON for flight in self.in_flight.values()) or (
            self.in_flight and not is_json
        ):
            return Signal.PAUSED
        line, self._line = self._line, None
        self._is_raw = not is_json
        return self._request(line) if is_json else self._text(line)

    def _text(self, line: str) -> Message | Rejected:
        id = self._new_id()
        command = COMMANDS.get(line.rstrip())
        if command is not None:
            op = OPS[command[0]]
            message = Message(op, id, None, {field.name: field.default for field in op.fields} | command[1])
            return self._admit(message, Style.COMMAND)
        return self._admit(generate(id, line, self._is_large(line)), Style.RAW, line if self.limits.has_echo else "")

    def _is_large(self, payload: bytes | str) -> bool:
        return 0 < self.limits.inline_bytes < len(payload)

    def _request(self, payload: bytes | str) -> Message | Rejected | Large:
        if self._is_large(payload):
            self.is_waiting = True
            return Large(payload if isinstance(payload, bytes) else payload.encode())
        return self._take(read(payload))

    def _take(self, outcome: Message | Unfit) -> Message | Rejected:
        return self._reject(*outcome) if isinstance(outcome, Unfit) else self._admit_named(outcome)

    def _admit_named(self, message: Message) -> Message | Rejected:
        return self._admit(message if message.id else self._named(message), Style.JSON)

    def _named(self, message: Message) -> Message:
        """Assign an id to a request that has none. Only the events of generate report it to the client."""
        id = self._new_id()
        request = replace(message.request, id=id) if message.request is not None else None
        return message._replace(id=id, wire_id=id if message.op.name == "generate" else None, request=request)

    def _new_id(self) -> str:
        while True:
            self._n_named += 1
            id = f"#{self._n_named}"
            if id not in self.in_flight:
                return id

    def _admit(self, message: Message, style: Style, echo: str = "") -> Message | Rejected:
        if message.op.name == "cancel":
            return message  # its `id` names another request
        if message.id in self.in_flight:
            return self._reject(message.wire_id, UmaError(ErrorCode.DUPLICATE_ID, f"`{message.id}` is in flight"))
        request, limit = message.request, self.limits.max_in_flight
        n_alike = self._n_computed if request else len(self.in_flight) - self._n_computed
        if n_alike >= limit:  # counted separately, so that `status` works while all streams run
            error = UmaError(
                ErrorCode.TOO_MANY_SESSIONS, f"{limit} requests are in flight on this connection", limit=limit
            )
            return self._reject(message.wire_id, error)
        self._n_computed += request is not None
        is_stream = request is not None and request.stream
        has_eos = message.op.name == "generate"
        head = token_head(message.wire_id)
        self.in_flight[message.id] = Flight(message.wire_id, style, head, request is not None, has_eos, is_stream, echo)
        return message

    def _reject(self, wire_id: WireId, error: UmaError) -> Rejected:
        """Answer under the request's id, unless a request in flight has it: the error would seem to end that one."""
        self.is_closing = self.is_closing or error.error.spec.closes
        if wire_id is not None and str(wire_id) in self.in_flight:
            error.detail["id"] = wire_id
            wire_id = None
        return Rejected(wire_id, error, Style.RAW if self._is_raw else Style.JSON)

    # events in, bytes out

    def send(self, event: Event | Rejected) -> bytes:
        """Encode an event.

        Final events free the id. Raises: LookupError for an id that is not in flight (our bug); TypeError or ValueError
        for a reply that JSON cannot represent.
        """
        if type(event) is Token:
            flight = self.in_flight[event.id]
            if flight.style is Style.JSON:
                return self._pack(token_json(flight.head, event))
            return event.text.encode("utf-8", "replace")
        return _SENDERS[type(event)](self, event)

    def _pack(self, payload: bytes) -> bytes:
        return payload + b"\n" if self.mode is Mode.LINES else encode_frame(payload)

    def _land(self, id: str) -> Flight:
        flight = self.in_flight.pop(id)
        self._n_computed -= flight.is_computed
        if flight.style is Style.COMMAND:
            self.is_closing = True
        return flight

    def _send_started(self, event: Started) -> bytes:
        return self.in_flight[event.id].echo.encode()

    def _send_json(self, event: Queued | Progress | Prompt | End) -> bytes:
        """Encode an event that has no form in plain text."""
        flight = self.in_flight[event.id]
        return self._pack(_JSON[type(event)](flight.wire_id, event)) if flight.style is Style.JSON else b""

    def _send_eos(self, event: Eos) -> bytes:
        flight = self._land(event.id)
        if not flight.has_eos:
            return self._error(flight.wire_id, without_eos(event), flight.style is not Style.JSON)
        if flight.style is Style.JSON:
            return self._pack(eos_json(flight.wire_id, event, not flight.is_stream))
        return _raw_ending(event).encode("utf-8", "replace")

    def _send_error(self, event: Error) -> bytes:
        flight = self._land(event.id) if event.id else None
        if self.mode is Mode.UNDECIDED and self._head and b"\0" not in self._head:
            self._is_raw = not self._head.startswith(b"{")  # too short to be certain, but probably typed by hand
            self._decide(Mode.LINES)
        self.is_closing = self.is_closing or event.error.error.spec.closes
        is_raw = self._is_raw if flight is None else flight.style is not Style.JSON
        return self._error(flight.wire_id if flight else None, event.error, is_raw)

    def _send_rejected(self, event: Rejected) -> bytes:
        return self._error(event.wire_id, event.error, event.style is not Style.JSON)

    def _error(self, wire_id: WireId, error: UmaError, is_raw: bool) -> bytes:
        return f"[{error}]\n".encode("utf-8", "replace") if is_raw else self._pack(error_json(wire_id, error))

    def _send_reply(self, event: Reply) -> bytes:
        flight = self.in_flight.get(event.id)
        if flight is None:
            return self._pack(reply_json(event.wire_id, event))
        payload = _command_line(event) if flight.style is Style.COMMAND else reply_json(flight.wire_id, event)
        self._land(event.id)
        return self._pack(payload)


def without_eos(event: Eos) -> UmaError:
    """Return the error that ends a request without `eos` whose computation did not finish."""
    if event.error is not None:
        return event.error
    ends = {
        FinishReason.CANCELLED: (ErrorCode.CANCELLED, "the request was cancelled"),
        FinishReason.TIMEOUT: (ErrorCode.TIMED_OUT, "`timeout_ms` passed before the request was complete"),
        FinishReason.DRAINING: (ErrorCode.DRAINING, "a drain ended the request before it was complete"),
    }
    return UmaError(*ends.get(event.reason, (ErrorCode.INTERNAL,)))


def _raw_ending(event: Eos) -> str:
    if event.error is not None:
        return f"\n[{event.error}]\n"
    return "\n" if event.reason in (FinishReason.STOP, FinishReason.LENGTH) else f"\n[{event.reason.value}]\n"


def _command_line(event: Reply) -> bytes:
    if event.type == "help":
        return HELP_LINE.encode()
    assert isinstance(event.data, dict)
    if "text" in event.data:
        return str(event.data["text"]).rstrip("\n").encode()
    return to_json(event.data.get("metrics", event.data))


_JSON: dict[type, Callable[..., bytes]] = {
    Queued: queued_json,
    Progress: progress_json,
    Prompt: prompt_json,
    End: end_json,
}
_SENDERS: dict[type, Callable[..., bytes]] = {
    **dict.fromkeys(_JSON, Connection._send_json),
    Started: Connection._send_started,
    Eos: Connection._send_eos,
    Error: Connection._send_error,
    Rejected: Connection._send_rejected,
    Reply: Connection._send_reply,
}
