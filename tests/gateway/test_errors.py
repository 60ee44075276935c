"""Errors for clients, and how the daemon's refusals become them."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from uma_core.errors import ErrorCode, Side
from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.errors import PREFIX, GatewayError, Kind, from_chat, from_daemon, invalid, shortage


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.spec.name)
def test_every_refusal_of_the_daemon_has_a_status_that_says_who_must_act(code: ErrorCode) -> None:
    error = from_daemon({"code": code.spec.code, "message": "why"})
    assert error.code and error.status >= 400
    if code.spec.side is not Side.CLIENT:
        assert error.status >= 500 or error.status in (403, 404, 408, 413, 429, 499), error.status


def test_a_code_that_is_not_known_is_the_server_s_fault() -> None:
    for given in ({}, {"code": "E_NEW_001", "message": None}):
        error = from_daemon(given)
        assert (error.kind, error.code) == (Kind.SERVER, None) and error.message


def of(code: ErrorCode, **detail: Any) -> GatewayError:
    return from_daemon({"code": code.spec.code, "message": "why", "detail": detail})


def test_a_prompt_that_is_too_long_is_told_in_openai_s_words() -> None:
    error = of(ErrorCode.PROMPT_TOO_LARGE, n_tokens=90, n_ctx_seq=64)
    assert error.extra == {"n_prompt_tokens": 90, "n_ctx": 64} and error.code == "context_length_exceeded"
    assert "maximum context length is 64 tokens" in error.message and "the prompt has 90" in error.message
    assert "input 2 has 90" in of(ErrorCode.PROMPT_TOO_LARGE, n_tokens=90, limit=64, index=2).message


def test_what_to_wait_for_is_kept() -> None:
    error = of(ErrorCode.OVERLOADED, retry_after_ms=700, queue_position=3)
    assert (error.kind, error.retry_after_ms, error.headers) == (Kind.RATE_LIMIT, 700, [(b"x-queue-position", b"3")])


def test_a_beginning_that_does_not_fit_names_the_messages() -> None:
    error = of(ErrorCode.BAD_REQUEST, field=PREFIX)
    assert error.param == "messages" and "continue the last message" in error.message


@pytest.mark.parametrize(
    ("param", "renamed"),
    [
        ("stop", "stop_sequences"),
        ("stop[2]", "stop_sequences[2]"),
        ("constraint.lark", "tools"),
        ("constraint.choices[1]", "tools"),
        ("seed", "seed"),
        (None, None),
    ],
)
def test_a_field_has_its_client_s_name(param: str | None, renamed: str | None) -> None:
    error = invalid(f"`{param}` is wrong", param)
    error.rename({"stop": "stop_sequences", "constraint": "tools"})
    assert (error.param, error.message) == (renamed, f"`{renamed}` is wrong")


def test_an_error_goes_to_another_process_and_back() -> None:
    error = GatewayError(Kind.RATE_LIMIT, "why", "n", "overloaded", 700, {"limit": 1})
    assert GatewayError.of(error.values()).values() == error.values()


@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        (OSError(errno.EMFILE, "x"), True),
        (MemoryError(), True),
        (OSError(errno.ENOENT, "x"), False),
        (ValueError("x"), False),
    ],
)
def test_a_shortage_may_pass(error: Exception, is_short: bool) -> None:
    found = shortage(error)
    assert (found is not None) is is_short
    if found is not None:
        assert (found.kind, found.code) == (Kind.UNAVAILABLE, "overloaded")


@pytest.mark.parametrize("code", list(ChatCode))
def test_refusals_of_the_chat_layer_keep_their_code(code: ChatCode) -> None:
    error = from_chat(ChatError(code, "why"))
    assert (error.code, error.message) == (code.value, "why")
    is_ours = code in (ChatCode.TEMPLATE_UNSAFE, ChatCode.UNAVAILABLE, ChatCode.OVERLOADED, ChatCode.INTERNAL)
    assert (error.status >= 500) is is_ours
