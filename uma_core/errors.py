"""Every error code, declared once: the wire, the exit statuses and docs/ERRORS.md are derived from this table.

Rules: raise `UmaError` where the code is known. Foreign errors are translated at the boundary where they
arrive. Nothing matches on message text. A cancelled `generate` ends with its `eos`, not with an error.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Side(str, Enum):
    """The side that must act."""

    CLIENT = "client"  # the request is wrong; the same request fails again
    SERVER = "server"  # the server cannot now; the same request may succeed later
    ENGINE = "engine"  # the model or its backend failed
    OURS = "ours"  # a bug in UMA Serve


class Spec(NamedTuple):
    code: str  # stable on the wire
    name: str  # stable on the wire
    side: Side
    retryable: bool  # sending the same request again is worthwhile
    closes: bool  # the connection is closed after the event
    exit_status: int  # exit status of uma-cli / uma-ctl: 2 server error, 3 protocol error, 1 could not start
    summary: str


class ErrorCode(Enum):
    """One member per code. `member.value` is its `Spec`."""

    INVALID_JSON = Spec(
        "E_PROTO_001", "invalid_json", Side.CLIENT, False, False, 3, "the payload is not one JSON object"
    )
    BAD_REQUEST = Spec(
        "E_PROTO_002",
        "bad_request",
        Side.CLIENT,
        False,
        False,
        3,
        "a field has the wrong type or value; `detail.field` names it",
    )
    UNKNOWN_TYPE = Spec("E_PROTO_003", "unknown_type", Side.CLIENT, False, False, 3, "`type` names no operation")
    BAD_FRAME = Spec(
        "E_PROTO_004", "bad_frame", Side.CLIENT, False, True, 3, "the byte stream is neither frames nor text lines"
    )
    BAD_UTF8 = Spec("E_PROTO_005", "bad_utf8", Side.CLIENT, False, False, 3, "text is not valid UTF-8, or contains NUL")
    DUPLICATE_ID = Spec(
        "E_PROTO_006",
        "duplicate_id",
        Side.CLIENT,
        False,
        False,
        3,
        "a request with this id is in flight on this connection",
    )
    NOT_FOUND = Spec(
        "E_PROTO_007", "not_found", Side.CLIENT, False, False, 2, "no such request, session or cache entry"
    )

    PROMPT_TOO_LARGE = Spec(
        "E_LIMIT_001",
        "prompt_too_large",
        Side.CLIENT,
        False,
        False,
        2,
        "the prompt exceeds the byte cap or the context",
    )
    FRAME_TOO_LARGE = Spec(
        "E_LIMIT_002",
        "frame_too_large",
        Side.CLIENT,
        False,
        True,
        3,
        "the frame or line exceeds the cap; none of it was read",
    )
    OVERLOADED = Spec(
        "E_LIMIT_003",
        "overloaded",
        Side.SERVER,
        True,
        False,
        2,
        "the queue of the request's priority is full; retry after `retry_after_ms`",
    )
    TOO_MANY_SESSIONS = Spec(
        "E_LIMIT_004", "too_many_sessions", Side.SERVER, True, False, 2, "the session or connection cap is reached"
    )
    IDLE_TIMEOUT = Spec(
        "E_LIMIT_005", "idle_timeout", Side.CLIENT, True, True, 2, "the connection was idle for too long"
    )

    MODEL_NOT_LOADED = Spec(
        "E_MODEL_001",
        "model_not_loaded",
        Side.SERVER,
        True,
        False,
        2,
        "no model is loaded yet, or it was unloaded",
    )
    MODEL_LOAD_FAILED = Spec(
        "E_MODEL_002",
        "model_load_failed",
        Side.ENGINE,
        False,
        False,
        1,
        "the GGUF is absent, damaged, unsupported or too large",
    )
    TEMPLATE_FAILED = Spec(
        "E_MODEL_003",
        "template_failed",
        Side.CLIENT,
        False,
        False,
        2,
        "the model's chat template is absent or refuses these messages",
    )
    INSUFFICIENT_MEMORY = Spec(
        "E_MODEL_004",
        "insufficient_memory",
        Side.SERVER,
        True,
        False,
        1,
        "the load exceeds the memory budget, or the machine's memory",
    )
    MODEL_CHANGED = Spec(
        "E_MODEL_005",
        "model_changed",
        Side.CLIENT,
        True,
        False,
        2,
        "the request names a model other than the one being served: see `props`",
    )
    UNSUPPORTED = Spec(
        "E_MODEL_006",
        "unsupported",
        Side.CLIENT,
        False,
        False,
        2,
        "this model or engine cannot do what the request asks",
    )

    ADAPTER_LOAD_FAILED = Spec(
        "E_ADAPTER_001", "adapter_load_failed", Side.CLIENT, False, False, 1,
        "a LoRA adapter is absent, damaged, of a kind that is not served, or for another model; `detail.adapter` names "
        "it",
    )  # fmt: skip

    DECODE_FAILED = Spec(
        "E_RUNTIME_001",
        "decode_failed",
        Side.ENGINE,
        True,
        False,
        2,
        "the decode call failed for the sessions in its batch",
    )
    KV_FULL = Spec(
        "E_RUNTIME_002", "kv_full", Side.SERVER, True, False, 2, "the KV cache has no room and none can be made"
    )
    SAMPLER_FAILED = Spec(
        "E_RUNTIME_003",
        "sampler_failed",
        Side.ENGINE,
        True,
        False,
        2,
        "the logits are not finite, or the sampler chain failed",
    )
    ENGINE_HUNG = Spec(
        "E_RUNTIME_004", "engine_hung", Side.ENGINE, True, False, 2, "a decode call did not return in time"
    )
    STATE_RESTORE_FAILED = Spec(
        "E_RUNTIME_005", "state_restore_failed", Side.ENGINE, True, False, 2, "a saved sequence state did not load"
    )

    SLOW_CLIENT = Spec(
        "E_IO_001",
        "slow_client",
        Side.CLIENT,
        True,
        True,
        2,
        "the reader fell too far behind, or stopped reading",
    )
    CACHE_IO = Spec(
        "E_IO_002", "cache_io", Side.SERVER, True, False, 2, "the cache directory is damaged, full or not writable"
    )

    SHUTTING_DOWN = Spec("E_STATE_001", "shutting_down", Side.SERVER, True, False, 2, "the daemon is stopping")
    DRAINING = Spec(
        "E_STATE_002",
        "draining",
        Side.SERVER,
        True,
        False,
        2,
        "the daemon is draining; retry after `retry_after_ms`",
    )
    RELOAD_BUSY = Spec("E_STATE_003", "reload_busy", Side.SERVER, True, False, 2, "another reload is in progress")
    CANCELLED = Spec(
        "E_STATE_004",
        "cancelled",
        Side.CLIENT,
        False,
        False,
        2,
        "a cancel ended the request, which has no `eos` to report it",
    )
    TIMED_OUT = Spec(
        "E_STATE_005",
        "timed_out",
        Side.CLIENT,
        True,
        False,
        2,
        "`timeout_ms` passed, and the request has no `eos` to report it",
    )

    CONSTRAINT_REFUSED = Spec(
        "E_CONSTRAINT_001", "constraint_refused", Side.CLIENT, False, False, 2,
        "the schema or grammar cannot be enforced; `detail.field` names it, `detail.keyword` and `detail.path` the "
        "place in a schema; `detail.is_complete`: `constraint.prefix` is all of the answer already",
    )  # fmt: skip
    CONSTRAINT_FAILED = Spec(
        "E_CONSTRAINT_002",
        "constraint_failed",
        Side.CLIENT,
        False,
        False,
        2,
        "the answer left its grammar or reached a dead end in it, or the grammar grew too complex",
    )
    CONSTRAINTS_UNAVAILABLE = Spec(
        "E_CONSTRAINT_003",
        "constraints_unavailable",
        Side.SERVER,
        False,
        False,
        2,
        "llguidance is not installed, or is not the required version",
    )

    FORBIDDEN = Spec("E_ACCESS_001", "forbidden", Side.CLIENT, False, True, 2, "this peer may not connect")
    ADMIN_ONLY = Spec(
        "E_ACCESS_002",
        "admin_only",
        Side.CLIENT,
        False,
        False,
        2,
        "only the daemon's owner, root and administrators may do this",
    )

    CONFIG_INVALID = Spec(
        "E_CONFIG_001",
        "config_invalid",
        Side.CLIENT,
        False,
        False,
        1,
        "an option is unknown, or its value is out of range",
    )
    SOCKET_IN_USE = Spec(
        "E_CONFIG_002", "socket_in_use", Side.CLIENT, False, False, 1, "another daemon answers on this socket"
    )
    BINDINGS_MISMATCH = Spec(
        "E_CONFIG_003", "bindings_mismatch", Side.OURS, False, False, 1, "the bindings and the llama.cpp library differ"
    )
    WRONG_PROCESSOR = Spec(
        "E_CONFIG_004", "wrong_processor", Side.SERVER, False, False, 1, "the build is for another processor"
    )

    BAD_BATCH = Spec(
        "E_INTERNAL_001", "bad_batch", Side.OURS, False, False, 2, "the daemon built a batch that the engine refuses"
    )
    PLAN_INVALID = Spec(
        "E_INTERNAL_002", "plan_invalid", Side.OURS, False, False, 2, "a policy stage broke the plan's contract"
    )
    INTERNAL = Spec("E_INTERNAL_003", "internal", Side.OURS, True, False, 2, "an unexpected error in the daemon")

    @property
    def code(self) -> str:
        return self.value.code

    @property
    def spec(self) -> Spec:
        return self.value


BY_CODE: dict[str, ErrorCode] = {member.code: member for member in ErrorCode}


class UmaError(Exception):
    """An error that has a code. `detail`: a small dict of JSON values, for programs."""

    def __init__(self, error: ErrorCode, message: str = "", **detail: Any) -> None:
        self.error = error
        self.message = message or error.spec.summary
        self.detail = detail
        super().__init__(f"{error.code} {error.spec.name}: {self.message}")

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.error.code, "name": self.error.spec.name, "message": self.message, "detail": self.detail}


def unexpected(error: BaseException) -> UmaError:
    """Return the coded error for an unexpected exception."""
    return UmaError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
