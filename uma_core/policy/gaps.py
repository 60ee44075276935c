"""What a stream's gap may be: the limits that the latency guard keeps.

solo: predicted decode round of the interactive streams alone; alone: the step of one of them without the others. cap: the
everyday limit of a gap; pause: the limit of the few long ones. Both are multiples of the step of one stream alone, which is what
each chat is promised, as long as many streams' own round leaves room for that.
A `target_tbt_ms` replaces cap x solo for its stream.
An interactive prompt without its first token has long gaps as far as its deadline needs them (`urgent_cap`).
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.parts import Parts
from uma_core.policy.patience import left_to_read_ns, target_ns
from uma_core.policy.state import SchedulerState, SessionView

CAP_ROUNDS = 1.1  # everyday gaps of many streams, whose own round takes far longer than the cap of one: at least x that round
PAUSE_ROUNDS = 1.75  # long gaps of many streams, whose own round takes far longer than the pause of one: at least x that round
FAR = 2.0  # x the time between one stream's step and its limit: where that "far" begins
OVERDUE_CAP = 8.0  # longest gap, x solo, for the sake of interactive prompts that are overdue


class GapLimits(NamedTuple):
    """Nanoseconds from one token to the next."""

    solo_ns: int
    cap_ns: int
    pause_ns: int
    alone_ns: int


def gap_limits(state: SchedulerState, parts: Parts) -> GapLimits:
    """Limits for the streams that decode now: the strictest stream's."""
    knobs = state.knobs
    solo = parts.talk_ns
    alone = max((state.cost.solo_step_ns(view.n_past) for view in parts.talkers + parts.arriving), default=0)
    plain = max(_limit(knobs.guard_cap, CAP_ROUNDS, alone, solo), knobs.guard_floor_ns)
    cap = 0
    for view in parts.talkers + parts.arriving:
        target = view.slo_tbt_ns or knobs.slo_tbt_ns
        wanted = max(target, solo) if target else plain
        cap = min(cap, wanted) if cap else wanted
    return GapLimits(solo, cap, max(cap, _limit(knobs.pause_cap, PAUSE_ROUNDS, alone, solo)), alone)


def _limit(steps: float, rounds: float, alone_ns: int, solo_ns: int) -> int:
    """So many steps of one stream alone, at most as many of the streams' own round; or up to `rounds` of it, the longer it is.

    A round of 1.15 steps keeps the cap of 1.2 steps as it is: 1.1 of that round would stretch every gap beyond what each was promised.
    """
    room = FAR * (steps - 1.0) * alone_ns
    share = min(1.0, (solo_ns - alone_ns) / room) if room > 0 else 1.0
    return int(min(steps * solo_ns, max(steps * alone_ns, (1.0 + (rounds - 1.0) * share) * solo_ns)))


def urgent_cap(state: SchedulerState, view: SessionView, limits: GapLimits, usual_ns: int, gain_ns: int | None = None) -> int:
    """Limit of the next gap while this interactive prompt waits for its first token.

    `usual_ns`: what it gets of an everyday gap; `gain_ns`: the time in chunks that this replaces, where that is another.

    As long as everyday gaps will not do until its deadline (patience.py), the next gap is a long one: few long gaps and many short
    ones keep the streams' p95 where as many gaps of middling length would not.
    Once overdue, chats are in each other's way: the gap grows on with the time waited, in units of that target, up to
    OVERDUE_CAP x solo.
    """
    target = target_ns(state, view, limits.alone_ns)
    left = view.t_queued_ns + target - state.now_ns
    if left <= 0:
        return min(limits.pause_ns - limits.pause_ns * left // max(1, target), max(limits.pause_ns, int(OVERDUE_CAP * limits.solo_ns)))
    n_gaps = left // max(1, limits.solo_ns + usual_ns)
    gain = usual_ns if gain_ns is None else gain_ns
    return limits.cap_ns if left_to_read_ns(state, view) <= n_gaps * gain else limits.pause_ns
