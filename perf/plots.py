"""Draws two pictures per scenario from its CSV files: when each stream's tokens arrived, and how long the gaps were.

They show the loaded phase: the last one, if there are several. matplotlib is an extra; without it there are no
pictures, and nothing else changes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from perf.results import TOKENS, Results, csv_name, read_tokens
from perf.scenarios.base import SOLO_AGAIN

_COLOURS = ("#1f77b4", "#999999")  # interactive streams, and others


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(results: Results, folder: Path) -> list[Path]:
    """Write timeline and histogram of every scenario; returns the files. Shows the first repeat of each server."""
    import matplotlib

    matplotlib.use("Agg")
    written = []
    for scenario, row in results.cells.items():
        data = {}
        for label in row:
            path = folder / TOKENS / csv_name(scenario, label, 0)
            streams = read_tokens(path) if path.exists() else {}
            if streams:
                data[label] = streams
        if data:
            written += [_timeline(scenario, data, folder), _histogram(scenario, data, folder)]
    return written


def _loaded_phase(streams: dict[str, Any]) -> str:
    """Return the last phase, but for the stream alone after it."""
    return [phase for name in streams if (phase := name.partition("/")[0]) != SOLO_AGAIN][-1]


def _timeline(scenario: str, data: dict[str, Any], folder: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(data), 1, figsize=(11, 1 + 2.2 * len(data)), sharex=True, squeeze=False)
    for axis, (label, streams) in zip(axes[:, 0], data.items(), strict=True):
        phase = _loaded_phase(streams)
        shown = {name: value for name, value in streams.items() if name.startswith(phase + "/")}
        for y, (is_interactive, times) in enumerate(shown.values()):
            axis.plot(
                [t / 1000 for t in times], [y] * len(times), "|", markersize=7, color=_COLOURS[not is_interactive]
            )
        axis.set_yticks(range(len(shown)), [name.partition("/")[2] for name in shown], fontsize=7)
        axis.set_title(label, fontsize=9, loc="left")
    axes[-1, 0].set_xlabel("seconds; one mark is one token")
    return _save(figure, folder / "plots" / f"{scenario}-timeline.png")


def _histogram(scenario: str, data: dict[str, Any], folder: Path) -> Path:
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axis = plt.subplots(figsize=(8, 4))
    for label, streams in data.items():
        phase = _loaded_phase(streams)
        shown = [
            times
            for name, (is_interactive, times) in streams.items()
            if is_interactive and name.startswith(phase + "/")
        ]
        gaps = np.concatenate([np.diff(times) for times in shown]) if shown else np.array([])
        gaps = np.maximum(gaps, 0.1)
        if len(gaps):
            axis.hist(
                gaps, bins=np.geomspace(0.1, max(gaps.max(), 1.0) * 1.05, 80).tolist(), histtype="step", label=label
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("gap between tokens of interactive streams, ms")
    axis.set_ylabel("gaps")
    axis.legend(fontsize=8)
    return _save(figure, folder / "plots" / f"{scenario}-gaps.png")


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
