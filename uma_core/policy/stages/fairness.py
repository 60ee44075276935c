"""Fairness between clients: a counter of measured time for each (virtual token counter, VTC, arXiv 2401.00588).

Rules: every tick's measured ns is charged to the clients whose rows and chunks ran. Admission, prompt order and
background rotation put clients that were charged less first, in steps of FAIR_QUANTUM_NS. A returning client's counter
is raised to the lowest of those present, so that absence earns no credit. With a single client no counters are kept.
"""

from __future__ import annotations

from uma_core.policy.index import views_of
from uma_core.policy.memory import Ledger
from uma_core.policy.plan import Plan, PrefillMode
from uma_core.policy.state import SchedulerState
from uma_core.types import Phase


def learn(state: SchedulerState, plan: Plan) -> Plan:
    """Charge the previous tick, drop clients that left, and publish the counters in the plan."""
    clients, old = {s.client for s in state.sessions}, plan.memory.fairness
    if len(clients) < 2:
        return plan.remember(fairness=None)
    counters = _charged(state, old or Ledger({}))
    if counters.keys() != clients:
        floor = min((ns for c, ns in counters.items() if c in clients), default=0)
        counters = {c: counters.get(c, floor) - floor for c in clients}
    return plan._replace(charged=counters).remember(fairness=Ledger(counters))


def seal(state: SchedulerState, plan: Plan) -> Plan:
    """Remember which clients' work the finished plan holds."""
    ledger = plan.memory.fairness
    if ledger is None or not plan.items:
        return plan
    client_of = {v.sid: v.client for v in views_of(state, plan.items)}
    decoded: dict[int, int] = {}
    prefilled: dict[int, int] = {}
    for item in plan.items:
        is_mixed = item.mode is PrefillMode.MIXED
        rows = decoded if item.phase is Phase.DECODE or is_mixed else prefilled
        client = client_of[item.sid]
        # a prompt in a mixed batch is charged as one row
        rows[client] = rows.get(client, 0) + (1 if is_mixed else item.n_tokens)
    return plan.remember(fairness=Ledger(ledger.counters, tuple(decoded.items()), tuple(prefilled.items())))


def _charged(state: SchedulerState, ledger: Ledger) -> dict[int, int]:
    """Add the times measured since the last plan to the counters, in proportion to that plan's rows."""
    counters = dict(ledger.counters)
    for phase, rows in ((Phase.DECODE, ledger.decoded), (Phase.PREFILL, ledger.prefilled)):
        spent = sum(r.elapsed_ns for r in state.reports if r.phase is phase)
        n = sum(k for _, k in rows)
        if spent and n:
            for client, k in rows:
                counters[client] = counters.get(client, 0) + spent * k // n
    return counters
