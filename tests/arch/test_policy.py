"""How the policy is built: stages know nothing of each other, and its words are those of docs/GLOSSARY.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

POLICY = Path(__file__).resolve().parents[2] / "uma_core" / "policy"
STAGES = list((POLICY / "stages").glob("[a-z]*.py"))
RETIRED = (
    r"\b(talkers?|workers?|rid(e|es|ers?|ing)|knobs?|talk_ns|carry|guard_memory|gap_limits|lanes?"
    r"|n_prefill_lanes|solo_ns|cap_ns|pause_ns|inter.?token)\b"
)


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("path", STAGES, ids=lambda path: path.stem)
def test_a_stage_imports_no_other_stage(path: Path) -> None:
    others = {f"uma_core.policy.stages.{other.stem}" for other in STAGES} | {"uma_core.policy.stages"}
    assert not imported(path) & others


@pytest.mark.parametrize("path", STAGES, ids=lambda path: path.stem)
def test_a_stage_reads_and_writes_its_own_memory_only(path: Path) -> None:
    text = path.read_text()
    touched = set(re.findall(r"\bmemory\.([a-z_]+)\b", text)) | set(re.findall(r"\bremember\(([a-z_]+)=", text))
    fields = {"fairness", "decode_first", "prefill_budget", "latency_guard"}
    assert touched & fields <= {path.stem}


def test_the_index_decides_nothing() -> None:
    ours = {name for name in imported(POLICY / "index.py") if name.startswith("uma_core.policy")}
    assert ours == {"uma_core.policy.plan", "uma_core.policy.state"}


def test_nobody_outside_works_out_a_streams_limits() -> None:
    root = POLICY.parent
    users = [p for p in root.rglob("*.py") if "tbt_limits" in p.read_text() and POLICY not in p.parents]
    assert users == []


def lines_with(pattern: str, folder: Path, without: str = r"(?!)") -> list[str]:
    """Return the lines of a folder's modules in which something matches. Text that matches `without` is ignored."""
    return [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, re.sub(without, "", line), re.IGNORECASE)
    ]


def test_retired_words_stay_out() -> None:
    assert lines_with(RETIRED, POLICY) == []


@pytest.mark.parametrize("package", ["uma_core", "uma_ctl", "uma_gateway"])
def test_words_retired_everywhere_stay_out(package: str) -> None:
    words = (
        r"(talkers?|knobs?|hush|bells?|legs?|pretend(s|ed)?|hand_?over|admittance|books|holdings?|goes_on|patience"
        r"|(un)?settled?|settling|(un)?arrang(e|ed|es|ing|eable))"
    )
    assert lines_with(rf"(\b|_){words}(\b|_)", POLICY.parents[1] / package) == []


@pytest.mark.parametrize("package", ["uma_core", "uma_ctl", "uma_gateway"])
def test_a_priority_and_a_prefill_slot_are_called_so(package: str) -> None:
    """`lane` remains only where a field, a metric's label or an option has that name for its users."""
    names = r"auto_lane_tokens|lane_ceiling|prefill_lanes|_LANE\b|[\"'`{]lanes?[\"'`]|\blane=|lanes\.LANE"
    assert lines_with(r"\blanes?\b|_lanes?\b|\blanes?_", POLICY.parents[1] / package, names) == []
