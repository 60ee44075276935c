"""A measured cost curve: time as a function of a size, with a slope per KV cell.

Between two measured sizes the curve is linear: a cliff stays between the two sizes where it was measured.
Beyond the last size it grows in proportion; below the first it is flat.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Curve(NamedTuple):
    """Shapes: the three tuples have one entry per measured size, ascending."""

    sizes: tuple[int, ...]
    base: tuple[float, ...]  # ns with no context
    slope: tuple[float, ...]  # ns per KV cell of context

    def ns(self, n: int, n_kv: float) -> float:
        """Time of size `n` over a context of `n_kv` cells."""
        sizes = self.sizes
        i = bisect_left(sizes, n)
        if i == len(sizes):
            grow = n / sizes[-1]
            return grow * (self.base[-1] + self.slope[-1] * n_kv)
        at_right = self.base[i] + self.slope[i] * n_kv
        if sizes[i] == n or i == 0:
            return at_right
        at_left = self.base[i - 1] + self.slope[i - 1] * n_kv
        return at_left + (at_right - at_left) * (n - sizes[i - 1]) / (sizes[i] - sizes[i - 1])


def fit_curve(points: dict[int, list[tuple[int, float]]], slope_guess: float) -> Curve:
    """Fit a curve to `points[size] = [(n_kv, ns), ...]`.

    A size that was measured at a single context length takes the slope of the nearest size that has one, else
    `slope_guess`. Both scale with the size.
    """
    slopes = {n: s for n, at in points.items() if (s := slope_of(at)) is not None}
    sizes = sorted(points)
    base, slope = [], []
    for n in sizes:
        own = slopes.get(n)
        if own is None:
            near = min(slopes, key=lambda m: abs(m - n), default=0)
            own = slopes[near] * n / near if near else slope_guess * n
        base.append(max(1.0, median([ns - own * n_kv for n_kv, ns in points[n]])))
        slope.append(own)
    return Curve(tuple(sizes), tuple(base), tuple(slope))


def slope_of(at: list[tuple[int, float]]) -> float | None:
    """Slope between the medians at the shortest and the longest context; None for a single context length."""
    low, high = min(kv for kv, _ in at), max(kv for kv, _ in at)
    if high == low:
        return None
    rise = median([ns for kv, ns in at if kv == high]) - median([ns for kv, ns in at if kv == low])
    return max(0.0, rise / (high - low))


def median(values: list[float]) -> float:
    ordered = sorted(values)
    mid = len(ordered) // 2
    return ordered[mid] if len(ordered) % 2 else (ordered[mid - 1] + ordered[mid]) / 2
