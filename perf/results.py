"""Results of a run as values, and as the files that keep them.

All tables, plots and pages are made from these.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perf.stats import PhaseLog, Spread, ratio, spread

RESULTS = "results.json"
TOKENS = "tokens"  # folder of the CSV files
CSV_FIELDS = ("session_id", "token_idx", "ts_ms", "is_interactive")
ROOT = Path(__file__).resolve().parent.parent
_CHANGED = "+changes"  # ends a commit's name if files differed from it: two such names may stand for different code


@dataclass(slots=True)
class Cell:
    """One scenario on one server: figures of each repeat, and errors."""

    figures: list[dict[str, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    # repeats by run, if runs were joined; 0: that run did not have this server
    sizes: list[int] = field(default_factory=list)

    def runs(self, figure: str) -> list[list[float]]:
        """`values`, run by run."""
        ends = list(itertools.accumulate(self.sizes or [len(self.figures)]))
        values = self.values(figure)
        return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def values(self, figure: str) -> list[float]:
        """Return one value per repeat; NaN if it is missing."""
        return [row.get(figure, math.nan) for row in self.figures]

    def has_lost(self, figure: str) -> bool:
        """Whether its repeats should have had the figure, but none has a value."""
        return any(figure in row for row in self.figures) and all(map(math.isnan, self.values(figure)))

    def spread(self, figure: str) -> Spread:
        return spread(self.values(figure))


@dataclass(slots=True)
class Results:
    """One run of the harness."""

    machine: dict[str, Any]
    commit: str
    date: str
    settings: dict[str, Any]
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)  # scenario -> server label -> cell
    titles: dict[str, str] = field(default_factory=dict)
    allocator_warnings: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def cell(self, scenario: str, label: str) -> Cell:
        return self.cells.setdefault(scenario, {}).setdefault(label, Cell())

    def ratios(self, scenario: str, figure: str, ours: str, theirs: str) -> list[float]:
        """Return ours / theirs, repeat by repeat, so that measurements close in time are compared."""
        return [value for run in self.ratio_runs(scenario, figure, ours, theirs) for value in run]

    def ratio_runs(self, scenario: str, figure: str, ours: str, theirs: str) -> list[list[float]]:
        """Return the same, run by run."""
        row = self.cells.get(scenario, {})
        if ours not in row or theirs not in row:
            return []
        pairs = zip(row[ours].runs(figure), row[theirs].runs(figure), strict=True)
        return [[ratio(a, b) for a, b in zip(mine, others, strict=False)] for mine, others in pairs]

    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for row in self.cells.values() for label in row))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / (RESULTS + ".part")
        part.write_text(json.dumps(_plain(asdict(self)), indent=1) + "\n")
        part.replace(folder / RESULTS)


def load(folder: Path) -> Results:
    raw = json.loads((folder / RESULTS).read_text())
    cells = raw.pop("cells")
    results = Results(**raw)
    for scenario, row in cells.items():
        for label, cell in row.items():
            figures = [{k: math.nan if v is None else float(v) for k, v in each.items()} for each in cell["figures"]]
            results.cells.setdefault(scenario, {})[label] = Cell(figures, cell["errors"], cell.get("sizes", []))
    return results


class MixedCommits(ValueError):
    """Runs that would share a table were made with different code."""


def merge(runs: Sequence[Results]) -> list[Results]:
    """Join runs of one machine and setting into one. A scenario that several runs have keeps the repeats of all of
    them.

    Raises: MixedCommits.
    """
    out: dict[str, Results] = {}
    for run in runs:
        key = json.dumps(
            [run.machine, {k: v for k, v in run.settings.items() if k != "bare_decode_tok_s"}, "tick" in run.cells]
        )
        if key not in out:
            out[key] = Results(run.machine, run.commit, run.date, dict(run.settings))
        joined = out[key]
        if joined.cells and (run.commit != joined.commit or not run.commit or run.commit.endswith(_CHANGED)):
            raise MixedCommits(
                f"{', '.join(run.cells)} on {run.machine.get('cpu')} is of commit {run.commit or 'unknown'}, "
                f"{', '.join(joined.cells)} of {joined.commit or 'unknown'}: a table holds one commit, without "
                "changes, so measure all of it again, or leave one out"
            )
        joined.settings |= run.settings
        for scenario, row in run.cells.items():
            joined.cells[scenario] = _joined(joined.cells.get(scenario), row)
        joined.titles |= run.titles
        joined.notes += run.notes
        joined.date = max(joined.date, run.date)
        for label, n in run.allocator_warnings.items():
            joined.allocator_warnings[label] = joined.allocator_warnings.get(label, 0) + n
    return list(out.values())


def _joined(before: dict[str, Cell] | None, row: dict[str, Cell]) -> dict[str, Cell]:
    """Join a scenario's cells with those of one more run."""
    if before is None:
        return row
    n_runs = max(len(cell.sizes) or 1 for cell in before.values())
    out = {}
    for label in (*before, *(label for label in row if label not in before)):
        old, new = before.get(label, Cell(sizes=[0] * n_runs)), row.get(label, Cell())
        out[label] = Cell(
            old.figures + new.figures, old.errors + new.errors, [*(old.sizes or [len(old.figures)]), len(new.figures)]
        )
    return out


def _plain(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 4)
    return value


def file_name(label: str) -> str:
    """Return a file name for a server's label, which may contain paths."""
    return label.replace(":", "-").replace("/", "-")


def csv_name(scenario: str, label: str, repeat: int) -> str:
    return f"{scenario}.{file_name(label)}.r{repeat}.csv"


def write_tokens(path: Path, logs: dict[str, PhaseLog]) -> None:
    """Write every token of every stream; `session_id` is phase/stream, times count from the phase's start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as sink:
        writer = csv.writer(sink)
        writer.writerow(CSV_FIELDS)
        for phase, log in logs.items():
            for s in log.streams:
                name = f"{phase}/{s.name}"
                writer.writerows(
                    (name, i, f"{(t - log.t_start) / 1e6:.3f}", int(s.is_interactive)) for i, t in enumerate(s.t_tokens)
                )


def read_tokens(path: Path) -> dict[str, tuple[bool, list[float]]]:
    """Read session_id -> (is_interactive, times in ms)."""
    out: dict[str, tuple[bool, list[float]]] = {}
    with path.open(newline="") as source:
        for row in csv.DictReader(source):
            entry = out.setdefault(row["session_id"], (row["is_interactive"] == "1", []))
            entry[1].append(float(row["ts_ms"]))
    return out


def machine_facts() -> dict[str, Any]:
    """Return what a reader needs for comparison: processor, cores, memory, system, accelerator."""
    facts: dict[str, Any] = {"system": f"{platform.system()} {platform.machine()}", "python": platform.python_version()}
    cpuinfo = _read("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    facts["cpu"] = (models[0] if models else platform.processor() or "unknown") + vector_unit(cpuinfo)
    isa = os.environ.get("UMA_ISA", "auto")  # like a machine of another class, as far as our kernels are concerned
    facts["cpu"] += kernels_of(isa) if isa != "auto" else ""
    facts["cores"] = len(models) or None
    memory = [line.split()[1] for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal")]
    facts["memory_gb"] = round(int(memory[0]) / 2**20, 1) if memory else None
    gpu = _output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    if gpu:
        facts["gpu"] = gpu.splitlines()
    return facts


def kernels_of(isa: str) -> str:
    """Return the addition to a processor's name if our kernels are those of a smaller one."""
    return f", our kernels as with {isa}"


def vector_unit(cpuinfo: str) -> str:
    """Return the addition for a vector unit that a processor's name does not show (", AVX-512"), from Linux's list of
    its features; "" if none is known.
    """
    features = set(re.findall(r"[a-z0-9_]+", cpuinfo))
    known = (
        ("avx512f", "AVX-512"),
        ("avx2", "AVX2"),
        ("sve", "SVE"),
        ("i8mm", "NEON with i8mm"),
        ("asimddp", "NEON with dotprod"),
    )
    return next((f", {name}" for feature, name in known if feature in features), "")


def commit_id() -> str:
    """Return the tree's commit, marked if files differ from it; outside a repository, UMA_PERF_COMMIT."""
    commit = _output(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
    if not commit:
        return os.environ.get("UMA_PERF_COMMIT", "")
    is_dirty = bool(_output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"]))
    return commit + (_CHANGED if is_dirty else "")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _output(command: Iterable[str]) -> str:
    try:
        return subprocess.run(list(command), capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
