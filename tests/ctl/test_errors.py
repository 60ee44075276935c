"""What scripts see of an error: its exit status, and its JSON."""

from __future__ import annotations

import pytest

from uma_core.errors import ErrorCode
from uma_ctl import errors


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (errors.NoDaemon("no"), 1, "cannot_connect"),
        (errors.StreamFailed("no"), 1, "stream_failed"),
        (errors.NoAnswer("no"), 2, "no_answer"),
        (errors.BrokenProtocol("no"), 3, "broken_protocol"),
    ],
)
def test_failures_of_the_client(error: errors.CtlError, status: int, name: str) -> None:
    assert error.exit_status == status
    assert error.to_dict() == {"name": name, "message": "no"}


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_a_refusal_has_the_status_that_its_code_declares(code: ErrorCode) -> None:
    broken = code.spec.exit_status == errors.EXIT_PROTOCOL
    assert errors.ServerError({"code": code.code}).exit_status == (3 if broken else 2)


def test_a_refusal_is_told_whole_without_its_envelope() -> None:
    event = {"id": "a", "event": "error", "code": "E", "name": "n", "message": "m", "detail": {"field": "f"}}
    error = errors.ServerError(event)
    assert str(error) == "m"
    assert error.to_dict() == {"code": "E", "name": "n", "message": "m", "detail": {"field": "f"}}


@pytest.mark.parametrize(("event", "said"), [({"code": "E9999"}, "E9999"), ({}, "the server gave no reason")])
def test_a_refusal_without_a_message_says_something(event: dict[str, str], said: str) -> None:
    error = errors.ServerError(event)
    assert str(error) == said and error.exit_status == errors.EXIT_SERVER
