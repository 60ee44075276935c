"""`python -m perf`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from perf import cli, scorecard
from perf.criteria import Criterion
from perf.harness import Plan
from perf.results import ROOT, Results
from tests.perf.made import make


@pytest.mark.parametrize("arguments", [["run", "strom"], ["accept", "--only", "solo", "--only", "strom"]])
def test_a_scenario_that_does_not_exist_is_said_before_anything_starts(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert "no scenario strom" in result.output and "storm" in result.output


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["run", "solo", "--model", "0.5b"], "'0.5b' is neither a shape nor a file"),
        (["bandwidth", "0.5b"], "'0.5b' is neither a shape nor a file"),
        (["threads", "--model", "0.5b"], "'0.5b' is neither a shape nor a file"),
        (["run", "solo", "--ours", "none", "--against", "none"], "no server to measure"),
        (["stages", "--scenario", "strom"], "no scenario strom"),
        (["ablate", "--scenario", "strom"], "no scenario strom"),
        (["engines", "--model", "tiny-q8_0", "--only", "decoed"], "no case's name contains decoed"),
        (["threads", "--model", "tiny-q8_0", "--counts", "1000000"], "processors"),
        (["drafts", "--prices", "0:1"], "'0:1' is not a list"),
        (["drafts", "--prices", "2:0"], "'2:0' is not a list"),
        (["fidelity", "--model", "m.gguf", "--type", "q9", __file__], "no type q9"),
        (["answers", __file__, __file__], "line 1 is not a task"),
    ],
)
def test_a_wrong_argument_is_said_in_words(arguments: list[str], what: str) -> None:
    result = CliRunner().invoke(cli.main, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2) and what in result.output


def test_a_text_that_is_not_utf8_is_said_in_words(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"caf\xe9")
    for command in ("perplexity", "fidelity", "greedy"):
        result = CliRunner().invoke(cli.main, [command, "--model", "m.gguf", str(path)])
        assert result.exit_code == 1 and f"{path} is not UTF-8 text" in result.output


def test_tasks_of_no_wanted_kind_are_said_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"kind": "edit", "messages": [], "answer": ""}\n')
    result = CliRunner().invoke(cli.main, ["answers", str(path), str(path), "--kinds", "tools,json"])
    assert result.exit_code == 2 and "no task is of the kind tools or json" in result.output


def test_too_few_tasks_are_said_before_anything_starts(tmp_path: Path) -> None:
    """Two streams would have nothing to answer, and the rate is that of all four."""
    path = tmp_path / "tasks.jsonl"
    path.write_text(2 * '{"kind": "edit", "messages": [], "answer": ""}\n')
    result = CliRunner().invoke(cli.main, ["answers", str(path), str(path), "--streams", "4", "--repeats", "1"])
    assert result.exit_code == 2 and "need 4 tasks of each kind; 2 of edit" in result.output


def test_make_perf_measures() -> None:
    (command,) = re.findall(r"^\t\$\(PY\) -m perf(.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert command.split() == ["accept"] and "accept" in cli.main.commands


def test_a_gpu_is_judged_by_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its pages and `python -m perf report` judge it."""
    found: list[Criterion] = []

    def executed(plan: Plan, criteria: tuple[Criterion, ...], *_: object) -> Results:
        found.extend(criteria)
        return make({})

    monkeypatch.setattr(cli, "_execute", executed)
    CliRunner().invoke(cli.main, ["accept", "--gpu-layers", "-1"])
    judged = scorecard.criteria_of(make({"storm": {"uma": []}}, gpu_layers=-1))
    assert found == [c for c in judged if c.figure != "steady_x_bare"]
