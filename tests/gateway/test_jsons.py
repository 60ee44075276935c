"""Bodies as they come from clients."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from typing import Any

import pytest

from uma_gateway import jsons
from uma_gateway.errors import GatewayError
from uma_gateway.jsons import LARGE_BYTES, beside, check_depth, parse_object


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


@pytest.mark.parametrize(("n_bytes", "is_elsewhere"), [(100, False), (LARGE_BYTES, True)])
def test_a_large_body_is_walked_through_beside_the_event_loop(
    n_bytes: int, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def looked(value: Any, max_depth: int) -> None:
        threads.append(threading.current_thread())

    monkeypatch.setattr(jsons, "check_depth", looked)
    body = json.dumps({"a": "x" * n_bytes}).encode()
    assert asyncio.run(beside(len(body), parse_object, body, 8)) == {"a": "x" * n_bytes}
    assert [thread is not threading.main_thread() for thread in threads] == [is_elsewhere]


@pytest.mark.parametrize("body", [b'{"a": [1, 2]}', b'{"a": "' + b"x" * LARGE_BYTES + b'"}', b"[" * LARGE_BYTES])
def test_the_collector_goes_on_after_a_body(body: bytes) -> None:
    try:
        parse_object(body, 8)
    except GatewayError as error:
        assert error.code == "invalid_json"
    assert gc.isenabled()
