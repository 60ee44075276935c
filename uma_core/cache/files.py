"""The file format of a segment, and the check that a file is complete and ours. Opens no files.

Layout: magic (8), version (u32), header length (u32), sha256 of the header (32), header (JSON), payload. Integers are
little-endian. The header repeats all tokens from the first on, so that each file can be found by its tokens. It also
has the payload's sha256.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from typing import NamedTuple

import numpy as np

from uma_core.engine.api import EngineInfo

MAGIC = b"UMAKVSEG"
VERSION = 1
SUFFIX = ".umakv"
_FIXED = struct.Struct("<8sII32s")
FIXED_BYTES = _FIXED.size
FIRST_TENANT = -9  # tenants below this are single requests, whose segments are never written to disk
MAX_HEADER_BYTES = 64 << 20


class Damaged(ValueError):
    """The bytes are not a complete file of ours. The text names the cause in few words, because each cause is reported
    once.
    """


class Head(NamedTuple):
    """The header of a file."""

    model: str  # `model_key` of the engine that made it
    tenant: int
    start: int
    tokens: np.ndarray  # (end,) int32: all tokens from the first on; the payload covers start..end
    n_bytes: int  # of the payload
    sha256: str  # of the payload
    variant: str = ""  # adapters that the KV was computed with, as in the tree

    @property
    def end(self) -> int:
        return len(self.tokens)


def model_key(info: EngineInfo) -> str:
    """Return the key of an engine's model. Engines with equal keys can read each other's KV bytes."""
    facts = (VERSION, info.engine, info.fingerprint, info.kv_type, info.n_layer, info.kv_bytes_per_cell, info.kv_facts)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def file_name(model: str, tenant: int, start: int, tokens: np.ndarray, variant: str = "") -> str:
    of = f"{tenant} {start} {variant} " if variant else f"{tenant} {start} "
    digest = hashlib.sha256(of.encode() + _packed(tokens))
    return f"{model}-{digest.hexdigest()[:32]}{SUFFIX}"


def encode_head(head: Head) -> bytes:
    fields: dict[str, object] = {
        "model": head.model,
        "uid": head.tenant,
        "start": head.start,
        "tokens": base64.b64encode(_packed(head.tokens)).decode(),
        "bytes": head.n_bytes,
        "sha256": head.sha256,
    }
    if head.variant:
        fields["adapters"] = head.variant
    header = json.dumps(fields).encode()
    return _FIXED.pack(MAGIC, VERSION, len(header), hashlib.sha256(header).digest()) + header


def head_bytes(n_tokens: int) -> int:
    """Return the approximate size of a file without its payload."""
    return FIXED_BYTES + 200 + 16 * -(-n_tokens // 3)


def header_bytes(fixed: bytes) -> int:
    """Return the length of the header that follows. Raises: Damaged."""
    if len(fixed) < FIXED_BYTES:
        raise Damaged("truncated")
    magic, version, length, _ = _FIXED.unpack(fixed)
    if magic != MAGIC:
        raise Damaged("not a cache file")
    if version != VERSION:
        raise Damaged("of another version")
    if length > MAX_HEADER_BYTES:
        raise Damaged("damaged header")
    return int(length)


def decode_head(fixed: bytes, header: bytes) -> Head:
    """Decode a header. Raises: Damaged."""
    n, digest = header_bytes(fixed), _FIXED.unpack(fixed)[3]
    if len(header) < n:
        raise Damaged("truncated")
    if hashlib.sha256(header).digest() != digest:
        raise Damaged("damaged header")
    try:
        fields = json.loads(header)
        tokens = np.frombuffer(base64.b64decode(fields["tokens"]), "<i4").astype(np.int32)
        variant = str(fields.get("adapters", ""))
        head = Head(
            fields["model"],
            int(fields["uid"]),
            int(fields["start"]),
            tokens,
            int(fields["bytes"]),
            fields["sha256"],
            variant,
        )
    except Exception as error:  # a header may contain anything: infinities, endlessly nested lists
        raise Damaged("damaged header") from error
    if not (
        0 <= head.start < head.end
        and head.n_bytes >= 0
        and FIRST_TENANT <= head.tenant < 1 << 32
        and isinstance(head.model, str)
    ):
        raise Damaged("damaged header")
    return head


def payload_digest(payload: bytes | bytearray | memoryview) -> str:
    """Return the digest of a payload. Releases the GIL."""
    return hashlib.sha256(payload).hexdigest()


def _packed(tokens: np.ndarray) -> bytes:
    return tokens.astype("<i4").tobytes()
