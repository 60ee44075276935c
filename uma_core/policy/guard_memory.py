"""What the latency guard learns from the gaps it sees: margins, the machine's own noise, long-gap credit, back-off.

Rules: pure; one frozen value in `carry`. The gap is measured where the user feels it, from one token of a
stream to the next, so that everything in it counts: predictions that were wrong, copies, Python, the machine.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from uma_core.policy.gaps import GapLimits
from uma_core.policy.parts import Parts
from uma_core.policy.state import CallReport, SchedulerState
from uma_core.types import Phase

EXCEED = 0.03  # share of everyday gaps that may exceed the cap: with the long ones that leaves p95 below it
STEP = 0.04  # of solo: how fast the margin and the noise follow
NOISY, NOISE_MAX = 0.05, 0.25  # share of the decode calls that are beyond the noise, which makes the rest of a stream's p95; most, of a call
HARD_STEP, HARD_DECAY = 0.1, 0.001  # of solo
MARGIN_MIN, HARD_MIN, HARD_MAX = 0.05, 0.3, 0.5  # of solo
CREDIT_MAX, CREDIT_MIN = 1.0, -4.0
BACK_OFF, RECOVER = 0.5, 0.1


class Kind(IntEnum):
    """Why a gap holds more than the stream's own decode."""

    NOTHING = 0
    NORMAL = 1  # work that was predicted to fit the cap
    LONG = 2  # work on credit, predicted to fit the pause limit
    URGENT = 3  # an interactive prompt near its deadline
    FORCED = 4  # the starvation bound


class GuardMemory(NamedTuple):
    margin: float = MARGIN_MIN  # of solo, kept free below the cap
    noise: float = 0.0  # the p95 of decode calls over what they were predicted to take, less 1
    hard_margin: float = HARD_MIN  # of solo, kept free below the pause limit
    credit: float = 0.0  # long gaps that may be spent
    throttle: float = 1.0  # part of the spare time that is used; halves after a gap beyond the pause limit
    debt_ns: int = 0  # background decode minus prompt time granted; who has less goes first
    watch_sid: int = -1  # the stream whose gaps are measured
    watch_ns: int = 0  # its last token
    watch_n: int = 0  # tokens it had then: plans may have been repeated since
    watch_kind: int = 0  # what the gap that began there holds
    last_kind: int = 0  # what the last plan put after its tokens
    cursor: int = -1  # background session that was served last in turn
    forced_tick: int = 0  # when a background row was last forced


def learn(memory: GuardMemory, state: SchedulerState, parts: Parts, limits: GapLimits) -> GuardMemory:
    """Take in the decode calls that were booked, and the gap that ended with the last tick, if one did."""
    memory = memory._replace(noise=_noise(memory.noise, state.reports)) if state.reports else memory
    view = next((v for v in parts.talkers if v.sid == memory.watch_sid), None)
    if view is None:
        first = parts.talkers[0] if parts.talkers else None
        sid, t_last, n = (first.sid, first.t_last_ns, first.n_generated) if first else (-1, 0, 0)
        return memory._replace(watch_sid=sid, watch_ns=t_last, watch_n=n, watch_kind=memory.last_kind)
    if view.t_last_ns <= memory.watch_ns:
        return memory
    n = view.n_generated - memory.watch_n
    if memory.watch_ns and n == 1:
        learned = _with_gap(memory, view.t_last_ns - memory.watch_ns, limits)
    else:
        learned = _with_quiet_gaps(memory, state.reports, limits) if memory.watch_ns else memory
    return learned._replace(watch_ns=view.t_last_ns, watch_n=view.n_generated, watch_kind=memory.last_kind)


def _noise(noise: float, reports: tuple[CallReport, ...]) -> float:
    """Follow the quantile of what decode calls take, over what they were predicted to take."""
    for report in reports:
        if report.phase is Phase.DECODE and report.predicted_ns > 0 and not report.is_full:
            noise += STEP * (1 - NOISY) if report.elapsed_ns > report.predicted_ns * (1.0 + noise) else -STEP * NOISY
            noise = min(NOISE_MAX, max(0.0, noise))
    return noise


def _with_gap(memory: GuardMemory, gap: int, limits: GapLimits) -> GuardMemory:
    kind = memory.watch_kind
    cap_ns = int(limits.cap_ns * (1.0 + memory.noise))  # the cap is a multiple of what the stream would see alone, on this machine
    is_over_cap, is_over_pause = gap > cap_ns, gap > limits.pause_ns
    margin, hard, credit, throttle = memory.margin, memory.hard_margin, memory.credit, memory.throttle
    if kind == Kind.NORMAL:
        margin += STEP * (1 - EXCEED) if is_over_cap else -STEP * EXCEED
    elif not kind and not is_over_cap:
        margin -= STEP * EXCEED
    if kind in (Kind.LONG, Kind.URGENT) and is_over_pause:
        hard += HARD_STEP
    elif kind:
        hard -= HARD_DECAY
    if is_over_cap and kind <= Kind.NORMAL:
        credit -= 1.0  # noise uses up the allowance of long gaps too
    throttle = BACK_OFF if is_over_pause and kind else min(1.0, throttle + RECOVER)
    widest = max(MARGIN_MIN, limits.cap_ns / max(1, limits.solo_ns) - 1.0)
    return memory._replace(
        margin=min(widest, max(MARGIN_MIN, margin)),
        hard_margin=min(HARD_MAX, max(HARD_MIN, hard)),
        credit=max(CREDIT_MIN, credit),
        throttle=throttle,
    )


def n_rounds_since(memory: GuardMemory, parts: Parts) -> int:
    """Decode rounds since the last plan, which may have been repeated."""
    view = next((v for v in parts.talkers if v.sid == memory.watch_sid), None)
    return max(1, view.n_generated - memory.watch_n) if view else 1


def _with_quiet_gaps(memory: GuardMemory, reports: tuple[CallReport, ...], limits: GapLimits) -> GuardMemory:
    """Gaps of a plan that was repeated: they held nothing beside their decode calls, so these tell what the gaps were."""
    cap_ns = int(limits.cap_ns * (1.0 + memory.noise))
    calls = [r.elapsed_ns for r in reports if r.phase is Phase.DECODE]
    n_over = sum(ns > cap_ns for ns in calls)
    n_quiet = len(calls) - n_over
    return memory._replace(
        margin=max(MARGIN_MIN, memory.margin - STEP * EXCEED * n_quiet),
        credit=max(CREDIT_MIN, memory.credit - n_over),
        throttle=min(1.0, memory.throttle + RECOVER * n_quiet),
    )


def begin(memory: GuardMemory, parts: Parts) -> GuardMemory:
    """A stream that begins spends no long gap that was earned in others' gaps: its own p95 has no room for it."""
    is_new = any(v.n_generated <= 1 for v in parts.talkers)
    return memory._replace(credit=min(memory.credit, 0.0)) if is_new else memory


def earn(memory: GuardMemory, share: float) -> GuardMemory:
    """Credit for the decode rounds since the last plan: `share` in all."""
    return memory._replace(credit=min(CREDIT_MAX, memory.credit + share))
