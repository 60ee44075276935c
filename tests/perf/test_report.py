"""Results on disk, verdicts, tables, and generated pages."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from perf import cli, findings, plots, report, scorecard
from perf.criteria import ON_CPU, Against, Criterion, best_peer, clean_rows, judge, labels_for, with_isa
from perf.results import (
    CSV_FIELDS,
    Cell,
    MixedCommits,
    Results,
    csv_name,
    load,
    machine_facts,
    merge,
    read_tokens,
    vector_unit,
    write_tokens,
)
from perf.stats import PhaseLog, StreamLog

MS = 1_000_000


def make(cells: dict[str, dict[str, list[dict[str, float]]]], **settings: object) -> Results:
    results = Results({"cpu": "test", "cores": 2}, "abc", "2000-01-01", {"model": "tiny", **settings})
    for scenario, row in cells.items():
        results.titles[scenario] = f"title of {scenario}"
        for label, figures in row.items():
            results.cells.setdefault(scenario, {})[label] = Cell(figures)
    return results


def rows(figure: str, *values: float) -> list[dict[str, float]]:
    return [{figure: value} for value in values]


def test_ratio_is_taken_repeat_by_repeat() -> None:
    results = make({"solo": {"uma": rows("ttft_ms", 10, 40, 90), "llama-server": rows("ttft_ms", 10, 20, 30)}})
    verdict = judge(results, Criterion("solo", "x", "ttft_ms", 2.0, Against.PEER))
    assert (verdict.value, verdict.low, verdict.high, verdict.n, verdict.n_within) == (2.0, 1.0, 3.0, 3, 2)
    assert verdict.is_met is False, "2 of 3 are not 4 of 5"


@pytest.mark.parametrize(
    ("values", "met"),
    [
        ((1.0, 1.1, 1.1, 1.2, 1.3), True),  # 4 of 5
        ((1.0, 1.1, 1.1, 1.3, 1.3), False),  # its median is within the bound, but two of five are not
        ((1.0, 1.1, 1.3, 1.3, 1.3), False),
        ((1.0, 1.1, 1.1, 1.1, math.nan), True),
        ((1.0, 1.1, 1.1, 1.3, math.nan), False),  # a failed repeat is not within the bound
        ((1.0, 1.1, 1.3), False),
        ((1.0, 1.2), True),
        ((1.0,) * 8 + (1.3,) * 2, True),
        ((1.0,) * 7 + (1.3,) * 3, False),
    ],
)
def test_a_row_is_met_where_its_median_and_four_of_five_repeats_are(values: tuple[float, ...], met: bool) -> None:
    assert judge(make({"s": {"uma": rows("f", *values)}}), Criterion("s", "x", "f", 1.2)).is_met is met
    lower = [2.4 - value for value in values]
    assert judge(make({"s": {"uma": rows("f", *lower)}}), Criterion("s", "x", "f", 1.2, is_floor=True)).is_met is met


@pytest.mark.parametrize(
    ("value", "limit", "is_floor", "met"),
    [(1.2, 1.2, False, True), (1.21, 1.2, False, False), (23, 24, True, False), (24, 24, True, True)],
)
def test_limits_are_inclusive(value: float, limit: float, is_floor: bool, met: bool) -> None:
    results = make({"s": {"uma": rows("f", value)}})
    assert judge(results, Criterion("s", "x", "f", limit, is_floor=is_floor)).is_met is met


def test_nothing_measured_is_no_verdict() -> None:
    for results in (make({}), make({"s": {"uma": rows("other", 1.0)}})):
        verdict = judge(results, Criterion("s", "x", "f", 1.0))
        assert verdict.is_met is None and verdict.word == "not measured"
    peer_lost = make({"s": {"uma": rows("f", 1.0), "llama-server": rows("f", math.nan)}})
    assert judge(peer_lost, Criterion("s", "x", "f", 1.0, Against.PEER)).is_met is None


@pytest.mark.parametrize("against", [Against.LIMIT, Against.PEER])
def test_what_every_repeat_lost_is_missed(against: Against) -> None:
    results = make({"s": {"uma": rows("f", math.nan, math.nan), "llama-server": rows("f", 1.0, 1.0)}})
    verdict = judge(results, Criterion("s", "x", "f", 1.0, against))
    assert verdict.word == "MISSED" and verdict.n_within == 0


def test_a_repeat_that_lost_a_stream_is_not_within() -> None:
    """A stream that ends early, or never begins, leaves more for the others."""
    figures = [{"f": 1.0, "failed_n": float(n)} for n in (0, 0, 1, 0, 2)]
    results = make({"s": {"uma": figures, "llama-server": rows("f", *[1.0] * 5)}})
    for against in (Against.LIMIT, Against.PEER):
        verdict = judge(results, Criterion("s", "x", "f", 1.0, against))
        assert (verdict.n_within, verdict.n, verdict.is_met) == (3, 5, False)


def test_best_peer_is_the_fastest_configuration() -> None:
    row = {
        "uma": rows("makespan_ms", 10),
        "llama-server": rows("makespan_ms", 12),
        "llama-server:kvu": rows("makespan_ms", 8),
    }
    results = make({"storm": row})
    assert best_peer(results, "storm", "makespan_ms") == "llama-server:kvu"
    verdict = judge(results, Criterion("storm", "x", "makespan_ms", 1.05, Against.BEST_PEER))
    assert verdict.value == 1.25 and verdict.is_met is False
    results.cells["storm"]["llama-server"] = Cell(rows("makespan_ms", math.nan))
    assert best_peer(results, "storm", "makespan_ms") == "llama-server:kvu", "what failed is not the fastest"


def test_clean_rows_count_ours_alone() -> None:
    results = make({"s": {"uma": rows("f", 1), "llama-server": rows("f", 1)}})
    results.cells["s"]["llama-server"].errors.append("lost")
    results.allocator_warnings = {"uma:guard-off": 1, "llama-server": 5}
    assert clean_rows(results) == [("errors: 0", True), ("allocator warnings: 1", False)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (16.123, "16.1"),
        (6477.2, "6,477"),
        (0.01234, "0.012"),
        (1.0, "1.00"),
        (math.nan, "–"),
        (99.96, "100.0"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert report.number(value) == text


def test_results_survive_the_disk(tmp_path: Path) -> None:
    results = make({"solo": {"uma": [{"ttft_ms": 1.5, "itl_p50_ms": math.nan}]}}, threads=2)
    results.notes.append("short")
    results.save(tmp_path)
    again = load(tmp_path)
    assert again.settings == results.settings and again.notes == ["short"] and again.titles == results.titles
    assert again.cells["solo"]["uma"].values("ttft_ms") == [1.5]
    assert math.isnan(again.cells["solo"]["uma"].values("itl_p50_ms")[0])


def logs() -> dict[str, PhaseLog]:
    chat = StreamLog("chat", True, 3, 3, 0, (10 * MS, 26 * MS, 42 * MS), 42 * MS)
    other = StreamLog("storm0", False, 3, 1, 5 * MS, (30 * MS,), 30 * MS)
    return {"loaded": PhaseLog(0, (chat, other))}


def test_csv_has_the_documented_fields_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / csv_name("storm", "llama-server:b64", 0)
    write_tokens(path, logs())
    with path.open() as source:
        table = list(csv.reader(source))
    assert table[0] == list(CSV_FIELDS) == ["session_id", "token_idx", "ts_ms", "is_interactive"]
    assert table[1] == ["loaded/chat", "0", "10.000", "1"]
    assert len(table) == 5
    assert read_tokens(path)["loaded/storm0"] == (False, [30.0])


def test_scenario_table_has_ratio_target_and_verdict() -> None:
    row = {"uma": [{"itl_p50_ms": 16.0}], "llama-server": [{"itl_p50_ms": 20.0}]}
    table = report.scenario_table(make({"solo": row}), "solo")
    line = next(text for text in table.splitlines() if "inter-token p50" in text)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "inter-token p50, ms",
        "16.0",
        "20.0",
        "0.800",
        "≤ 1.02x llama-server",
        "met (0.800)",
    ]


def test_table_shows_the_spread_of_repeats() -> None:
    table = report.scenario_table(make({"solo": {"uma": rows("ttft_ms", 1, 2, 4)}}), "solo")
    assert "2.00 (1.00 to 4.00)" in table


def test_pages_are_generated_from_results(tmp_path: Path) -> None:
    cpu = make(
        {
            "solo": {
                "uma": [{"itl_p50_ms": 16.0, "ttft_ms": 100.0}],
                "llama-server": [{"itl_p50_ms": 16.0, "ttft_ms": 120.0}],
            },
            "storm": {"uma": rows("p95_x", 1.5)},
        }
    )
    gpu = make({"storm": {"uma": rows("pause_x", 1.9)}}, gpu_layers=-1)
    paths = scorecard.write([cpu, gpu], tmp_path)
    findings_text, benchmarks, card = (path.read_text() for path in paths)
    assert "120 ms" in findings_text
    assert "title of storm" in benchmarks and "first_ms = 500.0" in benchmarks
    assert "2 of 3 measured rows met" in card and "MISSED" in card
    assert "1 of 1 measured rows met" in card


def test_a_row_that_was_measured_in_several_runs_shows_and_counts_all_of_them() -> None:
    first = make({"moe": {"uma": rows("p95_x", 1.3, 1.33, 1.4)}, "storm": {"uma": rows("p95_x", 1)}})
    second, third = make({"moe": {"uma": rows("p95_x", 1.0, 1.04)}}), make({"moe": {"uma": rows("p95_x", 1.09)}})
    second.allocator_warnings = {"uma": 2}
    other = make({"moe": {"uma": rows("p95_x", 3)}}, gpu_layers=-1)
    joined, apart = merge([first, second, third, other])
    assert joined.cells["moe"]["uma"].values("p95_x") == [1.3, 1.33, 1.4, 1.0, 1.04, 1.09] and "storm" in joined.cells
    assert joined.allocator_warnings == {"uma": 2} and apart.settings["gpu_layers"] == -1
    assert first.cells["moe"]["uma"].values("p95_x") == [1.3, 1.33, 1.4]
    verdict = judge(joined, Criterion("moe", "x", "p95_x", 1.2))
    assert verdict.runs == pytest.approx((1.33, 1.02, 1.09)) and (verdict.n_within, verdict.n, verdict.is_met) == (
        3,
        6,
        False,
    )
    assert "runs: 1.33, 1.02, 1.09" in report.acceptance_table(
        [verdict], joined.titles
    ) and "3 of 6" in report.acceptance_table([verdict], {})
    assert "runs: 1.33, 1.02, 1.09" in report.scenario_table(joined, "moe")


def test_ratios_stay_within_a_run() -> None:
    """A peer that took part in fewer repeats, or in only one run, is not compared with another run's values."""
    first = make({"s": {"uma": rows("f", 10, 20, 30), "llama-server": rows("f", 10)}})
    second = make({"s": {"uma": rows("f", 4, 9), "llama-server": rows("f", 2, 3), "llama-server:kvu": rows("f", 1, 1)}})
    (joined,) = merge([first, second])
    assert joined.ratio_runs("s", "f", "uma", "llama-server") == [[1.0], [2.0, 3.0]]
    assert joined.ratio_runs("s", "f", "uma", "llama-server:kvu") == [[], [4.0, 9.0]]


def test_no_table_mixes_commits(tmp_path: Path) -> None:
    first, second = make({"solo": {"uma": rows("ttft_ms", 1)}}), make({"storm": {"uma": rows("p95_x", 1)}})
    second.commit = "def"
    with pytest.raises(MixedCommits, match="storm on test is of commit def, solo of abc: a table holds one commit"):
        merge([first, second])
    first.save(tmp_path / "a")
    second.save(tmp_path / "b")
    result = CliRunner().invoke(
        cli.main, ["scorecard", str(tmp_path / "a"), str(tmp_path / "b"), "--docs", str(tmp_path)]
    )
    assert result.exit_code == 1 and "a table holds one commit" in result.output
    second.settings["gpu_layers"] = -1
    assert len(merge([first, second])) == 2, "another machine or setting is another table"


def test_findings_say_only_what_was_measured() -> None:
    assert findings.sentences(make({})) == []
    assert findings.sentences(make({"solo": {"uma": rows("itl_p50_ms", 1)}})) == []


def test_plots_of_what_csv_holds(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = make({"storm": {"uma": rows("p95_x", 1.0)}, "idle": {"uma": rows("rss_mb", 1.0)}, "lost": {"uma": []}})
    write_tokens(tmp_path / "tokens" / csv_name("storm", "uma", 0), logs())
    write_tokens(tmp_path / "tokens" / csv_name("idle", "uma", 0), {"idle": PhaseLog(0, ())})
    assert [path.name for path in plots.draw(results, tmp_path)] == ["storm-timeline.png", "storm-gaps.png"]
    assert all(path.stat().st_size > 1000 for path in (tmp_path / "plots").iterdir())


def test_a_run_is_called_by_what_computed_it():
    machine = {"cpu": "a processor", "gpu": ["an accelerator, 8 MiB, 1.0"]}
    assert scorecard.run_name(Results(machine, "c", "d", {"model": "m"})) == "m on a processor"
    assert (
        scorecard.run_name(Results(machine, "c", "d", {"model": "m", "gpu_layers": -1}))
        == "m on an accelerator, 8 MiB, 1.0"
    )


def test_the_committed_pages_are_what_the_committed_results_say(tmp_path: Path) -> None:
    folders = scorecard.measured()
    assert folders
    for page in scorecard.write([load(folder) for folder in folders], tmp_path):
        assert page.read_text() == (scorecard.MEASURED.parents[1] / "docs" / page.name).read_text(), (
            "python -m perf scorecard"
        )


def test_kernels_of_another_instruction_set_are_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMA_ISA", raising=False)
    plain = machine_facts()["cpu"]
    monkeypatch.setenv("UMA_ISA", "avx2")
    assert machine_facts()["cpu"] == f"{plain}, our kernels as with avx2"


def test_a_run_with_several_instruction_sets_is_a_table_for_each(tmp_path: Path) -> None:
    run = make(
        {
            "solo": {
                "uma": rows("ttft_ms", 5),
                "uma:isa=avx2": rows("ttft_ms", 20),
                "llama-server": rows("ttft_ms", 10),
            },
            "throughput": {"uma:guard-off": rows("tok_s", 9), "uma:guard-off,isa=avx2": rows("tok_s", 7)},
            "idle": {"uma": rows("idle_cpu_percent", 0)},
        }
    )
    run.allocator_warnings = {"uma": 1, "uma:isa=avx2": 2, "llama-server": 3}
    own, avx2 = scorecard.by_kernels(run)
    assert (own.machine["cpu"], avx2.machine["cpu"]) == ("test", "test, our kernels as with avx2")
    assert own.ratios("solo", "ttft_ms", "uma", "llama-server") == [0.5]
    assert avx2.ratios("solo", "ttft_ms", "uma", "llama-server") == [2.0]
    assert own.labels() == ["uma", "llama-server", "uma:guard-off"] == avx2.labels()
    assert list(own.titles) == ["solo", "throughput", "idle"] and list(avx2.titles) == ["solo", "throughput"]
    assert own.allocator_warnings == {"uma": 1, "llama-server": 3}
    assert avx2.allocator_warnings == {"uma": 2, "llama-server": 3}
    assert scorecard.by_kernels(own) == [own]
    neon = scorecard.by_kernels(make({"solo": {"uma:isa=neon-i8mm": rows("ttft_ms", 5)}}))[1]
    assert (neon.machine["cpu"], neon.labels()) == ("test, our kernels as with neon-i8mm", ["uma"])
    card = scorecard.write([run], tmp_path)[2].read_text()
    assert "## tiny on test\n" in card and "## tiny on test, our kernels as with avx2\n" in card


def test_the_rows_of_an_instruction_set_need_their_own_servers() -> None:
    criteria = (*ON_CPU, *with_isa("avx2", ON_CPU))
    assert set(labels_for("throughput", criteria)) == {
        "uma", "uma:guard-off", "uma:isa=avx2", "uma:guard-off,isa=avx2", "llama-server"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu sse2 avx avx2 fma\n", ", AVX2"),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni\n", ", AVX-512"),
        ("Features\t: fp asimd asimddp i8mm\n", ", NEON with i8mm"),
        ("flags\t\t: fpu sse2\n", ""),
        ("", ""),
    ],
)
def test_processors_of_one_name_are_told_apart_by_their_widest_vectors(cpuinfo: str, expected: str) -> None:
    assert vector_unit(cpuinfo) == expected


@pytest.mark.parametrize("arguments", [["run", "strom"], ["accept", "--only", "solo", "--only", "strom"]])
def test_a_scenario_that_does_not_exist_is_said_before_anything_starts(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert "no scenario strom" in result.output and "storm" in result.output
