"""The program that tries the graph engine on a GPU finds mistakes, and the end of one part does not end the others."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from perf import gpu_graph
from tests.engine.conftest import DRAFT
from uma_core.engine.api import Engine

ARGUMENTS = argparse.Namespace(threads=2, tokens=200, prompts=2, busy_model="tiny-q8_0")


@pytest.fixture(autouse=True)
def _only_the_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graph, "TRAINED", (Path(DRAFT), Path("/none/away.gguf")))


def test_kv_that_moved_gives_the_same_logits(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["way"]: row for row in gpu_graph.moves(ARGUMENTS)}
    assert rows.keys() == {"pieces", "shared", "host"} and all(row["is_ok"] for row in rows.values())
    assert rows["pieces"]["pieces"] > 3
    assert "away.gguf: missing" in capsys.readouterr().out


def test_other_kv_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(engine: Engine, tokens: np.ndarray) -> int:
        return 0 * gpu_graph._read(engine, 1, tokens[::-1].copy())

    monkeypatch.setattr(gpu_graph, "_shared", wrong)
    assert [row["is_ok"] for row in gpu_graph.moves(ARGUMENTS)] == [True, False, True]


def test_processes_beside_one_another_give_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graph, "N_BUSY", 2)
    monkeypatch.setattr(gpu_graph, "N_ROUNDS", 4)
    rows = gpu_graph.busy(ARGUMENTS)
    assert [row["engine"] for row in rows] == ["llama.cpp", "graph"] and all(row["is_ok"] for row in rows)


def test_perplexity_of_both_engines_and_kv_types() -> None:
    rows = gpu_graph.perplexity(ARGUMENTS)
    assert [row["kv"] for row in rows] == ["f16", "q8_0"]
    assert all(abs(row["graph_percent"]) < 3 and row["tokens"] == 199 for row in rows), (
        "so few tokens move it by some per cent"
    )


def test_a_part_that_fails_does_not_end_the_others(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_graph, "PARTS", dict(list(gpu_graph.PARTS.items())[:2]))  # each costs a process
    assert gpu_graph.run_all(["--rounds", "none"]) == len(gpu_graph.PARTS)
    out = capfd.readouterr().out
    assert all(f"== {part} ended with status 2" in out for part in gpu_graph.PARTS)
