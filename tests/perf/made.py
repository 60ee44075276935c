"""Results that were never measured."""

from __future__ import annotations

from perf.results import Cell, Results


def make(cells: dict[str, dict[str, list[dict[str, float]]]], **settings: object) -> Results:
    results = Results({"cpu": "test", "cores": 2}, "abc", "2000-01-01", {"model": "tiny", **settings})
    for scenario, row in cells.items():
        results.titles[scenario] = f"title of {scenario}"
        for label, figures in row.items():
            results.cells.setdefault(scenario, {})[label] = Cell(figures)
    return results


def rows(figure: str, *values: float) -> list[dict[str, float]]:
    return [{figure: value} for value in values]
