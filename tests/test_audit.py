"""`make audit` looks up every package that the gateway runs on."""

from __future__ import annotations

from tests.audit import closure


def test_what_is_needed_in_turn_is_looked_up_too() -> None:
    found = closure()
    assert {"starlette", "uvicorn", "httptools", "orjson", "anyio", "numpy", "markupsafe"} <= set(found)
    assert "uma-serve" not in found and "pytest" not in found
