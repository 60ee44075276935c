"""Correction of the cost model by the measured times of calls.

Rules: pure. An error is clipped, so one outlier moves a prediction by less than 4 %. Regimes that were never seen
follow their nearest neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable

from uma_core.policy.cost.curve import median
from uma_core.policy.cost.model import MIXED, NOISE, PREFILL, CostModel, regime_of
from uma_core.policy.state import CallReport
from uma_core.types import Phase

# Share of its error by which one call corrects: 20 calls follow a change of speed, and 3 % of noise stays below 1 %.
# Double changes no figure by 1 %; with half background work takes 4 % less time, and pauses grow by 1 %.
GAIN = 0.15
# Factor to which one call's error is clipped, slower or faster than predicted. With 1.12 TBT grows by 1.5 %, with 1.5
# background work takes 4 % longer.
CLIP = 1.25
# Share of the mixed rows' correction that each call without such rows forgets: rows that were expensive once are tried
# again after about 20 steps. The simulator shows no effect, because its mixed rows always take the measured time. What
# a storm loses with 0.15: see `ERROR_MOST`.
FORGET = 0.05


def observe(model: CostModel, reports: Iterable[CallReport]) -> CostModel:
    """Correct the model with measured calls. Each report corrects only the error that earlier reports left."""
    seen = [r for r in reports if not r.is_full and max(r.predicted_ns, r.whole_ns) > 0 and r.elapsed_ns > 0]
    if not seen:
        return model
    old, errors = model.factors, dict[int, list[float]]()
    calls = [r for r in seen if r.phase is Phase.DECODE]
    for report in calls:
        if not report.n_mixed:
            errors.setdefault(regime_of(report.n_rows), []).append(report.elapsed_ns / report.predicted_ns)
        # Fewer rows never take longer. Otherwise a step that was timed too long would stay so for as long as other rows
        # share all its calls, and a chat's gaps would be judged by it. (Correcting a guess too, background work was
        # held back up to 17 times in the simulator.)
        n = report.n_rows - report.n_mixed
        for regime in range(regime_of(n) + (report.n_mixed > 0)) if model.is_measured else ():
            fewer_ns = model.decode_ns(min(1 << regime, n), 0)
            if fewer_ns > report.elapsed_ns:
                errors.setdefault(regime, []).append(report.elapsed_ns / fewer_ns)
    mixed = [r for r in calls if r.n_mixed]
    model = _with_mixed(model, mixed, len(calls) - len(mixed))
    for report in seen:
        if report.phase is Phase.PREFILL:
            model = _with_chunk(model, report, old[PREFILL])
    for regime, found in errors.items():
        while found and _is_guess(model, regime):
            model = _with_errors(model, regime, found.pop(0) * old[regime] / model.factors[regime], 1)
        if found:
            model = _with_errors(model, regime, median(found) * old[regime] / model.factors[regime], len(found))
    return model


def _is_guess(model: CostModel, regime: int) -> bool:
    """Whether the regime is still a guess. The mean of its calls is then better than a small correction."""
    return not model.is_measured and model.counts[regime] + 1 < 1 / GAIN


def _with_errors(model: CostModel, regime: int, error: float, n: int) -> CostModel:
    """Move a regime by the median error of n calls. The clip widens with n, because a median ignores outliers."""
    if _is_guess(model, regime):
        gain, error = 1.0 / (model.counts[regime] + 1), min(CLIP**10, max(CLIP**-10, error))
    else:
        gain, error = 1.0 - (1.0 - GAIN) ** n, min(CLIP**n, max(CLIP**-n, error))
    return _corrected(model, regime, model.factors[regime] * (1.0 + gain * (error - 1.0)), n)


def _with_chunk(model: CostModel, report: CallReport, factor: float) -> CostModel:
    """Move the prefill regime by a chunk, or one run of it, that was predicted with the regime's factor at `factor`.

    A run's error counts as a part of the chunk's error. Engines only estimate how much of a chunk is done: a run may
    seem to take twice its share or no time, but the shares of all runs add up to the chunk, and so do their errors.
    """
    moved = model.factors[PREFILL] / factor  # by earlier reports of the same tick
    predicted, whole = report.predicted_ns * moved, (report.whole_ns or report.predicted_ns) * moved
    is_guess = _is_guess(model, PREFILL)
    gain = 1.0 / (model.counts[PREFILL] + 1) if is_guess else GAIN
    error = min(CLIP**10 if is_guess else CLIP, 1.0 + (report.elapsed_ns - predicted) / whole) - 1.0
    return _corrected(model, PREFILL, model.factors[PREFILL] * (1.0 + gain * error), predicted / whole)


def _with_mixed(model: CostModel, reports: list[CallReport], n_without: int) -> CostModel:
    """Correct what a prompt's rows add to a decode call; forget the correction over `n_without` calls that had none.

    An error is relative to the time that these rows add, or to the noise of the step if that is more.
    """
    factor = model.factors[MIXED]
    for report in reports:
        unit = max(report.mixed_ns / model.factors[MIXED], (NOISE - 1.0) * (report.predicted_ns - report.mixed_ns))
        factor += GAIN * min(1.0, max(-1.0, (report.elapsed_ns - report.predicted_ns) / unit))
    factor = max(1.0, 1.0 + (factor - 1.0) * (1.0 - FORGET) ** n_without)
    return model._replace(factors=(*model.factors[:MIXED], factor))


def _corrected(model: CostModel, regime: int, factor: float, n: float) -> CostModel:
    """Set the regime's factor after `n` more calls. Decode regimes never seen follow the nearest one seen."""
    counts = (*model.counts[:regime], min(model.counts[regime] + n, 1_000_000), *model.counts[regime + 1 :])
    factors = list(model.factors)
    factors[regime] = min(100.0, max(0.01, factor))
    seen = [i for i in range(PREFILL) if counts[i]]
    for i in range(PREFILL):
        if not counts[i] and seen:
            factors[i] = factors[min(seen, key=lambda k: abs(k - i))]
    return model._replace(factors=tuple(factors), counts=counts)
