"""The guard's limits on the gap between two tokens of a stream (drawn in docs/POLICY.md). `seal` sets the limits by
which metrics judge a gap.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.index import SessionIndex, index_of, rows_time
from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState

# If the streams' round is far beyond one stream's limit, the limit is 1 + part x (cap - 1) rounds: 1.1 with a
# `guard_cap` of 1.2, which leaves a tenth of a round for other work (half of it: background +19 %; twice: TBT +1 %) ...
EVERYDAY_PART = 0.5
# ... and 1.75 rounds with a `pause_cap` of 2.0. Without this part, a paste beside three chats on the GPU is read 20
# times slower; with 0.5 two chats on llama.cpp's kernels have no long gaps; with a part of 1 the chats pause 0.25
# rounds longer.
LONG_PART = 0.75
# `starvation_ticks` is multiplied by this for work that exceeds a long gap: with 1, a paste's coarse pieces double the
# worst pause
RARELY = 4


class TbtLimits(NamedTuple):
    """Nanoseconds from one token to the next."""

    round_ns: int
    everyday_ns: int
    long_ns: int
    step_ns: int
    # Host overhead of a gap with other work, if the engine computes ahead: then a chat alone does not have it.
    # Otherwise 0, because every gap has it.
    host_ns: int = 0

    def starvation_factor(self, ns: int) -> int:
        """Multiples of `starvation_ticks` after which work of `ns` is forced.

        Work between a long gap's room and the long limit fits no long gap, but is forced as often as smaller work.
        """
        return 1 if ns <= self.long_ns - self.round_ns else RARELY


def tbt_limits(state: SchedulerState, index: SessionIndex) -> TbtLimits:
    """Return the limits for the streams that decode now. The strictest stream decides."""
    config, round_ns = state.config, index.round_ns
    step = max((state.cost.solo_step_ns(view.n_past) for view in index.streams), default=0)
    plain = max(_limit(config.guard_cap, EVERYDAY_PART, step, round_ns), config.guard_floor_ns)
    targets = [view.slo_tbt_ns or config.slo_tbt_ns for view in index.streams]
    everyday = min((max(target, round_ns) if target else plain for target in targets), default=0)
    long = max(everyday, _limit(config.pause_cap, LONG_PART, step, round_ns))
    return TbtLimits(round_ns, everyday, long, step, state.overhead_ns if state.device.computes_ahead else 0)


def _limit(steps: float, part: float, step_ns: int, round_ns: int) -> int:
    """One stream's limit is `steps` steps. The round of several streams may leave nothing below that. The limit is then
    a multiple of the round. Its factor grows with the round, from 1 to 1 + part x (steps - 1), which it reaches where
    the round exceeds a step by `far_ns`: at 1.4 steps for the everyday limit, at 3 for the long one. The limit is at
    most `steps` rounds, and never falls when `steps` rises.

    With a round of 1.15 steps the limit stays at 1.2 steps: 1.1 rounds would stretch every gap beyond each stream's own
    limit.
    """
    far_ns = (steps - 1.0) * step_ns / EVERYDAY_PART
    share = min(1.0, (round_ns - step_ns) / far_ns) if far_ns > 0 else 1.0
    return int(min(steps * round_ns, max(steps * step_ns, (1.0 + part * (steps - 1.0) * share) * round_ns)))


def seal(state: SchedulerState, plan: Plan) -> Plan:
    """Write into the finished plan how long its gap and its tick may take. Metrics and status judge by these limits,
    even with the guard switched off.

    Beside a chat, a gap's limit is `guard_cap` times the gap without other work (round, host, error), and the tick's is
    the everyday limit, or round plus run if the guard granted more. Drafts lengthen both. With background streams only,
    the tick's limit is the tick budget, or round plus run if that is longer. If no session decodes, it is 0, because a
    new request ends the tick.
    """
    index = index_of(state)
    if index.round_ns:
        limits = tbt_limits(state, index)
        error = plan.guard.error if plan.guard is not None else 0.0
        n_calls = len({item.call for item in plan.decodes})
        alone = limits.round_ns + n_calls * (state.overhead_ns - limits.host_ns)
        promised = max(state.config.guard_floor_ns, int(state.config.guard_cap * (1.0 + error) * alone))
        tick_ns = max(limits.everyday_ns, limits.round_ns + plan.run_ns)
        return plan._replace(tbt_limit_ns=promised + plan.draft_ns, tick_limit_ns=tick_ns + plan.draft_ns)
    if not plan.decodes:
        return plan
    return plan._replace(tick_limit_ns=max(state.config.tick_budget_ns, rows_time(state, index.decodes) + plan.run_ns))
