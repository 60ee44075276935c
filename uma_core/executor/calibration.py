"""Times the shapes that the cost model is fitted to, and stores the result per model, device and threads."""

from __future__ import annotations

import hashlib
import logging

import numpy as np

from uma_core import measured
from uma_core.clock import Clock
from uma_core.engine.api import Batch, DecodeStatus, Engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.policy.cost.calibrate import (
    CHUNK,
    DECODE,
    MIXED,
    N_STEPS,
    PIECE,
    SHORT,
    TRANSFER,
    Shape,
    calibration_shapes,
    fit,
    guess,
)
from uma_core.policy.cost.model import CostModel
from uma_core.policy.state import DeviceView

log = logging.getLogger(__name__)

BUDGET_NS = 10_000_000_000  # a 0.5B model in Q8_0 on 2 cores of a Xeon needs 9 s for all shapes
# A chunk that would take longer is not timed: it reads a token no faster than shorter ones do (0.5B Q8_0, 2 cores of a
# Zen 3: 5.1, 5.2 and 5.2 ms with 128, 256 and 512 tokens). Two chunks of 512 tokens took 6 of the 10 s there, so every
# number of rows was timed only once, and in one calibration three further rows seemed to cost nothing instead of 12 ms.
LONGEST_CHUNK_NS = BUDGET_NS // 10
# Each shape's time is the least of its rounds. The speed of a shared machine drifts by a fifth within seconds. Several
# timings of one shape in a row would all be fast or all be slow, and two shapes would differ by when they were timed.
# The least of five rounds had a spread of 7 % from one calibration to the next, the median of five timings in a row
# more than 16 % (0.5B Q8_0, 2 cores of a Xeon).
N_ROUNDS = 5
# All chunks are timed equally often: the least of more timings is lower. When short chunks were timed four times and
# long ones once, only chunks of up to 64 tokens seemed worth using. Slow machines complete three rounds only.
CHUNK_ROUNDS = (0, 2)
# A call of rows that takes longer is not made a second time: the time buys another round. In such a call the time for
# building its graph does not show: first and second calls took equally long (0.5B Q8_0, 26 to 160 ms, both engines,
# 2 cores of a Zen 3).
LONG_CALL_NS = 20_000_000
FOREVER_NS = 2**62
CALM_SPREAD = 1.3  # the two least times of a call of few rows differ by no more than this on an idle machine
# A call of n rows takes little longer than n calls of one, if at all: on llama.cpp 2 rows took 2.4 steps at most. One
# that takes this many times as long was disturbed.
ROWS_SPREAD = 2.0
VERSION = 16  # of what is measured; stored results of another version are measured again

Times = tuple[int, int]  # ns of the whole, and of its longest piece


def calibrate(engine: Engine, device: DeviceView, clock: Clock, mode: str) -> CostModel:
    """Return a cost model: stored, measured now, or guessed.

    `mode` is engine.calibrate (auto, off, force), or "stored": never measure.
    """
    if mode == "off":
        return guess(device)
    name = f"{_key(engine)}.json"
    if mode in ("auto", "stored") and (stored := _load(name)) is not None:
        return stored
    if mode == "stored":
        log.info(
            "no stored calibration for %s: starting from a guess, which measured calls correct", engine.info.model_name
        )
        return guess(device)
    times = time_shapes(engine, device, clock)
    model = fit(shortest(times, device), device)
    if is_calm(times):
        _save(name, model)
    else:
        log.warning(
            "other work on this machine disturbed the calibration; it is used for now and corrected by measured calls, "
            "but not stored"
        )
    return model


def is_calm(times: dict[Shape, list[Times]]) -> bool:
    """Whether the machine was free. The two shortest times of each call of few rows must not differ much, and several
    rows must not take much longer than the same rows one by one.
    """
    rows = {shape: sorted(ns for ns, _ in of) for shape, of in times.items() if shape.kind in (DECODE, MIXED)}
    alone = rows.get(Shape(DECODE, 1, SHORT))
    if not alone:
        return False
    are_agreed = all(len(of) < 2 or of[1] <= CALM_SPREAD * of[0] for of in rows.values())
    together = [(shape, of[0]) for shape, of in rows.items() if shape.kind == DECODE and shape.n_kv == SHORT]
    return are_agreed and not any(ns > ROWS_SPREAD * shape.n_rows * alone[0] for shape, ns in together)


def warm_up(engine: Engine) -> None:
    """Make one decode call, to prove that the engine computes before the daemon reports that it is ready.

    Raises: MODEL_LOAD_FAILED.
    """
    batch = Batch(1)
    batch.add(0, 0, 0, True)
    outcome = engine.decode(batch, [None])
    engine.kv_truncate(0, 0)
    if outcome.status is not DecodeStatus.OK or outcome.tokens[0] < 0:
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"the first decode call failed ({outcome.status.name})")


def time_shapes(engine: Engine, device: DeviceView, clock: Clock) -> dict[Shape, list[Times]]:
    """Time shapes in rounds, the most informative first, until the budget is used up. Leaves every sequence empty."""
    deadline = clock.now_ns() + BUDGET_NS
    timers = {DECODE: _decode, CHUNK: _chunk, TRANSFER: _transfer, MIXED: _mixed}
    times: dict[Shape, list[Times]] = {}
    for i in range(N_ROUNDS):
        for shape in calibration_shapes(device):
            if shape.kind == CHUNK and (i not in CHUNK_ROUNDS or _is_long(shape, times)):
                continue
            if clock.now_ns() >= deadline:
                log.info("calibration stopped in round %d of %d: its time is up", i + 1, N_ROUNDS)
                return times
            times.setdefault(shape, []).append(timers[shape.kind](engine, shape, device, clock))
    return times


def _is_long(chunk: Shape, times: dict[Shape, list[Times]]) -> bool:
    """Whether a chunk longer than the first one would take more than LONGEST_CHUNK_NS, judged by the first one."""
    first = next((shape for shape in times if shape.kind == CHUNK), chunk)
    if chunk.n_rows <= first.n_rows:
        return False
    return chunk.n_rows * times[first][0][0] > LONGEST_CHUNK_NS * first.n_rows


def shortest(times: dict[Shape, list[Times]], device: DeviceView) -> dict[Shape, int]:
    """Return each shape's shortest time, and the longest piece of the prompts' chunks. Pure."""
    least = {shape: min(ns for ns, _ in of) for shape, of in times.items()}
    if device.n_prefill_slots:
        chunks = [(shape, of) for shape, of in times.items() if shape.kind == CHUNK and not shape.n_kv]
        least |= {shape._replace(kind=PIECE): min(piece for _, piece in of) for shape, of in chunks}
    return least


def _decode(engine: Engine, shape: Shape, device: DeviceView, clock: Clock) -> Times:
    batch = Batch(shape.n_rows)
    n_seq = min(shape.n_rows, device.n_seq_max)
    n_each = [len(range(seq_id, shape.n_rows, n_seq)) for seq_id in range(n_seq)]  # more than one: as with drafts
    for seq_id in range(n_seq):
        engine.fake_context(seq_id, shape.n_kv)
    ns = 0
    for step in range(N_STEPS):
        batch.clear()
        for seq_id, n in enumerate(n_each):
            for i in range(n):
                batch.add(0, shape.n_kv + step * n + i, seq_id, True)
        ns = engine.decode(batch, [None] * shape.n_rows).call_ns
        if ns > LONG_CALL_NS:
            break
    for seq_id in range(n_seq):
        engine.kv_truncate(seq_id, 0)
    return ns, ns


def _mixed(engine: Engine, shape: Shape, device: DeviceView, clock: Clock) -> Times:
    """Time a call with one row of a stream and further rows of a prompt."""
    n_own = min(SHORT, device.n_ctx_seq // 2)
    engine.fake_context(0, n_own)
    if shape.n_kv:
        engine.fake_context(1, shape.n_kv)
    batch = Batch(shape.n_rows)
    batch.add(0, n_own, 0, True)
    batch.extend(np.zeros(shape.n_rows - 1, np.int32), shape.n_kv, 1, False)
    ns = engine.decode(batch, [None]).call_ns
    engine.kv_truncate(0, 0)
    engine.kv_truncate(1, 0)
    return ns, ns


def _chunk(engine: Engine, shape: Shape, device: DeviceView, clock: Clock) -> Times:
    """Time a chunk that pauses at every possible node: pausing costs nothing measurable, and shows how long a decode
    tick would wait.
    """
    tokens = np.zeros(shape.n_rows, np.int32)
    if shape.n_kv:
        engine.fake_context(0, shape.n_kv)
    if device.n_prefill_slots:
        engine.prefill_open(0, tokens, False)
        outcome = engine.prefill_run(0, FOREVER_NS, 1, 1 << 30)
        times = outcome.elapsed_ns, outcome.longest_ns
        engine.prefill_close(0)
    else:
        batch = Batch(shape.n_rows)
        batch.extend(tokens, shape.n_kv, 0, False)
        ns = engine.decode(batch, []).call_ns
        times = ns, ns
    engine.kv_truncate(0, 0)
    return times


def _transfer(engine: Engine, shape: Shape, device: DeviceView, clock: Clock) -> Times:
    if not device.can_copy_prefix or device.n_seq_max < 2:
        return round(shape.n_rows / 10), 0  # assume 10 GB/s: there is no copy to time
    n = shape.n_rows // device.kv_bytes_per_cell
    engine.fake_context(0, n)
    t0 = clock.now_ns()
    transfer = engine.copy_prefix(0, 1, n)
    while not transfer.step(FOREVER_NS):
        pass
    ns = clock.now_ns() - t0
    engine.kv_truncate(0, 0)
    engine.kv_truncate(1, 0)
    return ns, ns


def _key(engine: Engine) -> str:
    info = engine.info
    parts: tuple[object, ...] = (VERSION, info.engine, info.fingerprint, info.backend, info.devices)
    parts += (info.n_threads, info.n_seq_max, info.n_ctx_seq)
    parts += (info.n_ubatch, info.kv_type, info.is_unified, info.capabilities.n_prefill_slots, info.kernels)
    parts += (info.capabilities.n_verify_rows,)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _load(name: str) -> CostModel | None:
    try:
        return CostModel.from_dict(measured.load(measured.folder() / name))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("stored calibration %s is not usable (%s): measuring again", name, error)
        return None


def _save(name: str, model: CostModel) -> None:
    """Store a calibration. A failure is only worth a warning: without the file the next start takes a few seconds
    longer.
    """
    try:
        measured.save(measured.folder() / name, model.to_dict())
    except OSError as error:
        log.warning("calibration was not stored: %s", error)
