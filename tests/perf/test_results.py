"""Results on disk, and several runs that become one."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from perf import cli
from perf.results import (
    CSV_FIELDS,
    MixedCommits,
    csv_name,
    load,
    machine_facts,
    merge,
    read_tokens,
    vector_unit,
    write_tokens,
)
from perf.stats import PhaseLog, StreamLog
from tests.perf.made import make, rows

MS = 1_000_000


def logs() -> dict[str, PhaseLog]:
    chat = StreamLog("chat", True, 3, 3, 0, (10 * MS, 26 * MS, 42 * MS), 42 * MS)
    other = StreamLog("storm0", False, 3, 1, 5 * MS, (30 * MS,), 30 * MS)
    return {"loaded": PhaseLog(0, (chat, other))}


def test_results_survive_the_disk(tmp_path: Path) -> None:
    results = make({"solo": {"uma": [{"ttft_ms": 1.5, "itl_p50_ms": math.nan}]}}, threads=2)
    results.notes.append("short")
    results.save(tmp_path)
    again = load(tmp_path)
    assert again.settings == results.settings and again.notes == ["short"] and again.titles == results.titles
    assert again.cells["solo"]["uma"].values("ttft_ms") == [1.5]
    assert math.isnan(again.cells["solo"]["uma"].values("itl_p50_ms")[0])


def test_csv_has_the_documented_fields_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / csv_name("storm", "uma:at=/some/checkout", 0)
    write_tokens(path, logs())
    assert path.parent == tmp_path, "beside the other servers' files"
    with path.open() as source:
        table = list(csv.reader(source))
    assert table[0] == list(CSV_FIELDS) == ["session_id", "token_idx", "ts_ms", "is_interactive"]
    assert table[1] == ["loaded/chat", "0", "10.000", "1"]
    assert len(table) == 5
    assert read_tokens(path)["loaded/storm0"] == (False, [30.0])


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
    for unsure in ("abc+changes", ""):
        first.commit = second.commit = unsure
        with pytest.raises(MixedCommits, match="without changes"):
            merge([first, second])
    second.settings["gpu_layers"] = -1
    assert len(merge([first, second])) == 2, "another machine or setting is another table"


def test_kernels_of_another_instruction_set_are_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMA_ISA", raising=False)
    plain = machine_facts()["cpu"]
    monkeypatch.setenv("UMA_ISA", "avx2")
    assert machine_facts()["cpu"] == f"{plain}, our kernels as with avx2"


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
