"""Batch sizes are given as ratios, and the options follow from them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from perf import batches
from perf.batches import Found, Size, advice, table
from perf.cli import main
from tests.trained import DRAFT


def found(row_ms: list[float], chunk_speeds: list[float]) -> Found:
    rows = tuple(Size(n, ms, n / ms * row_ms[0]) for n, ms in zip((1, 2, 4, 8), row_ms, strict=True))
    return Found(
        rows, tuple(Size(n, 0.0, speed, 10.0) for n, speed in zip((16, 32, 64, 128), chunk_speeds, strict=True))
    )


@pytest.mark.parametrize(
    ("row_ms", "chunk_speeds", "n_seq", "n_ubatch"),
    [
        ([10.0, 11.0, 12.0, 14.0], [1.0, 1.8, 3.0, 5.0], 8, 128),
        ([10.0, 14.0, 20.0, 40.0], [1.0, 1.5, 1.52, 1.4], 2, 32),
        ([10.0, 20.0, 40.0, 80.0], [1.0, 1.01, 1.0, 1.0], 1, 16),
    ],
)
def test_what_follows(row_ms, chunk_speeds, n_seq, n_ubatch):
    told = found(row_ms, chunk_speeds)
    assert (told.n_seq, told.n_ubatch) == (n_seq, n_ubatch)
    assert f"--parallel {n_seq}:" in advice(told) and f"--n-ubatch {n_ubatch}:" in advice(told)


def test_the_table_has_ratios():
    lines = table(found([10.0, 11.0, 12.0, 14.0], [1.0, 1.8, 3.0, 5.0])).splitlines()
    assert "| 8 | 1.40 | 5.71 |" in lines and "| 64 | 3.00 | 10 |" in lines


def test_a_model_that_is_not_there_is_a_line_and_no_traceback(tmp_path):
    done = CliRunner().invoke(main, ["batches", "--model", str(tmp_path / "absent.gguf")])
    assert done.exit_code == 1 and "absent.gguf: No such file" in done.output


@pytest.mark.model
@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_a_model_is_measured(engine, monkeypatch):
    monkeypatch.setattr(batches, "ROWS", (1, 2))
    monkeypatch.setattr(batches, "CHUNKS", (16, 128))
    done = CliRunner().invoke(
        main, ["batches", "--model", str(DRAFT), "--engine", engine, "--depth", "64", "--rounds", "1", "--threads", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "| 2 |" in done.output and "| 128 |" in done.output and "--parallel" in done.output
