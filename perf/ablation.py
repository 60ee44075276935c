"""Mechanisms of the scheduler that can be switched off one at a time, and its tuned constants, each halved and doubled,
to see which figures they move.

    python -m perf.ablation MECHANISM daemon ...     our daemon without it

Rules: a mechanism is switched off by replacing a function or a constant of the policy in this process. The product
does not know about it.
"""

from __future__ import annotations

import ast
import importlib
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from perf.simulated import Point, survey
from uma_core import policy

MOVED = 0.03  # mean change of a figure over all cases; smaller changes are the noise of four seeds
_P = "uma_core.policy."


@dataclass(frozen=True, slots=True)
class Mechanism:
    name: str
    what: str
    patches: tuple[tuple[str, str, Any], ...]  # module, attribute (dotted inside a class), its replacement
    is_simulated: bool = True  # False: only a real machine shows its effect


def _none(*_: Any) -> None:
    return None


def _rounds(steps: float, part: float, step_ns: int, round_ns: int) -> int:
    return int(steps * round_ns)


def _one_call(decode: Any) -> tuple[tuple[int, ...], ...]:
    return ((), *((n,) for n in range(1, 33)))


def _without_slots(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: wrapped(*args)._replace(n_prefill_slots=0)


def _efficient(state: Any, view: Any, room: Any) -> int:
    chunks = importlib.import_module(_P + "chunks")
    found: int = chunks.efficient(state.cost, view, chunks.chunk_limit(state))
    return found


_SAME = (lambda model, reports: model,)
MECHANISMS: dict[str, Mechanism] = {
    m.name: m
    for m in (
        Mechanism("error", "learned error of predictions", ((_P + "tbt.controller", "ERROR_MOST", 0.0),)),
        Mechanism("least-room", "room that a noisy machine leaves", ((_P + "tbt.controller", "LEAST", 0.0),)),
        Mechanism("reserve", "reserve below the long limit", ((_P + "tbt.controller", "RESERVE", 0.0),)),
        Mechanism(
            "long-gaps",
            "token bucket of long gaps",
            ((_P + "stages.latency_guard", "Gap.has_long", property(lambda gap: False)),),
        ),
        Mechanism("many-streams", "limits of many streams in steps of one", ((_P + "tbt.limits", "_limit", _rounds),)),
        Mechanism(
            "deadlines",
            "long gaps for first tokens that are due",
            ((_P + "stages.latency_guard", "is_late", lambda *_: False),),
        ),
        Mechanism("short-prompts", "more time for short prompts", ((_P + "deadlines", "STEPS", 1e-9),)),
        Mechanism(
            "begin-together", "chats that begin together", ((_P + "pipeline", "begin_together", lambda state: state),)
        ),
        Mechanism(
            "rarely",
            "coarse pieces are forced more rarely",
            ((_P + "tbt.limits", "RARELY", 1), (_P + "repeat", "RARELY", 1)),
        ),
        Mechanism("mixed-batches", "prompt rows in the streams' own call", ((_P + "chunks", "mixed_rows", _none),)),
        Mechanism(
            "mixed-cost", "learned cost of mixed rows", ((_P + "cost.learn", "_with_mixed", lambda model, *_: model),)
        ),
        Mechanism("gap-chunks", "chunks sized for gaps", ((_P + "chunks", "_sliced_size", _efficient),)),
        Mechanism("splits", "split of rows into several calls", ((_P + "cost.calibrate", "best_splits", _one_call),)),
        Mechanism(
            "row-counts",
            "a correction for each doubling of rows",
            ((_P + "cost.model", "regime_of", lambda n: 0), (_P + "cost.learn", "regime_of", lambda n: 0)),
        ),
        Mechanism(
            "learning",
            "correction of the cost model",
            (("perf.simulator", "observe", *_SAME), ("uma_core.executor.executor", "observe", *_SAME)),
        ),
        Mechanism(
            "slices",
            "chunks that pause between pieces (else: sized chunks)",
            (
                ("perf.simulator", "device_of", _without_slots),
                ("uma_core.executor.executor", "device_view", _without_slots),
            ),
        ),
        Mechanism("repetition", "plans carried out again", ((_P + "pipeline", "n_repeats", lambda *_: 0),)),
        Mechanism("bmt", "estimate of bytes moved", ((_P + "stages.bmt_guard", "run", lambda state, plan: plan),)),
        Mechanism(
            "ahead",
            "decode calls begun ahead",
            (("uma_core.engine.graph.engine", "pays", lambda *_: False),),
            is_simulated=False,
        ),
    )
}


def switch_off(name: str) -> None:
    """Switch off a mechanism in this process, for good."""
    for module, path, value in MECHANISMS[name].patches:
        owner: Any = importlib.import_module(module)
        *classes, attribute = path.split(".")
        for each in classes:
            owner = getattr(owner, each)
        getattr(owner, attribute)  # fails for a mechanism that no longer exists
        setattr(owner, attribute, value(getattr(owner, attribute)) if value is _without_slots else value)
    pipeline = importlib.import_module(_P + "pipeline")
    if name == "bmt":
        pipeline.REGISTRY["bmt_guard"] = pipeline.StageSpec()


class Constant(NamedTuple):
    """A tuned number of the policy."""

    module: str
    name: str
    value: float

    @property
    def others(self) -> tuple[float, float]:
        """Return half of the value and twice as much; for a factor between 1 and 2, half and twice its excess
        over 1.
        """
        if 1.0 < self.value < 2.0:
            return 1.0 + (self.value - 1.0) / 2, 1.0 + (self.value - 1.0) * 2
        return (self.value // 2 if isinstance(self.value, int) else self.value / 2), self.value * 2


# Not tuned: given by the engine, timed by calibration, or counts of such values.
FACTS = frozenset({"LONG", "LONG_GAP", "MAX_ROWS", "N_STEPS", "PAGE", "TILE_ROWS", "UNLIMITED_NS"})


def constants() -> list[Constant]:
    """Return all tuned numbers of the policy, as its modules declare them."""
    folder = Path(policy.__path__[0])
    found = []
    for path in sorted(folder.rglob("*.py")):
        module = _P + ".".join(path.relative_to(folder).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                value = node.value.value if isinstance(node.value, ast.Constant) else None
                if name.isupper() and name not in FACTS and isinstance(value, int | float):
                    found.append(Constant(module, name, value))
    return found


def change(constant: Constant, value: float) -> None:
    """Change a constant in this process, for good, wherever the policy has imported it."""
    importlib.import_module(_P + "pipeline")
    importlib.import_module(constant.module)
    for name, module in list(sys.modules.items()):
        if name.startswith(_P) and constant.name in vars(module):
            setattr(module, constant.name, value)


def _one(job: tuple[str | tuple[Constant, float], int]) -> dict[Point, float]:
    without, n_seeds = job
    if isinstance(without, tuple):
        change(*without)
    elif without:
        switch_off(without)
    return survey(n_seeds=n_seeds)


def simulate(
    changes: Iterable[str | tuple[Constant, float]], n_seeds: int, n_processes: int
) -> Iterator[dict[Point, float]]:
    """Yield the figures of the whole policy, then with each change: without the mechanism of that name, or with another
    value of the constant.

    Blocks for about a minute each.
    """
    with multiprocessing.get_context("spawn").Pool(n_processes, maxtasksperchild=1) as pool:
        yield from pool.imap(_one, [(change, n_seeds) for change in ("", *changes)], chunksize=1)


def moved(whole: dict[Point, float], without: dict[Point, float]) -> dict[str, tuple[float, float, Point]]:
    """Return, by figure, its mean change over all points, and the largest change with its point. Positive: worse
    without.
    """
    changes: dict[str, list[tuple[float, Point]]] = {}
    for point, value in whole.items():
        if point in without:
            changes.setdefault(point.figure, []).append((math.log(without[point] / value), point))
    out = {}
    for figure, found in changes.items():
        most, where = max(found, key=lambda pair: abs(pair[0]))
        out[figure] = (math.exp(sum(c for c, _ in found) / len(found)) - 1.0, math.exp(most) - 1.0, where)
    return out


def row(name: str, what: str, changes: dict[str, tuple[float, float, Point]]) -> str:
    """Return a line of the table: the figures that moved, or the largest change that was too small."""
    shown = [f"{figure} {mean:+.0%}" for figure, (mean, _, _) in changes.items() if abs(mean) >= MOVED]
    if not shown:
        figure, (_, most, where) = max(changes.items(), key=lambda item: abs(item[1][1]))
        shown = [f"none; most: {figure} {most:+.0%} ({where.case}, {where.profile}, {where.machine})"]
    return f"| {name} | {what} | {', '.join(shown)} |"


def main(argv: list[str]) -> int:
    if len(argv) < 2 or argv[0] not in MECHANISMS:
        print(f"usage: python -m perf.ablation {{{','.join(MECHANISMS)}}} daemon ...", file=sys.stderr)
        return 2
    switch_off(argv[0])
    from uma_core.cli import main as run

    sys.argv = ["uma-core", *argv[1:]]
    return int(run() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
