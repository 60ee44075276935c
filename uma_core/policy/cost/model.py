"""The predictor: how many nanoseconds each kind of work in a tick takes.

Rules: a frozen value and pure functions. The tables come from calibration (calibrate.py). Later measurements correct
one factor per regime (learn.py). Nothing here is specific to a vendor: calibration measures at which sizes a device's
times jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from uma_core.policy.cost.curve import Curve

REGIMES = ("decode_1", "decode_2", "decode_4", "decode_8", "decode_16", "decode_more", "prefill", "mixed")
PREFILL, MIXED = REGIMES.index("prefill"), REGIMES.index("mixed")
MAX_ROWS = 32  # most rows for which the best split into calls is looked up; more rows are one call
# Two timings of the same thing may differ by this factor. So a split must save more than that, and chunks that differ
# by less count as equal. With 1.2 TBT grows by 1.4 %; 1.05 changes nothing.
NOISE = 1.1


class CostModel(NamedTuple):
    """Units: ns and KV cells. Decode contexts count cells summed over the rows."""

    decode: Curve
    prefill: Curve
    piece: Curve  # longest piece of a chunk of this many tokens that is cut as finely as possible, without context
    n_layer: int  # number of pieces over which a chunk's attention is spread
    transfer: Curve  # moving so many bytes of KV between memories
    is_measured: bool
    factors: tuple[float, ...]  # correction of each regime
    counts: tuple[float, ...]  # calls seen in each regime; for prefill, chunks
    splits: tuple[tuple[int, ...], ...]  # splits[n]: sizes of the calls that serve n rows fastest
    chunks: tuple[int, ...]  # sizes worth using for a prompt chunk, ascending
    sweet_chunk: int  # the size with the fewest ns per token, without context
    # time of a call with this many rows, all but one of them a prompt's; None: prompts have calls of their own
    mixed: Curve | None = None

    def decode_ns(self, n_rows: int, n_kv: int) -> int:
        """Time of one decode call of `n_rows` rows that read `n_kv` cells in total."""
        return int(self.decode.ns(n_rows, n_kv) * self.factors[regime_of(n_rows)])

    def solo_step_ns(self, n_kv: int) -> int:
        """Time of a decode call of one row."""
        return self.decode_ns(1, n_kv)

    def rows_ns(self, n_rows: int, n_kv: int) -> int:
        """Time of all the calls that serve `n_rows` rows fastest."""
        sizes = self.splits[n_rows] if 1 < n_rows <= MAX_ROWS else (n_rows,)
        if len(sizes) == 1:
            return self.decode_ns(n_rows, n_kv)
        return sum(self.decode_ns(size, n_kv * size // n_rows) for size in sizes)

    def prefill_ns(self, n_tokens: int, n_past: int) -> int:
        """Time of one chunk, undisturbed."""
        return int(self.prefill.ns(n_tokens, n_past) * self.factors[PREFILL])

    def mixed_ns(self, n_rows: int, n_tokens: int, n_past: int) -> int:
        """Time that `n_tokens` of a prompt, as further rows, add to a decode call of `n_rows` rows."""
        if self.mixed is None:
            return self.prefill_ns(n_tokens, n_past)
        rows = max(0.0, self.mixed.ns(n_rows + n_tokens, 0) - self.mixed.ns(n_rows, 0))
        context = self.mixed.ns(n_tokens, n_past) - self.mixed.ns(n_tokens, 0)
        ns = rows + context
        # calibration may have timed these rows as free, and a multiple of nothing would correct nothing
        return int(ns + (self.factors[MIXED] - 1.0) * max(ns, (NOISE - 1.0) * self.mixed.ns(n_rows, 0)))

    def call_ns(self, n_rows: int, n_kv: int, n_prompt: int, n_past: int) -> tuple[int, int]:
        """Time of one call of `n_rows` decode rows that read `n_kv` cells and `n_prompt` prompt tokens after `n_past`,
        and the part of that time that the prompt tokens add.
        """
        if not n_rows:
            return self.prefill_ns(n_prompt, n_past), 0
        added = self.mixed_ns(n_rows, n_prompt, n_past) if n_prompt else 0
        return self.decode_ns(n_rows, n_kv) + added, added

    def piece_ns(self, n_tokens: int, n_past: int) -> int:
        """Longest time between two pauses in a chunk of this size that is cut as finely as possible: its heaviest node,
        or a layer's attention over the context.
        """
        heaviest = self.piece.ns(n_tokens, 0)
        if n_past:
            heaviest = max(heaviest, (self.prefill.ns(n_tokens, n_past) - self.prefill.ns(n_tokens, 0)) / self.n_layer)
        return int(heaviest * self.factors[PREFILL])

    def prompt_ns(self, n_tokens: int, n_past: int) -> int:
        """Time of a whole prompt in its best chunks."""
        if n_tokens <= 0:
            return 0
        size = self.sweet_chunk
        n_full, rest = divmod(n_tokens, size)
        ns = n_full * self.prefill.ns(size, n_past + (n_full - 1) * size / 2) if n_full else 0.0
        ns += self.prefill.ns(rest, n_past + n_full * size) if rest else 0.0
        return int(ns * self.factors[PREFILL])

    def transfer_ns(self, n_bytes: int) -> int:
        """Time of moving KV bytes between memories."""
        return int(self.transfer.ns(n_bytes, 0)) if n_bytes > 0 else 0

    @property
    def token_ns(self) -> float:
        """Prefill time per token in the best chunks: the unit of remaining work."""
        return self.prefill.ns(self.sweet_chunk, 0) / self.sweet_chunk * self.factors[PREFILL]

    def call_sizes(self, n_rows: int, n_batch: int) -> list[int]:
        """Split `n_rows` one-token rows into the decode calls with the least total predicted time."""
        sizes: list[int] = []
        while n_rows:
            for size in self.splits[n_rows] if n_rows <= MAX_ROWS else (n_rows,):
                sizes.append(min(size, n_batch))
                n_rows -= sizes[-1]
        return sizes

    def to_dict(self) -> dict[str, Any]:
        """Return the whole model as JSON-able values; `from_dict` gives an equal model back."""
        return self._asdict()

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CostModel:
        """Raise ValueError if the dict was not made by `to_dict`."""
        try:
            values = {name: data[name] for name in CostModel._fields}
            for name in ("decode", "prefill", "piece", "transfer", "mixed"):
                if name != "mixed" or values[name] is not None:
                    values[name] = _curve(values[name])
            for name in ("factors", "counts", "chunks"):
                values[name] = tuple(values[name])
            values["splits"] = tuple(tuple(s) for s in values["splits"])
            lengths = len(values["factors"]), len(values["counts"]), len(values["splits"])
            if lengths != (len(REGIMES), len(REGIMES), MAX_ROWS + 1) or not values["chunks"]:
                raise ValueError("wrong shape")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a stored cost model: {error!r}") from error
        return CostModel(**values)


def _curve(parts: Any) -> Curve:
    """Return a stored curve. Raises: TypeError, ValueError."""
    curve = Curve(*(tuple(part) for part in parts))
    if not curve.sizes or len({*map(len, curve)}) > 1:
        raise ValueError("a curve's parts differ in length, or are empty")
    return curve


def regime_of(n_rows: int) -> int:
    """Index of the correction that a decode call of `n_rows` rows uses: one for each doubling of the rows."""
    return min((n_rows - 1).bit_length(), PREFILL - 1) if n_rows > 1 else 0


def best_splits(decode: Curve) -> tuple[tuple[int, ...], ...]:
    """Find, for every row count, the split into calls that serves that many rows fastest."""
    times = [0.0] + [decode.ns(n, 0) for n in range(1, MAX_ROWS + 1)]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for n in range(1, MAX_ROWS + 1):
        parts = min((times[size] + best[n - size][0], (size, *best[n - size][1])) for size in range(1, n + 1))
        best.append(parts if parts[0] * NOISE < times[n] else (times[n], (n,)))
    return tuple(tuple(sorted(sizes, reverse=True)) for _, sizes in best)
