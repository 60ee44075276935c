"""Bodies as they come from clients."""

from __future__ import annotations

import gc
from typing import Any

import orjson
import pytest

from uma_gateway.errors import GatewayError
from uma_gateway.jsons import check_depth, parse_object
from uma_gateway.large import LARGE_BYTES


def nested(depth: int) -> Any:
    value: Any = 1
    for i in range(depth):
        value = [0, value] if i % 2 else {"a": "b", "c": value}
    return value


@pytest.mark.parametrize("depth", [0, 1, 8, 9])  # in a body, which is an object itself
def test_what_is_deep_enough_passes(depth: int) -> None:
    check_depth(nested(depth), 8)


@pytest.mark.parametrize("depth", [10, 500])
def test_what_is_deeper_is_refused(depth: int) -> None:
    with pytest.raises(GatewayError) as caught:
        check_depth(nested(depth), 8)
    assert caught.value.code == "too_deep"


@pytest.mark.parametrize("body", [b'{"a": [1, 2]}', b'{"a": "' + b"x" * LARGE_BYTES + b'"}', b"[" * LARGE_BYTES])
def test_the_collector_goes_on_after_a_body(body: bytes) -> None:
    try:
        parse_object(body, 8)
    except GatewayError as error:
        assert error.code == "invalid_json"
    assert gc.isenabled()


def test_a_body_that_there_is_no_memory_for_is_not_called_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(body: bytes) -> Any:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)  # as orjson does

    monkeypatch.setattr(orjson, "loads", loads)
    with pytest.raises(MemoryError):
        parse_object(b"{}", 9)
