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
    summary: str
    is_retryable: bool = False  # sending the same request again is worthwhile
    closes: bool = False  # the connection is closed after the event
    exit_status: int = 2  # exit status of uma-cli / uma-ctl: 2 server error, 3 protocol error, 1 could not start


class ErrorCode(Enum):
    """One member per code. `member.value` is its `Spec`."""

    INVALID_JSON = Spec("E_PROTO_001", "invalid_json", Side.CLIENT, "the payload is not one JSON object", exit_status=3)
    BAD_REQUEST = Spec(
        "E_PROTO_002",
        "bad_request",
        Side.CLIENT,
        "a field has the wrong type or value; `detail.field` names it",
        exit_status=3,
    )
    UNKNOWN_TYPE = Spec("E_PROTO_003", "unknown_type", Side.CLIENT, "`type` names no operation", exit_status=3)
    BAD_FRAME = Spec(
        "E_PROTO_004",
        "bad_frame",
        Side.CLIENT,
        "the byte stream is neither frames nor text lines",
        closes=True,
        exit_status=3,
    )
    BAD_UTF8 = Spec("E_PROTO_005", "bad_utf8", Side.CLIENT, "text is not valid UTF-8, or contains NUL", exit_status=3)
    DUPLICATE_ID = Spec(
        "E_PROTO_006",
        "duplicate_id",
        Side.CLIENT,
        "a request with this id is in flight on this connection",
        exit_status=3,
    )
    NOT_FOUND = Spec("E_PROTO_007", "not_found", Side.CLIENT, "no such request, session or cache entry")

    PROMPT_TOO_LARGE = Spec(
        "E_LIMIT_001", "prompt_too_large", Side.CLIENT, "the prompt exceeds the byte cap or the context"
    )
    FRAME_TOO_LARGE = Spec(
        "E_LIMIT_002",
        "frame_too_large",
        Side.CLIENT,
        "the frame or line exceeds the cap; none of it was read",
        closes=True,
        exit_status=3,
    )
    OVERLOADED = Spec(
        "E_LIMIT_003",
        "overloaded",
        Side.SERVER,
        "the queue of the request's priority is full; retry after `retry_after_ms`",
        is_retryable=True,
    )
    TOO_MANY_SESSIONS = Spec(
        "E_LIMIT_004", "too_many_sessions", Side.SERVER, "the session or connection cap is reached", is_retryable=True
    )
    IDLE_TIMEOUT = Spec(
        "E_LIMIT_005",
        "idle_timeout",
        Side.CLIENT,
        "the connection was idle for too long",
        is_retryable=True,
        closes=True,
    )

    MODEL_NOT_LOADED = Spec(
        "E_MODEL_001", "model_not_loaded", Side.SERVER, "no model is loaded yet, or it was unloaded", is_retryable=True
    )
    MODEL_LOAD_FAILED = Spec(
        "E_MODEL_002",
        "model_load_failed",
        Side.ENGINE,
        "the GGUF is absent, damaged, unsupported or too large",
        exit_status=1,
    )
    TEMPLATE_FAILED = Spec(
        "E_MODEL_003", "template_failed", Side.CLIENT, "the model's chat template is absent or refuses these messages"
    )
    INSUFFICIENT_MEMORY = Spec(
        "E_MODEL_004",
        "insufficient_memory",
        Side.SERVER,
        "the load exceeds the memory budget, or the machine's memory",
        is_retryable=True,
        exit_status=1,
    )
    MODEL_CHANGED = Spec(
        "E_MODEL_005",
        "model_changed",
        Side.CLIENT,
        "the request names a model other than the one being served: see `props`",
        is_retryable=True,
    )
    UNSUPPORTED = Spec(
        "E_MODEL_006", "unsupported", Side.CLIENT, "this model or engine cannot do what the request asks"
    )

    ADAPTER_LOAD_FAILED = Spec(
        "E_ADAPTER_001",
        "adapter_load_failed",
        Side.CLIENT,
        "a LoRA adapter is absent, damaged, of a kind that is not served, or for another model; "
        "`detail.adapter` names it",
        exit_status=1,
    )

    DECODE_FAILED = Spec(
        "E_RUNTIME_001",
        "decode_failed",
        Side.ENGINE,
        "the decode call failed for the sessions in its batch",
        is_retryable=True,
    )
    KV_FULL = Spec(
        "E_RUNTIME_002", "kv_full", Side.SERVER, "the KV cache has no room and none can be made", is_retryable=True
    )
    SAMPLER_FAILED = Spec(
        "E_RUNTIME_003",
        "sampler_failed",
        Side.ENGINE,
        "the logits are not finite, or the sampler chain failed",
        is_retryable=True,
    )
    ENGINE_HUNG = Spec(
        "E_RUNTIME_004", "engine_hung", Side.ENGINE, "a decode call did not return in time", is_retryable=True
    )
    STATE_RESTORE_FAILED = Spec(
        "E_RUNTIME_005", "state_restore_failed", Side.ENGINE, "a saved sequence state did not load", is_retryable=True
    )

    SLOW_CLIENT = Spec(
        "E_IO_001",
        "slow_client",
        Side.CLIENT,
        "the reader fell too far behind, or stopped reading",
        is_retryable=True,
        closes=True,
    )
    CACHE_IO = Spec(
        "E_IO_002", "cache_io", Side.SERVER, "the cache directory is damaged, full or not writable", is_retryable=True
    )

    SHUTTING_DOWN = Spec("E_STATE_001", "shutting_down", Side.SERVER, "the daemon is stopping", is_retryable=True)
    DRAINING = Spec(
        "E_STATE_002",
        "draining",
        Side.SERVER,
        "the daemon is draining; retry after `retry_after_ms`",
        is_retryable=True,
    )
    RELOAD_BUSY = Spec("E_STATE_003", "reload_busy", Side.SERVER, "another reload is in progress", is_retryable=True)
    CANCELLED = Spec(
        "E_STATE_004", "cancelled", Side.CLIENT, "a cancel ended the request, which has no `eos` to report it"
    )
    TIMED_OUT = Spec(
        "E_STATE_005",
        "timed_out",
        Side.CLIENT,
        "`timeout_ms` passed, and the request has no `eos` to report it",
        is_retryable=True,
    )

    CONSTRAINT_REFUSED = Spec(
        "E_CONSTRAINT_001",
        "constraint_refused",
        Side.CLIENT,
        "the schema or grammar cannot be enforced; `detail.field` names it, `detail.keyword` and `detail.path` the "
        "place in a schema; `detail.is_complete`: `constraint.prefix` is all of the answer already",
    )
    CONSTRAINT_FAILED = Spec(
        "E_CONSTRAINT_002",
        "constraint_failed",
        Side.CLIENT,
        "the answer left its grammar or reached a dead end in it, or the grammar grew too complex",
    )
    CONSTRAINTS_UNAVAILABLE = Spec(
        "E_CONSTRAINT_003",
        "constraints_unavailable",
        Side.SERVER,
        "llguidance is not installed, or is not the required version",
    )

    FORBIDDEN = Spec("E_ACCESS_001", "forbidden", Side.CLIENT, "this peer may not connect", closes=True)
    ADMIN_ONLY = Spec(
        "E_ACCESS_002", "admin_only", Side.CLIENT, "only the daemon's owner, root and administrators may do this"
    )

    CONFIG_INVALID = Spec(
        "E_CONFIG_001",
        "config_invalid",
        Side.CLIENT,
        "an option is unknown, or its value is out of range",
        exit_status=1,
    )
    SOCKET_IN_USE = Spec(
        "E_CONFIG_002", "socket_in_use", Side.CLIENT, "another daemon answers on this socket", exit_status=1
    )
    BINDINGS_MISMATCH = Spec(
        "E_CONFIG_003", "bindings_mismatch", Side.OURS, "the bindings and the llama.cpp library differ", exit_status=1
    )
    WRONG_PROCESSOR = Spec(
        "E_CONFIG_004", "wrong_processor", Side.SERVER, "the build is for another processor", exit_status=1
    )

    BAD_BATCH = Spec("E_INTERNAL_001", "bad_batch", Side.OURS, "the daemon built a batch that the engine refuses")
    PLAN_INVALID = Spec("E_INTERNAL_002", "plan_invalid", Side.OURS, "a policy stage broke the plan's contract")
    INTERNAL = Spec("E_INTERNAL_003", "internal", Side.OURS, "an unexpected error in the daemon", is_retryable=True)

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
