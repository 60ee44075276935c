"""Tells waiting requests that asked for it (`queue_updates`) their place in the queue and their expected wait.

The prediction gives the sequences to the waiting requests, in the policy's order, as the running requests are expected
to end. Most answers end before their `max_tokens`, so it expects the mean length of recent answers.

Rules: on the compute thread; costs nothing unless a request asked; at most one event per request and UPDATE_NS.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from uma_core.policy.index import index_of
from uma_core.policy.order import urgency_key
from uma_core.policy.plan import Plan
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.session.events import Queued
from uma_core.session.session import Session
from uma_core.session.table import SessionTable

UPDATE_NS = 500_000_000  # a person reads positions no faster
GROWN = 1.5  # the wait is reported again when it exceeds the last report by this factor; waits normally shrink
LEAST_GROWTH_NS = 1_000_000_000
PACED_FROM = 8  # tokens after which a stream's own pace is a better guess than the cost model
LEAST_LEFT = 0.25  # share of a mean answer that is expected of streams that are already longer


class QueuePositions:
    """Owned by the executor."""

    def __init__(self) -> None:
        self._fresh: list[Session] = []  # accepted, but nothing was reported yet
        self._told: dict[int, tuple[int, int]] = {}  # last report of each waiting session: position and wait, by number
        self._due_ns = 0

    def accepted(self, session: Session) -> None:
        if session.request.queue_updates:
            self._fresh.append(session)

    def is_due(self, now_ns: int, plan: Plan) -> bool:
        if not self._told:
            return bool(self._fresh)
        return bool(self._fresh) or now_ns >= self._due_ns or any(a.sid in self._told for a in plan.admit)

    def tell(self, state: SchedulerState, plan: Plan, table: SessionTable) -> Iterator[Queued]:
        """Yield what is new, given what this tick's plan admits."""
        fresh, self._fresh = {session.sid for session in self._fresh}, []
        told, self._told = self._told, {}
        self._due_ns = state.now_ns + UPDATE_NS
        for sid, (position, wait_ns, _) in standings(state, plan, table.mean_answer).items():
            if sid not in fresh and sid not in told:
                continue
            before, before_ns = told.pop(sid, (-1, 0))  # -1: nothing was reported
            if position == before and wait_ns <= max(before_ns * GROWN, before_ns + LEAST_GROWTH_NS):
                self._told[sid] = (before, before_ns)
            else:
                self._told[sid] = (position, wait_ns)
                yield self._event(table, sid, position, wait_ns)
        known = {view.sid for view in state.sessions}
        for sid in (fresh | told.keys()) - self._told.keys():
            if sid in known:  # it is being read
                yield self._event(table, sid, 0, 0)

    @staticmethod
    def _event(table: SessionTable, sid: int, position: int, wait_ns: int) -> Queued:
        session = table.get(sid)
        return Queued(session.conn_id, session.id, position, wait_ns)


class Standing(NamedTuple):
    """The place of a request that waits for a sequence."""

    position: int  # in the queue; 0: the next
    wait_ns: int  # predicted, from now
    behind: int  # sid of the request whose end should free the sequence; 0: one is free


def standings(state: SchedulerState, plan: Plan, mean_answer: float) -> dict[int, Standing]:
    """Return the places of the waiting requests that this plan does not admit, in the policy's order."""
    admitted = {admission.sid for admission in plan.admit}
    ordered = sorted(index_of(state).waiting, key=urgency_key(state, plan.charged))
    queue = [view for view in ordered if view.sid not in admitted]
    running = [view for view in state.sessions if view.seq_id >= 0 or view.sid in admitted]
    waits = expected_waits(state, running, queue, mean_answer)[:-1]
    return {view.sid: Standing(position, *wait) for position, (view, wait) in enumerate(zip(queue, waits, strict=True))}


def expected_waits(
    state: SchedulerState, running: list[SessionView], queue: list[SessionView], mean_answer: float
) -> list[tuple[int, int]]:
    """Predict when each request of the queue, in order, gets a sequence; the last entry is for a request that would
    come next.

    An entry is a time in ns from now, and the sid of the request whose end frees the sequence (0: a sequence is free).
    """
    n_kv = sum(view.n_past for view in running)
    pace_ns = state.cost.rows_ns(max(1, len(running)), n_kv)
    ends = [(_left_ns(state, view, pace_ns, mean_answer), view.sid) for view in running]
    ends += [(0, 0)] * (state.device.n_seq_max - len(running))
    heapq.heapify(ends)
    waits = []
    for view in queue:
        waits.append(ends[0])
        heapq.heapreplace(ends, (ends[0][0] + _left_ns(state, view, pace_ns, mean_answer), view.sid))
    return [*waits, ends[0]]


def _left_ns(state: SchedulerState, view: SessionView, pace_ns: int, mean_answer: float) -> int:
    n_most, n_done = view.n_max - view.n_generated, view.n_generated
    n_tokens = min(n_most, max(mean_answer - n_done, mean_answer * LEAST_LEFT)) if mean_answer else n_most
    if n_done >= PACED_FROM:
        pace_ns = (state.now_ns - view.t_first_ns) // n_done
    return int(unread_ns(state, view) + n_tokens * pace_ns)


def unread_ns(state: SchedulerState, view: SessionView) -> int:
    """Return the time for reading the rest of a prompt once the cached part of it is restored."""
    n_past = max(view.n_past, view.cached_hint)
    return state.cost.prompt_ns(view.n_prompt - n_past, n_past)
