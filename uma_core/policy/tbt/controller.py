"""How much room the next gap has, judged by the time that earlier gaps took.

Only two things are learned:

- `error`, the 98th percentile of (a tick's time / its planned time), less 1. It includes every cause: predictions,
  copies, Python, neighbours.
- `credit`, the level of a token bucket of long gaps. Every gap adds `long_tick_share` (0.02), a long gap takes 1, and
  the bucket holds 1 at most: with 2 % of long gaps a stream's p95 is an everyday gap.
"""

from __future__ import annotations

from uma_core.policy.chunks import Room
from uma_core.policy.memory import TbtMemory
from uma_core.policy.state import SchedulerState
from uma_core.policy.tbt.limits import TbtLimits
from uma_core.types import Phase

# Share of gaps that exceed (1 + error) x the planned time. With 0.05 a storm's p95 grows by 1 %; with 0.01 a fifth
# fewer prompt tokens are read.
MISSES = 0.02
# How fast the error follows: a gap beyond it adds 0.039, a gap within it subtracts 0.0008. With 0.08 background work
# takes 3 % longer; with 0.02 it takes 3 % less time, and a machine that turns noisy is noticed half as fast.
STEP = 0.04
# The error is never more than this: on a machine that busy chats pause anyway, so other work need not stop. No machine
# of the simulator is that noisy, but a real one is (Zen 3, two shared cores, medians of seven and six repeats). Without
# a limit, and with slower learning, TBT beside a storm was 1.20 steps instead of 1.00, and the storm took 4 % longer.
ERROR_MOST = 0.25
# Share of the time between round and everyday limit that other work always gets. Without it, an error of a few per cent
# would leave nothing, and prompts were read 13 times slower on the noisiest machine. With 0.8 background work takes
# 25 % less time, TBT grows by 1 %, and a chat's pauses beside a deep prompt by up to 149 %.
LEAST = 0.4
# Part of a round that stays free below the long limit, because a disturbance of the machine would lengthen a gap that
# is already long. With 0.15 pauses grow by 2 %, with 0.5 background work takes 9 % longer.
RESERVE = 0.3
LONG_GAP = 1.0  # credit that a long gap takes, and the most credit that is saved


def learn(memory: TbtMemory, state: SchedulerState) -> TbtMemory:
    """Learn from the ticks since the last plan. A plan that was repeated is judged by its calls."""
    n_ticks = state.tick - memory.tick
    if not memory.planned_ns or n_ticks < 1:
        return memory._replace(credit=min(LONG_GAP, memory.credit + state.config.long_tick_share))
    if n_ticks == 1:
        ratios = [(state.now_ns - memory.t_plan_ns) / memory.planned_ns]
    else:
        calls = [r for r in state.reports if r.phase is Phase.DECODE and r.predicted_ns > 0]
        ratios = [r.elapsed_ns / r.predicted_ns for r in calls]
    error = memory.error
    for ratio in ratios:
        error += STEP * (1.0 - MISSES) if ratio > 1.0 + error else -STEP * MISSES
        error = min(ERROR_MOST, max(0.0, error))
    return memory._replace(error=error, credit=min(LONG_GAP, memory.credit + state.config.long_tick_share * n_ticks))


def room_of(memory: TbtMemory, limits: TbtLimits) -> Room:
    """Time that other work may have in the next gap."""
    least_ns = int(LEAST * max(0, limits.everyday_ns - limits.round_ns - limits.host_ns))
    in_everyday_ns = max(least_ns, _below(limits.everyday_ns, limits, memory))
    return Room(in_everyday_ns, max(in_everyday_ns, room_below(limits.long_ns, limits, memory)))


def room_below(limit_ns: int, limits: TbtLimits, memory: TbtMemory, is_overdue: bool = False) -> int:
    """Room below a limit longer than the everyday one: RESERVE stays free, except for an overdue first token."""
    reserve = 0.0 if is_overdue else RESERVE
    free_ns = int(limit_ns - (1.0 + reserve) * limits.round_ns) - limits.host_ns
    return max(0, min(_below(limit_ns, limits, memory), free_ns))


def _below(limit_ns: int, limits: TbtLimits, memory: TbtMemory) -> int:
    return int(limit_ns / (1.0 + memory.error)) - limits.round_ns - limits.host_ns
