"""Fairness between clients: virtual time counters over measured time (VTC, arXiv 2401.00588).

Rules: every tick's measured ns is charged to the clients whose rows and chunks ran. Admission, prompt order
and background rotation put clients with less virtual time first, in steps of FAIR_QUANTUM_NS. A client that
comes back is lifted to the least counter of those present, so that absence earns no credit.
With one client alone nothing is kept.
Bound: two clients that both always have work differ by no more than the quantum plus twice the largest charge
of one tick's uninterruptible choice (one admitted request per sequence).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from uma_core.policy.carry import remember
from uma_core.policy.parts import parts_of
from uma_core.policy.plan import Plan, riders
from uma_core.policy.state import SchedulerState
from uma_core.types import Phase

NAME = "fairness"


class Ledger(NamedTuple):
    """Virtual times by client, and who was planned in the last tick: ((client, rows), ...) by phase."""

    counters: Mapping[int, int]
    decoded: tuple[tuple[int, int], ...] = ()
    prefilled: tuple[tuple[int, int], ...] = ()


def run(state: SchedulerState, plan: Plan) -> Plan:
    """Charge the previous tick and drop clients that left. Ordering happens in policy/rank.py."""
    clients = parts_of(state).clients
    old = state.carry.get(NAME)
    ledger = old if isinstance(old, Ledger) else Ledger({})
    if len(clients) < 2:
        if old is None:
            return plan
        return plan._replace(carry={k: v for k, v in plan.carry.items() if k != NAME})
    counters = _charge(state, ledger)
    if counters.keys() != clients:
        floor = min((ns for c, ns in counters.items() if c in clients), default=0)
        counters = {c: max(counters.get(c, floor), floor) for c in clients}
        least = min(counters.values())
        counters = {c: ns - least for c, ns in counters.items()}
    return remember(plan, NAME, Ledger(counters))


def seal(state: SchedulerState, plan: Plan) -> Plan:
    """Remember whose work the finished plan holds."""
    ledger = plan.carry.get(NAME)
    if not isinstance(ledger, Ledger) or not plan.items:
        return plan
    planned = {item.sid for item in plan.items}
    client_of = {s.sid: s.client for s in state.sessions if s.sid in planned}
    decoded: dict[int, int] = {}
    prefilled: dict[int, int] = {}
    riding = riders(plan)
    for item in plan.items:
        rows = decoded if item.phase is Phase.DECODE or item.sid in riding else prefilled
        client = client_of[item.sid]
        rows[client] = rows.get(client, 0) + (1 if item.sid in riding else item.n_tokens)  # a ride is an equal share of the call
    return remember(plan, NAME, Ledger(ledger.counters, tuple(decoded.items()), tuple(prefilled.items())))


def _charge(state: SchedulerState, ledger: Ledger) -> dict[int, int]:
    """Counters with what was measured since the last plan shared out by that plan's rows."""
    counters = dict(ledger.counters)
    for phase, rows in ((Phase.DECODE, ledger.decoded), (Phase.PREFILL, ledger.prefilled)):
        spent = sum(r.elapsed_ns for r in state.reports if r.phase is phase)
        n = sum(k for _, k in rows)
        if spent and n:
            for client, k in rows:
                counters[client] = counters.get(client, 0) + spent * k // n
    return counters
