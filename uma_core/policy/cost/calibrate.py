"""Calibration: what to measure at start, and the cost model that follows from it.

Rules: pure. The caller measures the shapes in order and may stop when its time is up: the most informative ones come
first, and `fit` derives missing ones from their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from uma_core.policy.cost.curve import Curve, fit_curve, slope_of
from uma_core.policy.cost.model import NOISE, REGIMES, CostModel, best_splits
from uma_core.policy.state import DeviceView

DECODE, CHUNK, PIECE, TRANSFER, MIXED = "decode", "prefill", "piece", "transfer", "mixed"
PAGE = 64  # the most cells that a sequence takes at a time
SHORT, LONG = PAGE, 1024  # contexts at which rows are timed
COPIED = (PAGE, 512)  # cells whose transfer is timed
N_STEPS = 2  # most decode calls per timing of rows: the first call of a shape builds its graph
# A size was timed wrong if the next one takes this many times as long per token. With 1.21 two shared cores of a Zen 3
# lost their best size (128 tokens at 4.75 ms each; 256 at 6.16, 512 at 5.46). What a storm lost: see `ERROR_MOST`.
WRONG = 1.4
# Guess of a plain machine's memory bandwidth, until calls have been observed. Half and double change no figure by 4 %.
BYTES_PER_NS = 20.0


class Shape(NamedTuple):
    """One thing to time. `n_rows`: rows, chunk tokens or bytes; `n_kv`: cells of context before each row."""

    kind: str
    n_rows: int
    n_kv: int


def calibration_shapes(device: DeviceView) -> list[Shape]:
    """List what to time, the most informative first.

    `decode`: one call of n_rows rows, each with n_kv cells, of as many sequences as there are. `prefill`: one chunk
    after n_kv cells. If prefill is resumable, the engine cuts it as finely as it can, and its longest piece is a time
    of kind `piece`. `transfer`: moving n_rows bytes. `mixed`: one call of n_rows rows, one of them a stream's, the
    others a prompt's after n_kv cells.
    """
    n_most = min(max(device.n_seq_max, device.n_verify_rows), device.n_batch)  # rows of a decode call, drafts included
    rows = [n for n in (1, 2, 4, 16, 3, 8, 6, 12, 9, 24, 32) if n <= n_most]
    sizes = [n for n in (64, 512, 256, 128, 32, 16, 63, 8, 1024, 2048) if n <= device.n_ubatch]
    if device.n_ubatch not in sizes:
        sizes.append(device.n_ubatch)
    long_kv = min(LONG, device.n_ctx_seq // 2)
    shapes = [Shape(DECODE, n, SHORT) for n in rows[:4]]
    shapes += [Shape(CHUNK, n, 0) for n in sizes[:5]]
    if device.mixed_rows and device.n_seq_max > 1:
        shapes += [Shape(MIXED, n, 0) for n in device.mixed_rows] + [Shape(MIXED, device.mixed_rows[-1], long_kv)]
    if device.kv_bytes_per_cell:  # a model of recurrent layers alone has none
        shapes += [Shape(TRANSFER, min(n, device.n_ctx_seq) * device.kv_bytes_per_cell, 0) for n in COPIED]
    shapes += [Shape(DECODE, n, SHORT) for n in rows[4:]] + [Shape(CHUNK, n, 0) for n in sizes[5:]]
    shapes += [Shape(CHUNK, sizes[0], long_kv), Shape(DECODE, 1, long_kv), Shape(DECODE, min(4, n_most), long_kv)]
    shapes.append(Shape(CHUNK, min(512, device.n_ubatch), long_kv))
    return [s for s in dict.fromkeys(shapes) if _fits(s, device)]


def _fits(shape: Shape, device: DeviceView) -> bool:
    """Whether the KV memory holds all the sequences that are needed to time the shape."""
    n_written = N_STEPS * -(-shape.n_rows // device.n_seq_max) if shape.kind == DECODE else shape.n_rows
    longest = shape.n_kv + n_written  # cells of the longest sequence
    if shape.kind == TRANSFER:
        n_copies, longest = 2, shape.n_rows // device.kv_bytes_per_cell
    elif shape.kind == MIXED:
        n_copies, longest = 2, max(longest, min(SHORT, device.n_ctx_seq // 2) + 1)
    else:
        n_copies = min(shape.n_rows, device.n_seq_max) if shape.kind == DECODE else 1
    return longest <= device.n_ctx_seq and n_copies * -(-longest // PAGE) * PAGE <= device.n_ctx


def fit(times: Mapping[Shape, int], device: DeviceView) -> CostModel:
    """Turn times in ns into a cost model. Shapes without one come from `guess(device)`, scaled to the others."""
    by_kind: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for (kind, n_rows, n_kv), ns in times.items():
        cells = n_kv * n_rows if kind == DECODE else n_kv
        by_kind.setdefault(kind, {}).setdefault(n_rows, []).append((cells, float(ns)))
    start = guess(device)
    if DECODE not in by_kind and CHUNK not in by_kind:
        return start
    decode = _fit_decode(by_kind[DECODE], start, device) if DECODE in by_kind else start.decode
    prefill = _fit_prefill(by_kind.get(CHUNK, {}), decode, start)
    piece = fit_curve(by_kind[PIECE], 0.0) if PIECE in by_kind else _scaled(prefill, 1 / 64)
    transfer = fit_curve(by_kind[TRANSFER], 0.0) if TRANSFER in by_kind else start.transfer
    model = build(decode, prefill, piece, transfer, device.n_layer, True)
    return model._replace(mixed=_fit_mixed(by_kind.get(MIXED, {}), decode))


def guess(device: DeviceView) -> CostModel:
    """Guess a model without measurements: a memory-bound step, corrected as soon as calls are observed. A prompt's
    token takes as long as a row in a call of 32.
    """
    step, cell = max(1e5, device.weight_bytes / BYTES_PER_NS), max(10.0, device.kv_bytes_per_cell / BYTES_PER_NS)
    decode = Curve((1, 2, 4, 8, 16, 32), tuple(step * g for g in (1.0, 1.3, 1.8, 2.5, 4.0, 7.0)), (cell,) * 6)
    token = decode.base[-1] / decode.sizes[-1]
    sizes = (8, 32, 64, 128, 256, 512)
    prefill = Curve(sizes, tuple(step + token * n for n in sizes), tuple(cell * n / 4 for n in sizes))
    n_bytes = tuple(n * max(1, device.kv_bytes_per_cell) for n in COPIED)
    transfer = Curve(n_bytes, tuple(5e4 + 2 * n / BYTES_PER_NS for n in n_bytes), (0.0,) * len(n_bytes))
    return build(decode, prefill, _scaled(prefill, 1 / 48), transfer, device.n_layer, False)


def build(decode: Curve, prefill: Curve, piece: Curve, transfer: Curve, n_layer: int, is_measured: bool) -> CostModel:
    """Assemble a model, and compute the fields that follow from its tables."""
    chunks = legal_chunks(prefill)
    sweet = min(chunks, key=lambda n: (prefill.ns(n, 0) / n, n))
    return CostModel(
        decode=decode,
        prefill=prefill,
        piece=piece,
        n_layer=n_layer,
        transfer=transfer,
        is_measured=is_measured,
        factors=(1.0,) * len(REGIMES),
        counts=(0,) * len(REGIMES),
        splits=best_splits(decode),
        chunks=chunks,
        sweet_chunk=sweet,
    )


def legal_chunks(prefill: Curve) -> tuple[int, ...]:
    """Measured sizes such that no larger size takes less time, and no smaller one less time per token, noise aside.

    A size after which the time per token jumps up was measured wrong: it is dropped, and no later size is compared to
    it.
    """
    kept: list[int] = []
    best = float("inf")
    per_token = [ns / n for n, ns in zip(prefill.sizes, prefill.base, strict=True)]
    for i, n in enumerate(prefill.sizes):
        is_wrong = i + 1 < len(per_token) and per_token[i + 1] > WRONG * per_token[i]
        if n < 8 or is_wrong or min(prefill.base[i:]) < prefill.base[i] or per_token[i] > NOISE * best:
            continue
        best = min(best, per_token[i])
        kept.append(n)
    return tuple(kept) or (prefill.sizes[-1],)


def _fit_decode(points: dict[int, list[tuple[int, float]]], start: CostModel, device: DeviceView) -> Curve:
    """Fit the decode curve. A cell takes as long in all calls: the least that any size measured, because disturbances
    only lengthen steps, but at least as long as reading its bytes as fast as a step reads the weights.

    A measured slope may be too small: the few per cent of a short context drown in noise, and cells that were never
    written are read from the cache.
    """
    slopes = [slope for at in points.values() if (slope := slope_of(at)) is not None]
    measured = min(slopes, default=start.decode.slope[0])
    sizes = tuple(sorted(points))
    shortest = [min(points[n]) for n in sizes]  # (n_kv, ns)
    base = tuple(max(1.0, ns - measured * n_kv) for n_kv, ns in shortest)
    least = device.kv_bytes_per_cell * base[0] / max(1, device.weight_bytes)
    return Curve(sizes, base, (max(least, measured),) * len(base))


def _fit_prefill(points: dict[int, list[tuple[int, float]]], decode: Curve, start: CostModel) -> Curve:
    """Fit the prefill curve. A chunk of one token is a decode row. Without times, those of decode scale the guess."""
    if not points:
        return _scaled(start.prefill, decode.base[0] / start.decode.base[0])
    if 1 not in points and decode.sizes[0] == 1:
        points = {1: [(0, decode.base[0])], **points}
    return fit_curve(points, decode.slope[0] / 2)


def _fit_mixed(points: dict[int, list[tuple[int, float]]], decode: Curve) -> Curve | None:
    """Fit mixed calls. A call without a prompt's rows is a decode row. None if no mixed call was measured."""
    return fit_curve({1: [(0, decode.base[0])], **points}, decode.slope[0]) if points else None


def _scaled(curve: Curve, by: float) -> Curve:
    return Curve(curve.sizes, tuple(b * by for b in curve.base), tuple(s * by for s in curve.slope))
