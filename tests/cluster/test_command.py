"""`uma-gateway cluster` without a running cluster."""

from __future__ import annotations

from types import SimpleNamespace
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


def test_up_names_the_nodes_that_run_behind_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    from uma_gateway.cluster import command
    from uma_gateway.cluster.settings import parse

    rows = [{"node": "early", "niceness": 0}, {"node": "late", "niceness": 15}]
    monkeypatch.setattr(command, "connect", lambda *_, **__: None)
    monkeypatch.setattr(command, "n_alive", lambda: 2)
    monkeypatch.setattr(command, "serve", SimpleNamespace(start=lambda **_: None, run=lambda *_, **__: None))
    monkeypatch.setattr(command, "_about", lambda: rows)
    told: list[str] = []
    assert command.up(parse({"models": [{"name": "m", "daemon": []}]}), False, told.append) == 0
    [warning] = [line for line in told if "niceness" in line]
    assert "late" in warning and "RAY_worker_niceness=0" in warning
