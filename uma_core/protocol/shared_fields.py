"""Fields that `generate`, `embed` and `rerank` share: the model, the account and the metadata."""

from __future__ import annotations

from uma_core.protocol.fields import Field, Kind

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
