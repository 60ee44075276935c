"""One mechanism of the scheduler is switched off, in the simulator and in a separate daemon."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from perf import ablation, cli
from perf.ablation import Constant, constants
from perf.cli import main
from perf.harness import Plan
from perf.servers import Settings, UmaServer
from perf.simulated import Point, survey
from tests.forks import server_of
from tests.perf.without import CASE
from uma_core import policy


@pytest.mark.parametrize("name", [name for name, mechanism in ablation.MECHANISMS.items() if mechanism.is_simulated])
def test_without_any_of_them_everybody_is_served(name: str) -> None:
    """Each runs in a separate process, in which the mechanism is gone for good. Its replacement must be there."""
    assert server_of("tests.perf.without").start("tests.perf.without", [name], stderr=2).wait(120) == 0


def test_a_mechanism_is_off_wherever_it_is_read() -> None:
    """A module that imported the name would keep the old value."""
    folder = Path(policy.__path__[0])
    importers: dict[tuple[str | None, str], set[str]] = {}
    for path in folder.rglob("*.py"):
        module = ".".join(("uma_core", "policy", *path.relative_to(folder).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                importers.setdefault((node.module, alias.name), set()).add(module)
    another_role = {"uma_core.policy.stages.prefill_budget"}  # it sizes chunks by the steps of a short prompt
    for mechanism in ablation.MECHANISMS.values():
        modules = {module for module, _, _ in mechanism.patches}
        for module, name, _ in mechanism.patches:
            assert importers.get((module, name), set()) - modules <= another_role, (mechanism.name, name)


def test_figures_say_what_moved_and_where() -> None:
    whole = survey(*CASE, n_seeds=1)
    worse = {point: value * (1.5 if point.figure == "tbt_p95_x" else 1.0) for point, value in whole.items()}
    changes = ablation.moved(whole, worse)
    assert changes["tbt_p95_x"][0] == pytest.approx(0.5) and changes["pause_x"][0] == 0.0
    assert ablation.row("error", "what", changes).endswith("| tbt_p95_x +50% |")
    assert "| none; most: " in ablation.row("error", "what", ablation.moved(whole, whole))
    assert all(isinstance(point, Point) for point in whole)


def test_a_daemon_without_a_mechanism_is_another_program_with_the_same_options(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "model.gguf", 2, 4, 4096)
    whole, without = (
        UmaServer(f"uma{variant}", settings, tmp_path).command() for variant in ("", ":without-mixed-batches")
    )
    assert whole[1:4] == ["-m", "uma_core", "daemon"] and without[1:5] == [
        "-m",
        "perf.ablation",
        "mixed-batches",
        "daemon",
    ]


def test_unknown_mechanisms_are_refused() -> None:
    result = CliRunner().invoke(main, ["ablate", "turbo"])
    assert result.exit_code == 2 and "no mechanism turbo" in result.output
    assert ablation.main(["turbo", "daemon"]) == 2


def test_what_the_simulator_cannot_show_is_refused_there() -> None:
    result = CliRunner().invoke(main, ["ablate", "error", "ahead"])
    assert result.exit_code == 2 and "does not show the effect of ahead: --daemon does" in result.output


def test_a_daemon_is_measured_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr(cli, "_execute", lambda plan, *_: plans.append(plan))
    assert CliRunner().invoke(main, ["ablate", "error", "--daemon", "--repeats", "2"]).exit_code == 0
    assert {job.repeats for job in plans[0].jobs} == {2}
    assert {job.labels for job in plans[0].jobs} == {("uma", "uma:without-error")}


@pytest.mark.parametrize("other", ["error", "--daemon"])
def test_what_constants_would_leave_out_is_refused(other: str) -> None:
    result = CliRunner().invoke(main, ["ablate", "--constants", other])
    assert result.exit_code == 2 and "--constants goes with neither" in result.output


def test_the_daemon_runs_without_one(tmp_path: Path) -> None:
    """The help text comes from the product's own command line."""
    shown = subprocess.run(
        [sys.executable, "-m", "perf.ablation", "error", "daemon", "--help"], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0 and "--guard-cap" in shown.stdout


def test_every_tuned_number_of_the_policy_is_known_and_there_are_few() -> None:
    """A new number needs a measurement, and another number has to go."""
    found = constants()
    assert {"GAIN", "STEPS", "TOGETHER"} <= {each.name for each in found} and len(found) <= 29
    assert {each.module.rpartition(".")[2] for each in found} >= {"learn", "deadlines", "latency_guard"}


def test_half_and_twice_of_a_factor_are_those_of_what_it_adds() -> None:
    assert Constant("m", "N", 4).others == (2, 8)
    assert Constant("m", "N", 1.1).others == pytest.approx((1.05, 1.2))
    assert Constant("m", "N", 0.5).others == (0.25, 1.0)


def test_a_changed_number_changes_it_wherever_it_is_read() -> None:
    """`deadlines` and `prefill_budget` both read `STEPS`."""
    code = (
        "from perf.ablation import change, constants; change(next(c for c in constants() if c.name == 'STEPS'), 7); "
        "from uma_core.policy import deadlines; from uma_core.policy.stages import prefill_budget; "
        "print(deadlines.STEPS, prefill_budget.STEPS)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout.split() == ["7", "7"]
