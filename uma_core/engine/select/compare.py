"""Times both engines on one model, for `--engine auto`, and chooses one.

Rules: an engine is loaded only if all of it fits into memory, and both at once only if both fit. For each shape the
fastest call counts, once some calls agree with it: other work makes calls slower, never faster. If both engines are
open, their calls alternate. If other work keeps calls from agreeing, neighbouring calls are compared, and the choice
holds for this start only, unless one engine is clearly faster.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

import numpy as np

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, DecodeStatus, Engine, MemoryUse
from uma_core.engine.graph.device import device_of
from uma_core.engine.graph.store import PAGE
from uma_core.engine.llama.params import is_unified
from uma_core.engine.select.choose import Choice
from uma_core.engine.select.trial import Trial
from uma_core.errors import ErrorCode, UmaError

N_AGREE = 3  # calls of a shape, the fastest among them, ...
SPREAD = 1.15  # ... that differ by no more than this factor: its time is known
N_MOST = 12  # most calls of a shape if they do not agree
SHAPE_NS = 4_000_000_000  # a shape that takes this long gets no more than N_AGREE calls
CONTEXTS = (256, 2048)
N_ROWS = 4
N_CHUNK = 128
# If one row takes longer than SLOW_NS, N_CHUNK_OF_SLOW tokens of a prompt are enough: 128 would take most of the time.
SLOW_NS = 150_000_000
N_CHUNK_OF_SLOW = 32
# Time of one row. On a slower model the comparison would take minutes. With the 8B Q4_K_M on two cores of a Zen 3 it
# takes one: our engine takes half of llama.cpp's 430 ms for a row, and of its 112 ms for a token of a prompt.
SLOWEST_NS = 1_500_000_000
NO_WORSE = 0.97  # least share of llama.cpp's speed for the worst shape: anything below is slower, not noise
FASTER = 1.05  # least gain over all shapes; a smaller one is not worth another engine
# If one engine is faster by this factor at every shape, other work cannot have been the reason, and the choice is kept.
# (With the 8B Q4_K_M on two shared cores calls hardly ever agree: the least ratio was 1.44, the greatest 2.62.)
CLEARLY = 1.3

log = logging.getLogger(__name__)

Open = Callable[[str], Engine]  # opens the engine of that name on the model in question
Times = dict[str, list[int]]  # ns of the calls of each shape
DISTURBED = Choice("llama", "comparing the engines was disturbed by other work; the next start compares them")


class Shape(NamedTuple):
    """A decode tick of `n` streams at a context of `n_kv`, or the first `n` tokens of a prompt."""

    n: int
    n_kv: int = 0

    @property
    def name(self) -> str:
        return f"{self.n} stream{'s' * (self.n > 1)} at {self.n_kv}" if self.n_kv else f"{self.n} tokens of a prompt"


class Outcome(NamedTuple):
    choice: Choice
    engine: Engine | None  # the chosen engine, if it is open; the caller owns it
    is_lasting: bool  # whether the choice holds for later starts too


def compare(open_as: Open, options: EngineOptions, needs: Sequence[MemoryUse], trial: Trial) -> Outcome:
    """Open both engines and time them. `needs`: memory of the llama and of the graph engine. Blocks for seconds.

    Raises: the errors of opening the llama engine; SHUTTING_DOWN if the trial was cancelled.
    """
    free = device_of(options).free_bytes()
    if not all(trial.fits(need, free) for need in needs):
        return Outcome(Choice("llama", "the engines are not compared: the model barely fits into memory"), None, False)
    engines: dict[str, Engine] = {}
    t0 = time.monotonic()
    try:
        choice, is_lasting = _compare(
            engines, open_as, options, trial, trial.fits(MemoryUse(*map(sum, zip(*needs, strict=True))), free)
        )
    except BaseException:
        _close(engines)
        raise
    chosen = engines.pop(choice.engine, None)
    _close(engines)
    log.info("the comparison of the engines took %.1f s", time.monotonic() - t0)
    return Outcome(choice, chosen, is_lasting)


def _compare(
    engines: dict[str, Engine], open_as: Open, options: EngineOptions, trial: Trial, is_room_for_both: bool
) -> tuple[Choice, bool]:
    """Compare, and put the open engines into `engines`."""
    engines["llama"] = open_as("llama")
    n_train = engines["llama"].info.n_ctx_train
    shapes = shapes_of(options.n_ctx or n_train * options.n_seq, options.n_seq, options.n_batch, is_unified(options))
    trial.tell("the engines are compared on this model, once")
    (first,) = measure(list(engines.values()), shapes[:1], trial)
    row_ns = min(first[shapes[0].name])
    if options.calibrate != "force" and row_ns > SLOWEST_NS:
        return Choice("llama", "the model is too slow to compare the engines at a start; --calibrate force does"), False
    if row_ns > SLOW_NS:
        shapes[-1] = Shape(min(shapes[-1].n, N_CHUNK_OF_SLOW))
    times = []
    if not is_room_for_both:
        times += measure(list(engines.values()), shapes, trial)
        if not _are_agreed(times[0]):
            return DISTURBED, False
        _close(engines)
    try:
        engines["graph"] = open_as("graph")
        times += measure(list(engines.values()), shapes, trial)
    except UmaError as error:
        if not trial.should_continue():
            raise
        return Choice("llama", error.message), error.error is ErrorCode.CONFIG_INVALID
    llama, graph = times
    return verdict(llama, graph, is_room_for_both)


def _close(engines: dict[str, Engine]) -> None:
    """Close all engines, and make sure that no part of them stays in memory."""
    while engines:
        engines.popitem()[1].close()
    gc.collect()


def verdict(llama: Times, graph: Times, are_in_turn: bool = True) -> tuple[Choice, bool]:
    """Choose by the calls' times. Also returns whether to keep the choice: the machine was calm, or the times differ
    clearly. Pure.

    are_in_turn: call i of one engine ran next to call i of the other, so that other work slowed both.
    """
    is_calm = _are_agreed(llama) and _are_agreed(graph)
    if not (is_calm or are_in_turn):
        return DISTURBED, False
    ratios = {shape: _ratio(calls, graph[shape]) for shape, calls in llama.items()}
    mean = geometric_mean(ratios.values())
    worst = min(ratios, key=lambda shape: ratios[shape])
    # while other work runs, a single shape's times say little; the mean says more
    is_vetoed = is_calm and ratios[worst] < NO_WORSE
    each = ", ".join(f"{ratio:.2f} with {shape}" for shape, ratio in ratios.items())
    reason = f"the graph engine has {mean:.2f} times llama.cpp's speed ({each})"
    if mean >= FASTER and is_vetoed:
        reason += f", and is slower with {worst}"
    is_lasting = is_calm or ratios[worst] >= CLEARLY or max(ratios.values()) <= 1 / CLEARLY
    if not is_calm:
        reason += ", seen beside other work" + (": the next start compares them again" if not is_lasting else "")
    return Choice("graph" if mean >= FASTER and not is_vetoed else "llama", reason), is_lasting


def _ratio(llama: Sequence[int], graph: Sequence[int]) -> float:
    if _is_agreed(llama) and _is_agreed(graph):
        return min(llama) / min(graph)
    return median(a / b for a, b in zip(llama, graph, strict=True))


def _are_agreed(times: Times) -> bool:
    return all(map(_is_agreed, times.values()))


def _is_agreed(calls: Sequence[int]) -> bool:
    fastest = sorted(calls)[:N_AGREE]
    return len(fastest) == N_AGREE and fastest[-1] <= SPREAD * fastest[0]


def shapes_of(n_ctx: int, n_seq: int, n_batch: int, is_unified: bool) -> list[Shape]:
    """What to time: ticks of one and of some streams over short and long contexts, and a prompt's beginning. Pure."""
    n_seq_ctx = n_ctx if is_unified else n_ctx // n_seq
    longest = n_seq_ctx - N_MOST - 1
    shapes = []
    for n_kv in sorted({min(n_kv, longest) for n_kv in CONTEXTS if longest > 0}):
        n_rows = min(N_ROWS, n_seq, n_batch, n_ctx // (-(-(n_kv + N_MOST + 1) // PAGE) * PAGE) or 1)
        shapes += [Shape(n, n_kv) for n in sorted({1, n_rows})]
    return [*shapes, Shape(min(N_CHUNK, n_batch, n_seq_ctx))]


def measure(engines: Sequence[Engine], shapes: Sequence[Shape], trial: Trial) -> list[Times]:
    """Time the shapes in order, the engines in turn. With a single engine, end after a shape whose calls do not agree.
    Leaves every sequence empty.

    Raises: DECODE_FAILED, SHUTTING_DOWN.
    """
    times: list[Times] = [{} for _ in engines]
    for shape in shapes:
        for engine, mine, calls in zip(engines, times, _measure(engines, shape, trial), strict=True):
            mine[shape.name] = calls
            for seq_id in range(shape.n if shape.n_kv else 0):
                engine.kv_truncate(seq_id, 0)
        if len(engines) == 1 and not _are_agreed(times[0]):
            break
    return times


def _measure(engines: Sequence[Engine], shape: Shape, trial: Trial) -> list[list[int]]:
    calls: list[list[int]] = [[] for _ in engines]
    for engine in engines:
        for seq_id in range(shape.n if shape.n_kv else 0):
            engine.fake_context(seq_id, shape.n_kv)
    while not all(map(_is_agreed, calls)) and len(calls[0]) < (N_AGREE if sum(calls[0]) > SHAPE_NS else N_MOST):
        for engine, done in zip(engines, calls, strict=True):
            if not trial.should_continue():
                raise UmaError(ErrorCode.SHUTTING_DOWN)
            done.append(_call(engine, shape, len(done)))
    return calls


def _call(engine: Engine, shape: Shape, step: int) -> int:
    """Time a call. A tick's rows stay in their sequences, as not every engine can cut a sequence back by one row."""
    batch = Batch(shape.n)
    if shape.n_kv:
        for seq_id in range(shape.n):
            batch.add(0, shape.n_kv + step, seq_id, True)
    else:
        batch.extend(np.zeros(shape.n, np.int32), 0, 0, True)
    outcome = engine.decode(batch, [None] * batch.n_rows)
    if outcome.status is not DecodeStatus.OK:
        raise UmaError(
            ErrorCode.DECODE_FAILED, f"the {engine.info.engine} engine failed while the engines were compared"
        )
    if not shape.n_kv:
        engine.kv_truncate(0, 0)
    return outcome.call_ns
