"""Decode steps and prompts by number of threads: ours beside llama.cpp's, alternating call by call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perf.engines import Bench, Case, Timing

CASES = (Case("decode", 1, 256), Case("decode", 4, 256), Case("decode", 16, 256), Case("prefill", 256, 0))
VARIANTS = ("llama.cpp", "graph")


@dataclass(frozen=True, slots=True)
class Row:
    threads: int
    timing: Timing


def measure(model: str, counts: tuple[int, ...], rounds: int) -> Iterator[Row]:
    """Yield timings. Blocks: both engines are loaded for each count."""
    for threads in counts:
        bench = Bench(model, threads, CASES, VARIANTS)
        try:
            for case in CASES:
                for timing in bench.measure(case, rounds):
                    yield Row(threads, timing)
        finally:
            bench.close()


def table(rows: list[Row]) -> str:
    """Return the speed-up over the fewest threads of the same engine, and ours over llama.cpp's at the same count."""
    ms = {(row.timing.case, row.timing.variant, row.threads): row.timing for row in rows}
    counts = sorted({row.threads for row in rows})
    lines = [
        "| case | threads | llama.cpp, ms | speed-up | ours, ms | speed-up | ours, x llama.cpp |",
        "| --- " * 7 + "|",
    ]
    for case in dict.fromkeys(row.timing.case for row in rows):
        for n in counts:
            theirs, ours = (ms[case, variant, n] for variant in VARIANTS)
            gains = [ms[case, variant, counts[0]].ms / ms[case, variant, n].ms for variant in VARIANTS]
            lines.append(
                f"| {case.name} | {n} | {_spread(theirs)} | {gains[0]:.2f} | {_spread(ours)} | {gains[1]:.2f} | "
                f"{theirs.ms / ours.ms:.2f} |"
            )
    return "\n".join(lines)


def _spread(timing: Timing) -> str:
    return f"{timing.ms:.1f} ({timing.p10_ms:.1f} to {timing.p90_ms:.1f})"
