"""What `uma-gateway cluster` does where no cluster runs."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.cli import main

ray = pytest.importorskip("ray", reason="the extra [cluster] has no wheel for this platform")


@pytest.mark.parametrize("name", ["status", "down"])
def test_without_a_cluster_it_says_so_and_starts_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def init(address: str = "", **_: Any) -> None:
        assert address == "auto", "a Ray cluster is started"
        raise ConnectionError("none is found")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr("sys.argv", ["uma-gateway", "cluster", name])
    assert main() == 1
    assert "no cluster runs there: start one with" in capsys.readouterr().err
