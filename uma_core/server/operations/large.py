"""Large requests. Decoding one, applying its template and tokenising it takes long and holds the GIL.

The work is defined here as functions of the request's bytes: `Helper` runs them in a separate process, `Local` in this
one. Only the received bytes are kept between two calls, so the reader can be stopped and restarted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from uma_core.protocol.events import WireId
from uma_core.protocol.messages import (
    Message,
    Source,
    Unfit,
    decode,
    decode_id,
    parse_object,
    read,
    request_of,
    to_input,
)
from uma_core.protocol.ops import OPS
from uma_core.server.io.ports import Reading, TextPort
from uma_core.server.operations import texts
from uma_core.server.operations.prompt import Encoded, encode
from uma_core.server.operations.sizes import INPUTS, input_bytes
from uma_core.types import Request

# bytes of a request; smaller ones are decoded in half a millisecond, and tokenised off the I/O thread in three
LARGE_BYTES = 16_384


class Digest(NamedTuple):
    """A checked request without its input. All values are plain, so that another process can return them."""

    op: str
    wire_id: WireId
    args: dict[str, Any]
    n_bytes: int  # of the input as text


class Reader(Protocol):
    """Reads large requests. For one thread at a time; any thread may call `close`."""

    def digest(self, payload: bytes) -> Digest | Unfit: ...

    def encode(self, text: TextPort, source: Source) -> Encoded:
        """Tokenise the input of a generate request. Raises: TEMPLATE_FAILED."""

    def answer(self, text: TextPort, op: str, source: Source, cap_bytes: int) -> bytes:
        """Carry out a text operation. Raises: what texts.answer raises."""

    def prepare(self, text: TextPort) -> None:
        """Get ready for this model's vocabulary."""

    def close(self) -> None:
        """Abandon the request that is being read, soon."""


class Local:
    """Does everything in the calling thread."""

    def digest(self, payload: bytes) -> Digest | Unfit:
        return digest(payload)

    def encode(self, text: TextPort, source: Source) -> Encoded:
        return encode_source(text, source.payload, source.is_text)

    def answer(self, text: TextPort, op: str, source: Source, cap_bytes: int) -> bytes:
        return answer_source(text, op, source.payload, cap_bytes)

    def prepare(self, text: TextPort) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def digest(payload: bytes) -> Digest | Unfit:
    """Decode and check a request."""
    message = read(payload)
    if isinstance(message, Unfit):
        return message
    args = {name: None if name in INPUTS else given for name, given in message.args.items()}
    return Digest(message.op.name, message.wire_id, args, input_bytes(message.args))


def message_of(found: Digest, payload: bytes) -> Message:
    """Return the message of a digest; the input is in its source."""
    id = "" if found.wire_id is None else str(found.wire_id)
    request = request_of(found.op, id, found.args)
    return Message(OPS[found.op], id, found.wire_id, found.args, request, Source(payload, False, found.n_bytes))


def encode_source(text: Reading, payload: bytes, is_text: bool) -> Encoded:
    """Tokenise the input of a request that `digest` accepted. Raises: TEMPLATE_FAILED, BAD_REQUEST."""
    request = Request("", prompt=payload.decode()) if is_text else _message(payload).request
    assert request is not None
    encoded = encode(text, request)
    return Encoded(np.array(encoded.tokens, np.int32), encoded.message_ends)


def with_input(request: Request, source: Source) -> Request:
    """Return the request with the input from its source."""
    return replace(request, **to_input(_message(source.payload).args))


def answer_source(text: Reading, op: str, payload: bytes, cap_bytes: int) -> bytes:
    """Return the reply's fields for a text operation that `digest` accepted. Raises: what texts.answer raises."""
    return texts.answer(op, _message(payload).args, cap_bytes, text)


def _message(payload: bytes) -> Message:
    value = parse_object(payload)
    return decode(value, decode_id(value))
