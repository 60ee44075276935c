"""Throughput sweet spot: how many background streams to serve per tick, and for how many tokens in a row.

Rules: learns only while nothing interactive is there. Hill climbing over (served, burst): a window of
decode rounds at the present point, then one at a neighbour; the neighbour is kept if its measured tokens
per second are better by GAIN. Neighbours that the cost model predicts to be worse are not tried. When no
neighbour helps, it rests, twice as long each time. MoE models begin with few streams (expert breadth).
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.carry import remember
from uma_core.policy.parts import parts_of, rows_time
from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Lane, Phase

NAME = "sweet_spot"
WINDOW = 16  # decode rounds
GAIN = 1.02
FORESEEN_LOSS = 0.9  # of the predicted rate: a correction is shared by several row counts, so a cliff may hide between them
MAX_BURST = 4
REST_FIRST, REST_MAX = 8, 256  # windows
MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1))  # of (served, burst)


class Spot(NamedTuple):
    """The present point and the climb. `n_served` 0: all."""

    n_served: int = 0
    burst: int = 1
    n_workers: int = 0  # for which this was learnt
    best_rate: float = 0.0  # rows per ns at the kept point; 0: not measured yet
    kept: tuple[int, int] = (0, 1)
    move: int = -1  # on trial; -1: measuring the kept point
    n_failed: int = 0  # moves in a row that did not help
    rest: int = 0  # windows to wait
    next_rest: int = REST_FIRST
    n_ticks: int = 0  # of this window
    n_rows: int = 0
    ns: int = 0


def run(state: SchedulerState, plan: Plan) -> Plan:
    """Take in the last tick's decode calls; move on when the window is full."""
    parts = parts_of(state)
    old = state.carry.get(NAME)
    spot = old if isinstance(old, Spot) else Spot()
    n = len(parts.workers)
    is_quiet = not parts.talkers and not parts.arriving and not any(v.lane is Lane.INTERACTIVE for v in parts.prompts)
    if n < 2 or not is_quiet:
        if old is None:
            return plan
        return remember(plan, NAME, spot._replace(n_ticks=0, n_rows=0, ns=0)) if spot.n_ticks else plan
    if spot.n_workers != n:
        first = min(n, state.knobs.moe_max_decoders) if state.device.n_expert else 0
        return remember(plan, NAME, Spot(n_served=first, n_workers=n, kept=(first, 1)))
    return remember(plan, NAME, _step(state, parts.workers, spot))


def _step(state: SchedulerState, workers: list[SessionView], spot: Spot) -> Spot:
    rows = sum(r.n_rows for r in state.reports if r.phase is Phase.DECODE)
    ns = sum(r.elapsed_ns for r in state.reports if r.phase is Phase.DECODE)
    if not rows:
        return spot
    spot = spot._replace(n_ticks=spot.n_ticks + 1, n_rows=spot.n_rows + rows, ns=spot.ns + ns)
    if spot.n_ticks < WINDOW:
        return spot
    rate = spot.n_rows / max(1, spot.ns)
    spot = spot._replace(n_ticks=0, n_rows=0, ns=0)
    if spot.rest > 0:
        return spot._replace(rest=spot.rest - 1, best_rate=0.0)
    if spot.move < 0 or not spot.best_rate:
        return _try_next(state, workers, spot._replace(best_rate=rate, move=-1))
    if rate > spot.best_rate * GAIN:
        kept = (spot.n_served, spot.burst)
        return _try_next(state, workers, spot._replace(kept=kept, best_rate=rate, n_failed=0, next_rest=REST_FIRST, move=spot.move - 1))
    return _try_next(state, workers, _back(spot)._replace(n_failed=spot.n_failed + 1))


def _back(spot: Spot) -> Spot:
    return spot._replace(n_served=spot.kept[0], burst=spot.kept[1])


def _try_next(state: SchedulerState, workers: list[SessionView], spot: Spot) -> Spot:
    """Go to the next promising neighbour, or rest."""
    move, n_failed = spot.move, spot.n_failed
    while n_failed < len(MOVES):
        move = (move + 1) % len(MOVES)
        point = _neighbour(spot.kept, MOVES[move], len(workers))
        if point != spot.kept and _is_promising(state, workers, spot.kept[0], point[0]):
            return spot._replace(n_served=point[0], burst=point[1], move=move, n_failed=n_failed)
        n_failed += 1
    rested = _back(spot)._replace(move=-1, n_failed=0, rest=spot.next_rest, next_rest=min(REST_MAX, spot.next_rest * 2))
    return rested


def _neighbour(kept: tuple[int, int], move: tuple[int, int], n: int) -> tuple[int, int]:
    served = kept[0] or n
    step = max(1, served // 8)
    served = min(n, max(1, served + move[0] * step))
    burst = min(MAX_BURST, max(1, kept[1] + move[1])) if served < n else 1
    return (0 if served == n else served), burst


def _is_promising(state: SchedulerState, workers: list[SessionView], now: int, then: int) -> bool:
    n_now, n_then = now or len(workers), then or len(workers)
    if n_now == n_then:
        return True
    rate_now = n_now / max(1, rows_time(state, workers[:n_now]))
    return n_then / max(1, rows_time(state, workers[:n_then])) >= FORESEEN_LOSS * rate_now
