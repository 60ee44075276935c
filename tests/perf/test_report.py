"""Tables, sentences, plots and pages about results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from perf import findings, plots, report, scorecard
from perf.criteria import Criterion, judge
from perf.results import csv_name, merge, write_tokens
from perf.stats import PhaseLog, StreamLog
from tests.perf.made import make, rows
from tests.perf.test_results import logs


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
    assert "after 100 ms instead of 120." in findings_text
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


def test_plots_show_the_load_and_not_the_stream_alone_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    shown: dict[str, Any] = {}
    monkeypatch.setattr(plots, "_save", lambda figure, path: shown.setdefault(path.name, figure))
    chat, prompt = StreamLog("chat", True, 4, 2, 0, (1, 2), 2), StreamLog("storm0", False, 4, 1, 0, (1,), 1)
    phases = {"solo": PhaseLog(0, (chat,)), "loaded": PhaseLog(0, (chat, prompt)), "solo-again": PhaseLog(0, (chat,))}
    write_tokens(tmp_path / "tokens" / csv_name("storm", "uma", 0), phases)
    plots.draw(make({"storm": {"uma": rows("p95_x", 1.0)}}), tmp_path)
    assert [label.get_text() for label in shown["storm-timeline.png"].axes[0].get_yticklabels()] == ["chat", "storm0"]
