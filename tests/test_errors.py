"""Clients rely on the table of codes."""

import json
import re

import pytest

from uma_core.errors import BY_CODE, ErrorCode, Side, UmaError

TRACKER = {
    "E_PROTO_001": "invalid_json",
    "E_LIMIT_001": "prompt_too_large",
    "E_MODEL_001": "model_not_loaded",
    "E_RUNTIME_001": "decode_failed",
    "E_IO_001": "slow_client",
}


def test_codes_and_names_are_unique():
    assert len(BY_CODE) == len(ErrorCode)
    assert len({error.spec.name for error in ErrorCode}) == len(ErrorCode)


def test_the_documented_codes_are_kept():
    assert {code: BY_CODE[code].spec.name for code in TRACKER} == TRACKER


@pytest.mark.parametrize("error", ErrorCode, ids=lambda error: error.name)
def test_every_code_is_well_formed(error):
    spec = error.spec
    assert re.fullmatch(r"E_[A-Z]+_\d{3}", spec.code)
    assert spec.name == error.name.lower()
    assert (
        spec.summary and spec.summary[0].islower() | (not spec.summary[0].isalpha()) and not spec.summary.endswith(".")
    )


@pytest.mark.parametrize("error", ErrorCode, ids=lambda error: error.name)
def test_exit_statuses_follow_the_scheme(error):
    """3: the client broke the protocol. 1: the daemon could not start. 2: every other error of the server."""
    status = error.spec.exit_status
    assert status in (1, 2, 3)
    if status == 3:
        assert error.spec.side is Side.CLIENT and not error.spec.is_retryable
    if error.code.startswith("E_CONFIG"):
        assert status == 1


def test_codes_of_one_family_are_numbered_without_gaps():
    families: dict[str, list[int]] = {}
    for code in BY_CODE:
        family, number = code.rsplit("_", 1)
        families.setdefault(family, []).append(int(number))
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in families.values())


def test_an_error_says_its_code_and_goes_into_json():
    error = UmaError(ErrorCode.BAD_REQUEST, "top_p must be a number", field="top_p")
    assert str(error) == "E_PROTO_002 bad_request: top_p must be a number"
    assert json.loads(json.dumps(error.to_dict())) == {
        "code": "E_PROTO_002",
        "name": "bad_request",
        "message": "top_p must be a number",
        "detail": {"field": "top_p"},
    }


def test_without_a_message_the_summary_speaks():
    assert UmaError(ErrorCode.DRAINING).message == ErrorCode.DRAINING.spec.summary
