"""The files that documents and notebooks expect, with exactly their columns."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perf import cli, csv_files
from perf.scenarios import SCENARIOS
from perf.stats import PhaseLog, phase_figures
from tests.perf.made import make


def read(path: Path) -> list[list[str]]:
    with path.open(newline="") as source:
        return list(csv.reader(source))


def test_long_contexts_are_tokens_per_second_by_context(tmp_path: Path) -> None:
    results = make(
        {
            "context-16k": {
                "uma": [{"total_tok_s": 210.5}, {"total_tok_s": 208.0}],
                "llama-server:b64": [{"total_tok_s": 99.0}],
            },
            "context-32k": {"uma": [{"total_tok_s": 130.25}]},
        }
    )
    csv_files.write(results, tmp_path)
    assert read(tmp_path / "long_ctx.uma.csv") == [
        ["ctx", "tps"],
        ["16000", "210.5000"],
        ["16000", "208.0000"],
        ["32000", "130.2500"],
    ]
    assert read(tmp_path / "long_ctx.llama-server-b64.csv") == [["ctx", "tps"], ["16000", "99.0000"]]


def test_the_wires_overhead_is_told_by_path(tmp_path: Path) -> None:
    figures = {"ttft_p50_ms": 0.5, "server_cpu_cores": 0.25}
    results = make(
        {
            "ipc": {
                "uma": [figures],
                "llama-server": [{"ttft_p50_ms": 1.5, "server_cpu_cores": math.nan}],
                "llama-cpp-python": [figures],
            }
        }
    )
    csv_files.write(results, tmp_path)
    assert read(tmp_path / "ipc_overhead.csv") == [
        ["path", "ttft_ms", "cpu_pct"],
        ["uds", "0.5000", "25.0000"],
        ["http", "1.5000", ""],
        ["http llama-cpp-python", "0.5000", "25.0000"],
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_its_figures_in_a_file(name: str, tmp_path: Path) -> None:
    paths = csv_files.write(make({name: {"uma": [{"a_ms": 1.0}, {"a_ms": 2.0}]}}), tmp_path)
    assert tmp_path / "figures.csv" in paths
    assert read(tmp_path / "figures.csv")[1:] == [
        [name, "uma", "0", "a_ms", "1.0000"],
        [name, "uma", "1", "a_ms", "2.0000"],
    ]


def test_the_command_writes_them_from_stored_results(tmp_path: Path) -> None:
    make({"context-8k": {"uma": [{"total_tok_s": 1.0}]}, "ipc": {"uma": [{"ttft_p50_ms": 1.0}]}}).save(tmp_path)
    result = CliRunner().invoke(cli.main, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {"figures.csv", "long_ctx.uma.csv", "ipc_overhead.csv"} <= {path.name for path in tmp_path.iterdir()}
    assert "figures.csv, long_ctx.uma.csv, ipc_overhead.csv" in result.output


def test_a_folder_without_results_is_refused_in_a_line(tmp_path: Path) -> None:
    for command in ("report", "scorecard"):
        result = CliRunner().invoke(cli.main, [command, str(tmp_path)])
        assert result.exit_code == 1 and result.output.startswith(f"Error: {tmp_path} has no results: ")


def test_every_option_of_every_command_says_what_it_does() -> None:
    for name, command in cli.main.commands.items():
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, f"{name}: {option.opts}"


@pytest.mark.parametrize("option", [["replay", "--streams"], ["threads", "--counts"]])
@pytest.mark.parametrize("counts", ["x", "0", "1,", ""])
def test_what_is_no_list_of_counts_is_refused_before_anything_runs(option: list[str], counts: str) -> None:
    result = CliRunner().invoke(cli.main, [*option, counts])
    assert result.exit_code == 2 and "is not a list of positive whole numbers" in result.output


@pytest.mark.parametrize("command", ["run", "accept", "ablate", "tick", "gateway", "cluster", "replay", "batches"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_count_of_nothing_is_refused_before_anything_runs(command: str, value: str) -> None:
    names = {"--repeats", "--scale", "--beside", "--seeds", "--processes", "--rounds", "--threads"}
    known = {opt for option in cli.main.commands[command].params for opt in option.opts} & names
    for name in known - ({"--threads"} if command == "batches" and value == "0" else set()):
        result = CliRunner().invoke(cli.main, [command, *(["solo"] if command == "run" else []), name, value])
        assert result.exit_code == 2, name
        assert result.output.splitlines()[
            -1
        ] == f"Error: Invalid value for '{name}': {value} is not in the range x>=" + (
            "0." if name == "--threads" and command == "batches" else "1."
        )


def test_what_the_daemon_measures_of_itself_becomes_figures() -> None:
    counters = {
        "tick_overhead_ms.sum": 1.0, "tick_overhead_ms.count": 10.0, "tick_ms.sum": 100.0, "engine_ms_total": 90.0,
        "serving_ms_total": 100.0,
        "kv_bytes_total": 1000.0, "kv_copied_bytes_total": 250.0, "bmt_moved_bytes_total": 1.8e9,
    }  # fmt: skip
    figures = phase_figures(PhaseLog(0, (), counters=counters))
    assert (
        figures["device_idle_share"] == pytest.approx(0.1)
        and figures["copy_free_ratio"] == 0.75
        and figures["memory_gb_s"] == 20.0
    )
    without = phase_figures(PhaseLog(0, (), counters={"tick_overhead_ms.sum": 1.0, "tick_ms.sum": 100.0}))
    assert math.isnan(without["device_idle_share"]) and math.isnan(without["copy_free_ratio"])
    assert "device_idle_share" not in phase_figures(PhaseLog(0, ())), "a peer counts nothing"
