"""Calls go to the replica that they name. test_ray.py tests Ray itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.late import needs_ray

pytestmark = needs_ray


def replica(name: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), node_id=f"node-{name}")


@pytest.mark.parametrize(
    ("args", "chosen"),
    [
        (("b", "load"), "b"),
        (("gone", "load"), "ab"),  # any of them answers that it is lost
        ((), "ab"),
        (None, "ab"),
    ],
)
def test_a_call_goes_to_the_replica_that_its_first_argument_names(args: Any, chosen: str) -> None:
    from uma_gateway.cluster.pinned import Pinned

    asked = None if args is None else SimpleNamespace(args=args)
    router: Any = object.__new__(Pinned)
    (found,) = asyncio.run(router.choose_replicas([replica("a"), replica("b")], asked))
    assert "".join(each.replica_id.unique_id for each in found) == chosen


def test_replicas_are_known_as_soon_as_serve_reports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve.request_router import RequestRouter

    from uma_gateway.cluster import replicas
    from uma_gateway.cluster.pinned import Pinned

    given: list[Any] = []
    monkeypatch.setattr(RequestRouter, "update_replicas", lambda self, found: given.append(found))
    router: Any = object.__new__(Pinned)
    router._deployment_id = SimpleNamespace(name="test_pinned")
    router.update_replicas([replica("a")])
    assert replicas.running("test_pinned") == {"a": "node-a"} and len(given) == 1
