"""What `generate`, `embed` and `rerank` share: some fields, and the conversion of more."""

from __future__ import annotations

import math
from typing import Any

from uma_core.protocol.fields import Field, Kind
from uma_core.types import Priority

_NS_PER_MS = 1_000_000

SHARED_FIELDS = (
    Field(
        "model",
        Kind.STRING,
        "fingerprint (in `props`) of the model to use; if another one is loaded, the request is refused",
        None,
        1,
        128,
    ),
    Field(
        "account",
        Kind.STRING,
        "account that a gateway acts for: accounts share the daemon fairly. Trusted peers only (`access.trusted_uids`)",
        None,
        1,
        128,
    ),
    Field(
        "metadata", Kind.TAGS, "`sessions` shows this with the request, to its own user and to administrators", high=16
    ),
)


def shared_values(args: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of Request that these operations share, from checked fields."""
    return {
        "priority": Priority[args["priority"].upper()] if args["priority"] else None,
        "timeout_ns": to_ns(args["timeout_ms"]),
        "model": args["model"] or "",
        "account": args["account"] or "",
        "metadata": args["metadata"] or {},
    }


def to_ns(ms: float | None) -> int:
    """Convert to ns, rounding up: only 0 (no limit) stays 0."""
    return math.ceil((ms or 0) * _NS_PER_MS)
