"""The cost model: predicted ns of everything a tick can hold.

Rules: a frozen value and pure functions; tables come from calibration (policy/calibrate.py); one factor per regime,
and what a cell of context adds to a decode call, are corrected online by `observe`. Nothing here knows a vendor:
cliffs are wherever they were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from uma_core.policy.curve import Curve, median
from uma_core.policy.state import CallReport
from uma_core.types import Phase

REGIMES = ("decode_1", "decode_2", "decode_4", "decode_8", "decode_16", "decode_more", "prefill", "ride")
PREFILL, RIDE = 6, 7
MAX_SPLIT = 32  # rows for which the best split into calls is worked out
CALL_OVERHEAD_NS = 60_000.0  # of one more decode call: batch, sampling, Python
SPLIT_GAIN = 0.03  # a split must save this much: calls that cost the same stay together
GAIN = 0.15  # of a correction towards one clipped observation
CLIP = (0.8, 1.25)  # relative error that one observation may claim
WILD_CLIP = (0.1, 10.0)  # while the tables are guesses and the regime is hardly seen
WILD_COUNT = 6
RIDE_DOUBT = 1.5  # times what riding rows were measured to add: they compute, and a shared machine computes at one speed now, at another soon
RIDE_MOST = 16.0
RIDE_PART = 16  # an error counts for what riding rows add, or 1 / so much of the step: less is the step's own noise
FORGET = 0.05  # of what riding was learnt to cost, per decode call without it: dear once, it would never be tried again
STEP_CELLS = 32_768  # cells whose reading may take as long as a step of one row: how far a cell's cost is doubted
STEP_DOUBT = 0.25  # of a decode call without context: how far that is doubted
STALE = 0.05  # factors may drift so far before the splits are worked out again
CHUNK_TOLERANCE = 1.1  # a chunk size may cost so much more per token than a smaller one: calibration is noisy
IMPLAUSIBLE = 1.4  # a size whose neighbour costs so much more per token was measured wrong


class CostModel(NamedTuple):
    """Units: ns and KV cells. Decode contexts count cells summed over the rows."""

    decode: Curve
    prefill: Curve
    piece: Curve  # shortest piece into which a chunk of so many tokens can be cut, at no context
    n_cuts: float  # nodes over which a chunk's attention is spread: about the number of layers
    transfer_fixed_ns: float
    transfer_ns_per_byte: float
    is_measured: bool
    factors: tuple[float, ...]
    counts: tuple[float, ...]  # calls seen by regime; of prefill, chunks
    splits: tuple[tuple[int, ...], ...]  # splits[n]: sizes of the calls that serve n rows fastest
    split_factors: tuple[float, ...]
    chunks: tuple[int, ...]  # sizes worth using for a prompt chunk, ascending
    sweet_chunk: int  # the one with the best ns per token at no context
    dense: tuple[tuple[float, float, int], ...]  # dense[n]: decode's base, slope and regime of n rows, so that no search is needed
    ride: Curve | None = None  # a call of so many rows, all but one of them a prompt's; None: prompts have calls of their own
    cell_ns: float = 0.0  # learnt: what a cell adds to a decode call beyond what the curve says

    def decode_ns(self, n_rows: int, n_kv: int) -> int:
        """One decode call of `n_rows` rows that read `n_kv` cells in all."""
        base, slope, regime = self.dense[n_rows] if n_rows <= MAX_SPLIT else decode_line(self.decode, n_rows)
        factor = self.factors[regime]
        return int(base * factor + max(0.0, slope * factor + self.cell_ns) * n_kv)

    def solo_step_ns(self, n_kv: int) -> int:
        """One row alone."""
        return self.decode_ns(1, n_kv)

    def rows_ns(self, n_rows: int, n_kv: int) -> int:
        """All the calls that serve `n_rows` rows fastest."""
        if n_rows == 1 or n_rows > MAX_SPLIT:
            return self.decode_ns(n_rows, n_kv)
        sizes = self.splits[n_rows]
        if len(sizes) == 1:
            return self.decode_ns(n_rows, n_kv)
        return sum(self.decode_ns(g, n_kv * g // n_rows) for g in sizes)

    def prefill_ns(self, n_tokens: int, n_past: int) -> int:
        """One chunk, undisturbed."""
        return int(self.prefill.ns(n_tokens, n_past) * self.factors[PREFILL])

    def ride_ns(self, n_rows: int, n_tokens: int, n_past: int) -> int:
        """What `n_tokens` of a prompt, as further rows, add to a decode call of `n_rows` rows."""
        if self.ride is None:
            return self.prefill_ns(n_tokens, n_past)
        rows = max(0.0, self.ride.ns(n_rows + n_tokens, 0) - self.ride.ns(n_rows, 0))
        context = self.ride.ns(n_tokens, n_past) - self.ride.ns(n_tokens, 0)
        return int((rows + context) * self.factors[RIDE])

    def call_ns(self, n_rows: int, n_kv: int, n_prompt: int, n_past: int) -> tuple[int, int]:
        """One call of `n_rows` decode rows that read `n_kv` cells and `n_prompt` tokens of prompts after `n_past`; of that, what riding adds."""
        if not n_rows:
            return self.prefill_ns(n_prompt, n_past), 0
        riding = self.ride_ns(n_rows, n_prompt, n_past) if n_prompt else 0
        return self.decode_ns(n_rows, n_kv) + riding, riding

    def piece_ns(self, n_tokens: int, n_past: int) -> int:
        """Shortest pause-to-pause time inside a chunk of this size: its heaviest node, or a layer's attention over the context."""
        heaviest = self.piece.ns(n_tokens, 0)
        if n_past:
            heaviest = max(heaviest, (self.prefill.ns(n_tokens, n_past) - self.prefill.ns(n_tokens, 0)) / self.n_cuts)
        return int(heaviest * self.factors[PREFILL])

    def prompt_ns(self, n_tokens: int, n_past: int) -> int:
        """A whole prompt in its best chunks."""
        if n_tokens <= 0:
            return 0
        size = self.sweet_chunk
        n_full, rest = divmod(n_tokens, size)
        ns = 0.0
        if n_full:
            ns = n_full * self.prefill.ns(size, n_past + (n_full - 1) * size / 2)
        if rest:
            ns += self.prefill.ns(rest, n_past + n_full * size)
        return int(ns * self.factors[PREFILL])

    def transfer_ns(self, n_bytes: int) -> int:
        """Moving KV bytes between memories."""
        return int(self.transfer_fixed_ns + n_bytes * self.transfer_ns_per_byte) if n_bytes > 0 else 0

    @property
    def token_ns(self) -> float:
        """Prefill time per token in the best chunks: the unit of remaining work."""
        size = self.sweet_chunk
        return self.prefill.ns(size, 0) / size * self.factors[PREFILL]

    def observe(self, report: CallReport) -> CostModel:
        """Correct the report's regime by its error, clipped so that one outlier moves little."""
        return self.observe_all((report,))

    def observe_all(self, reports: Iterable[CallReport]) -> CostModel:
        """Reports that this model predicted, of which each teaches only what those before it left to learn.

        A decode call's error is divided: the more cells it read, the more of it is the cells'. Or a long context's own steps would teach
        that every step is slow, and beside a chat it would seem to fit.
        """
        errors: dict[int, list[float]] = {}
        rides: list[float] = []
        chunks: list[CallReport] = []
        cell_ns = self.cell_ns
        for report in reports:
            if report.is_full or max(report.predicted_ns, report.whole_ns) <= 0 or report.elapsed_ns <= 0:
                continue
            if report.n_riding:
                rides.append(self._ride_error(report))
                continue
            if report.phase is Phase.PREFILL:
                chunks.append(report)
                continue
            i = regime_of(report.n_rows)
            share = self._cells_share(report)
            cell_ns = self._with_cells(cell_ns, report, share) if share else cell_ns
            errors.setdefault(i, []).append(1.0 + (1.0 - share) * (report.elapsed_ns / report.predicted_ns - 1.0))
        model = self if cell_ns == self.cell_ns else self._replace(cell_ns=cell_ns)
        model = model._with_rides(rides, sum(map(len, errors.values())))
        for report in chunks:
            model = model._learn_chunk(report, self.factors[PREFILL])
        for i, lot in errors.items():
            while lot and model._is_wild(i):
                model = model._learn(i, lot.pop(0) * self.factors[i] / model.factors[i], 1)
            if lot:
                model = model._learn(i, median(lot) * self.factors[i] / model.factors[i], len(lot))
        drift = max(abs(a / b - 1.0) for a, b in zip(model.factors[:PREFILL], self.split_factors, strict=True))
        return with_splits(model) if drift > STALE else model

    def _cells_share(self, report: CallReport) -> float:
        """Part of a decode call's error that is its context's: in the ratio of the variances with which both are doubted."""
        i = regime_of(report.n_rows)
        if not report.n_kv or self._is_wild(i):
            return 0.0
        context = self.decode.base[0] * report.n_kv / STEP_CELLS
        step = STEP_DOUBT * self.decode.ns(report.n_rows, 0) * self.factors[i]
        return context**2 / (context**2 + step**2)

    def _with_cells(self, cell_ns: float, report: CallReport, share: float) -> float:
        """Move what a cell adds towards one call's error, of which it may claim as much as it is doubted."""
        most = self.decode.base[0] / STEP_CELLS
        error = (report.elapsed_ns - report.predicted_ns) / report.n_kv - (cell_ns - self.cell_ns)
        least = -max(self.decode.slope) * max(self.factors[:PREFILL])
        return max(least, cell_ns + GAIN * share * min(most, max(-most, error)))

    def _ride_error(self, report: CallReport) -> float:
        """By how much what rode in a call took longer, in units of what it was measured to add."""
        unit = max(report.riding_ns / self.factors[RIDE], (report.predicted_ns - report.riding_ns) / RIDE_PART)
        return min(1.0, max(-1.0, (report.elapsed_ns - report.predicted_ns) / unit))

    def _with_rides(self, errors: list[float], n_without: int) -> CostModel:
        """Correct what riding rows add; forget the correction over `n_without` decode calls that had none."""
        ride = self.factors[RIDE] + GAIN * sum(errors)
        ride = RIDE_DOUBT + (ride - RIDE_DOUBT) * (1.0 - FORGET) ** n_without
        ride = min(RIDE_MOST, max(1.0, ride))
        return self if ride == self.factors[RIDE] else self._replace(factors=(*self.factors[:RIDE], ride))

    def _learn_chunk(self, report: CallReport, factor: float) -> CostModel:
        """Move the prefill regime by a chunk, or by one run of it, that was predicted while the regime's factor was `factor`.

        A run's error counts as a part of the chunk's. Engines estimate how far a chunk has come: a run of it may seem to take twice its
        share or none at all, but the shares of all runs add up to the chunk, and so do their errors.
        """
        since = self.factors[PREFILL] / factor
        predicted, whole = report.predicted_ns * since, (report.whole_ns or report.predicted_ns) * since
        is_wild = self._is_wild(PREFILL)
        most = (WILD_CLIP if is_wild else CLIP)[1] - 1.0
        gain = max(GAIN, 1.0 / (self.counts[PREFILL] + 1)) if is_wild else GAIN
        error = min(most, (report.elapsed_ns - predicted) / whole)
        return self._corrected(PREFILL, self.factors[PREFILL] * (1.0 + gain * error), predicted / whole)

    def _is_wild(self, i: int) -> bool:
        """Whether regime `i` is hardly more than a guess."""
        return not self.is_measured and self.counts[i] < WILD_COUNT

    def _learn(self, i: int, error: float, n: int) -> CostModel:
        """Move regime `i` towards what n calls measured: their median error, so that only one call alone needs the narrow clip."""
        is_wild = self._is_wild(i)
        low, high = WILD_CLIP if is_wild else (CLIP[0] ** n, CLIP[1] ** n)
        gain = max(GAIN, 1.0 / (self.counts[i] + 1)) if is_wild else 1.0 - (1.0 - GAIN) ** n
        return self._corrected(i, self.factors[i] * (1.0 + gain * (min(high, max(low, error)) - 1.0)), n)

    def _corrected(self, i: int, factor: float, n: float) -> CostModel:
        """With regime `i`'s factor after `n` more calls."""
        factor = min(100.0, max(0.01, factor))
        counts = (*self.counts[:i], min(self.counts[i] + n, 1_000_000), *self.counts[i + 1 :])
        return self._replace(factors=_spread(self.factors, counts, i, factor, self.is_measured), counts=counts)

    def best_groups(self, seq_ids: Sequence[int], can_mix_rows: bool, n_batch: int) -> list[list[int]]:
        """Split one-token rows into decode calls with the least total predicted time.

        `seq_ids` ascend; the result holds indices into it. Where sequences have their own streams only
        runs of consecutive ids share a ubatch, so that a call never spans a gap.
        """
        groups: list[list[int]] = []
        start, n = 0, len(seq_ids)
        for i in range(1, n + 1):
            if i == n or (not can_mix_rows and seq_ids[i] != seq_ids[i - 1] + 1):
                self._split_run(range(start, i), n_batch, groups)
                start = i
        return groups

    def _split_run(self, run: range, n_batch: int, groups: list[list[int]]) -> None:
        at, n = run.start, len(run)
        while n:
            sizes = self.splits[n] if n < len(self.splits) else (min(n, n_batch),)
            for size in sizes:
                size = min(size, n_batch)
                groups.append(list(range(at, at + size)))
                at += size
                n -= size

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values; `from_dict` gives an equal model back."""
        return {name: _plain(value) for name, value in zip(self._fields, self, strict=True)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CostModel:
        """Raises ValueError where the dict is not one of ours."""
        try:
            values = {name: data[name] for name in CostModel._fields}
            for name in ("decode", "prefill", "piece", "ride"):
                values[name] = values[name] and Curve(*(tuple(part) for part in values[name]))
            for name in ("factors", "counts", "split_factors", "chunks"):
                values[name] = tuple(values[name])
            for name in ("splits", "dense"):
                values[name] = tuple(tuple(s) for s in values[name])
            if len(values["factors"]) != len(REGIMES) or not values["chunks"]:
                raise ValueError("wrong shape")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a stored cost model: {error!r}") from error
        return CostModel(**values)


def regime_of(n_rows: int) -> int:
    """Index of the correction that a decode call of `n_rows` rows uses."""
    if n_rows <= 1:
        return 0
    return 1 if n_rows == 2 else 2 if n_rows <= 4 else 3 if n_rows <= 8 else 4 if n_rows <= 16 else 5


def dense_table(decode: Curve) -> tuple[tuple[float, float, int], ...]:
    """The decode curve for every row count up to MAX_SPLIT."""
    return ((0.0, 0.0, 0), *(decode_line(decode, n) for n in range(1, MAX_SPLIT + 1)))


def decode_line(decode: Curve, n_rows: int) -> tuple[float, float, int]:
    """The decode curve for one row count: base, slope and regime."""
    base = decode.ns(n_rows, 0)
    return base, decode.ns(n_rows, 1) - base, regime_of(n_rows)


def with_splits(model: CostModel) -> CostModel:
    """Work out the best split into calls for every row count, under the present corrections."""
    times = [0.0] + [model.decode.ns(n, 0) * model.factors[regime_of(n)] + CALL_OVERHEAD_NS for n in range(1, MAX_SPLIT + 1)]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for n in range(1, MAX_SPLIT + 1):
        choice: tuple[float, tuple[int, ...]] = (times[n], (n,))
        limit = times[n] * (1.0 - SPLIT_GAIN)
        for size in range(n - 1, 0, -1):
            total = times[size] + best[n - size][0]
            if total < limit and (total < choice[0] * 0.999 or len(choice[1]) == 1):
                choice = (total, tuple(sorted((size, *best[n - size][1]), reverse=True)))
        best.append(choice)
    return model._replace(splits=tuple(sizes for _, sizes in best), split_factors=model.factors[:PREFILL])


def legal_chunks(prefill: Curve) -> tuple[int, ...]:
    """Measured sizes that no larger size undercuts and that cost no more per token than smaller ones."""
    kept: list[int] = []
    best = float("inf")
    per_token = [ns / n for n, ns in zip(prefill.sizes, prefill.base, strict=True)]
    for i, n in enumerate(prefill.sizes):
        ns = prefill.base[i]
        is_wrong = i + 1 < len(per_token) and per_token[i + 1] > IMPLAUSIBLE * per_token[i]
        if n < 8 or is_wrong or any(other <= ns for other in prefill.base[i + 1 :]) or ns / n > best * CHUNK_TOLERANCE:
            continue
        best = min(best, ns / n)
        kept.append(n)
    return tuple(kept) or (prefill.sizes[-1],)


def _spread(factors: tuple[float, ...], counts: tuple[float, ...], i: int, factor: float, is_measured: bool) -> tuple[float, ...]:
    """Set factor `i`; regimes never seen follow their nearest seen neighbour (prefill only while all is guessed)."""
    out = list(factors)
    out[i] = factor
    seen = [j for j in range(PREFILL) if counts[j]]
    for j in range(PREFILL):
        if not counts[j] and seen:
            out[j] = out[min(seen, key=lambda k: abs(k - j))]
    if not counts[PREFILL] and not is_measured and seen:
        out[PREFILL] = out[seen[0]]
    return tuple(out)


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
