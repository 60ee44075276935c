"""The gateway replies as the pinned llama-server did, except for the differences that docs/GATEWAY.md explains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.differential import ALIAS, Difference, ask_all, compare, differences, recorded, volatile_fields
from tests.gateway.support import GatewayProcess, gateway_before


@pytest.fixture(scope="module")
def aliased(module_folder, tiny) -> Iterator[GatewayProcess]:
    with gateway_before(module_folder, tiny, "--model-alias", ALIAS) as gateway:
        yield gateway


def test_every_difference_to_llama_server_is_explained(aliased):
    unexplained, stale = compare(ask_all(aliased.port), recorded())
    assert not unexplained, "\n".join(map(str, unexplained))
    assert not stale  # rows that explain a difference that no longer exists


def test_the_comparison_sees_what_is_missing_added_and_changed():
    theirs = {
        "status": 200,
        "type": "application/json",
        "body": {"a": 1, "b": {"c": "x"}, "t_ms": 3.0, "d": None, "e": [{"f": 1}]},
    }
    ours = {
        "status": 400,
        "type": "application/json",
        "body": {"a": 1.00001, "b": {"c": 3}, "t_ms": 9.0, "g": 0, "e": [{"f": 2}]},
    }
    found = {(one.field, one.kind) for one in differences("x/y", ours, theirs, volatile_fields())}
    assert found == {
        ("status", "value"),
        ("body.b.c", "type"),
        ("body.d", "not here"),
        ("body.g", "only here"),
        ("body.e[].f", "value"),
    }
    assert "body.d" in str(Difference("x", "body.d", "not here"))
