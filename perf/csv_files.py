"""Figures as CSV files, under the names and columns that documents and notebooks expect.

The times of all tokens are in tokens/ (results.py).

figures.csv          scenario,server,repeat,figure,value  all scenarios
long_ctx.SERVER.csv  ctx,tps                              context-*: prompt and generated tokens/s by document's tokens
ipc_overhead.csv     path,ttft_ms,cpu_pct                 ipc: a row per repeat; cpu_pct of a core, while streams run
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from perf.peers import HTTP, OURS, PEER
from perf.results import Results, file_name
from perf.scenarios import SCENARIOS
from perf.scenarios.context import LongContext

IPC = "ipc"
Row = Sequence[object]


def write(results: Results, folder: Path) -> list[Path]:
    """Write the files for which these results have figures; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [_write(folder / "figures.csv", ("scenario", "server", "repeat", "figure", "value"), _figures(results))]
    contexts = [name for name in results.cells if isinstance(SCENARIOS.get(name), LongContext)]
    for label in dict.fromkeys(label for name in contexts for label in results.cells[name]):
        paths.append(
            _write(
                folder / f"long_ctx.{file_name(label)}.csv",
                ("ctx", "tps"),
                _long_contexts(results, contexts, label),
            )
        )
    if IPC in results.cells:
        paths.append(_write(folder / "ipc_overhead.csv", ("path", "ttft_ms", "cpu_pct"), _ipc(results)))
    return paths


def _write(path: Path, header: Row, rows: Iterable[Row]) -> Path:
    with path.open("w", newline="") as sink:
        writer = csv.writer(sink)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _figures(results: Results) -> Iterator[Row]:
    for scenario, row in results.cells.items():
        for label, cell in row.items():
            for repeat, figures in enumerate(cell.figures):
                yield from ((scenario, label, repeat, name, _number(value)) for name, value in figures.items())


def _long_contexts(results: Results, names: Sequence[str], label: str) -> Iterator[Row]:
    for name in names:
        scenario = SCENARIOS[name]
        assert isinstance(scenario, LongContext)
        cell = results.cells[name].get(label)
        yield from ((scenario.n_document, _number(value)) for value in (cell.values("total_tok_s") if cell else ()))


def _ipc(results: Results) -> Iterator[Row]:
    for label, cell in results.cells[IPC].items():
        pairs = zip(cell.values("ttft_p50_ms"), cell.values("server_cpu_cores"), strict=True)
        yield from ((_path_of(label), _number(ttft), _number(100.0 * cores)) for ttft, cores in pairs)


def _path_of(label: str) -> str:
    """Return the path that a request takes: a Unix socket with frames, or HTTP with server-sent events."""
    name, _, variant = label.partition(":")
    path = {OURS: "uds", HTTP: "uma http", PEER: "http"}.get(name, f"http {name}")
    return f"{path} {variant}" if variant else path


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"
