"""The pages about measured runs."""

from __future__ import annotations

from pathlib import Path

from perf import scorecard
from perf.results import Results, load
from tests.perf.made import make, rows


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
