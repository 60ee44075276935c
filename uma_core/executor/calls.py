"""The three ways in which a plan's items reach the engine: decode calls, prefill runs, transfers.

Rules: nothing here chooses. Every outcome is reported to the policy as measured; every failure is either
retried by construction (FULL, ABORTED) or ends exactly the sessions that it concerns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from uma_core.clock import Clock
from uma_core.engine.api import Batch, DecodeStatus, Engine, PrefillStatus
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.endings import Deliveries
from uma_core.executor.meters import Meters
from uma_core.policy.cost import CostModel
from uma_core.policy.plan import Plan, PlanItem
from uma_core.policy.state import CallReport
from uma_core.session.session import Session
from uma_core.types import Phase

N_FULL_MOST = 1000  # ticks that a session waits for cells that were reserved for it, before it fails

RECENT_NS = 20_000_000_000  # of engine time: what a client's share is taken of
FORGET_NS = 1_000_000
CLIENTS_MOST = 512


class Calls:
    def __init__(self, engine: Engine, deliveries: Deliveries, meters: Meters, clock: Clock) -> None:
        self._engine = engine
        self._deliveries = deliveries
        self._meters = meters
        self._clock = clock
        self._batch = Batch(engine.info.n_batch)
        self.reports: list[CallReport] = []
        self.t_returned_ns = 0
        self.client_ns: dict[int, int] = {}  # engine time by fairness account, recent time counting more
        self._charged_ns = 0
        self.announce: Callable[[], None] = lambda: None  # events wait; called before the engine is entered, when the GIL comes free
        self.on_read: Callable[[Session], None] = lambda session: None  # more of a prompt is in the session's sequence

    def _charge(self, sessions: Sequence[Session], ns: int) -> None:
        share = ns // len(sessions)
        for session in sessions:
            self.client_ns[session.client] = self.client_ns.get(session.client, 0) + share
        self._charged_ns += ns
        if self._charged_ns > RECENT_NS:  # halving makes old time fade, and forgets clients that left
            self._charged_ns //= 2
            self.client_ns = {client: half for client, n in self.client_ns.items() if (half := n // 2) >= FORGET_NS}
        if len(self.client_ns) > CLIENTS_MOST:  # a process for each request: those that had least are forgotten
            self.client_ns = dict(heapq.nlargest(CLIENTS_MOST // 2, self.client_ns.items(), key=lambda item: item[1]))

    # decode calls

    def decode(self, items: Sequence[tuple[PlanItem, Session]], cost: CostModel) -> None:
        """One decode call for all items, in ascending sequence order so that KV streams stay neighbours."""
        items = sorted(items, key=lambda pair: pair[0].seq_id)
        status = self._call(items, cost)
        if status is DecodeStatus.FULL and len(items) > 1:
            for pair in items:  # one by one: those that fit go on, the others wait
                self._call([pair], cost)

    def _call(self, items: Sequence[tuple[PlanItem, Session]], cost: CostModel) -> DecodeStatus:
        batch = self._batch
        batch.clear()
        rows: list[Session] = []
        n_kv = n_prefill = 0
        for item, session in items:
            if item.phase is Phase.DECODE:
                batch.add(session.generated[-1], session.n_past, session.seq_id, True)
            else:
                tokens = session.token_at(session.n_past, session.n_past + item.n_tokens)
                batch.extend(tokens, session.n_past, session.seq_id, item.want_logits)
                n_prefill += item.n_tokens
            if item.want_logits:
                rows.append(session)
            n_kv += session.n_past + item.n_tokens
        self.announce()
        t0 = self._clock.now_ns()
        outcome = self._engine.decode(batch, [None if session.is_rereading else session.sampler for session in rows])
        now = self._clock.now_ns()
        n_rows = batch.n
        is_full = outcome.status is DecodeStatus.FULL
        predicted = cost.decode_ns(n_rows, n_kv) if not n_prefill else cost.prefill_ns(n_prefill, n_kv)
        phase = Phase.PREFILL if n_prefill else Phase.DECODE
        self.reports.append(CallReport(phase, n_rows, n_kv, predicted, outcome.call_ns, 0, is_full))
        self._meters.on_call(n_rows, outcome.call_ns, outcome.sample_ns)
        self._charge([session for _, session in items], outcome.call_ns)
        if self.t_returned_ns:
            self._meters.overhead.observe(t0 - self.t_returned_ns)
        self.t_returned_ns = now - outcome.sample_ns
        if outcome.status is DecodeStatus.OK:
            self._meters.on_prediction(predicted, outcome.call_ns)
            self._advance(items, rows, outcome.tokens, now)
            self._meters.to_chunk.set(self._clock.now_ns() - self.t_returned_ns)
        else:
            self._recover(items, outcome.status, now)
        return outcome.status

    def _advance(self, items: Sequence[tuple[PlanItem, Session]], rows: list[Session], tokens: Sequence[int], now: int) -> None:
        known = {session.sid for session in rows if session.is_rereading}  # their next token was sent before
        for item, session in items:
            session.n_full = 0
            session.progress(item.n_tokens, now)
            if item.phase is Phase.PREFILL:
                self._meters.prefill_tokens.add(item.n_tokens)
                if item.want_logits:
                    session.become(Phase.DECODE)
                self.on_read(session)
        for session, token in zip(rows, tokens, strict=True):
            if session.sid not in known:
                self._deliveries.deliver(session, token, now)

    def _recover(self, items: Sequence[tuple[PlanItem, Session]], status: DecodeStatus, now: int) -> None:
        """After FULL nothing changed. Otherwise some ubatches may stand: roll every sequence back to what we know."""
        for _, session in items:
            if status is DecodeStatus.FULL:
                session.n_full += 1
                if session.n_full > N_FULL_MOST:
                    self._deliveries.fail(session, UmaError(ErrorCode.KV_FULL), now)
            elif status is DecodeStatus.FATAL:
                self._deliveries.fail(session, UmaError(ErrorCode.DECODE_FAILED), now)
            elif status is DecodeStatus.BAD_BATCH:
                self._deliveries.fail(session, UmaError(ErrorCode.BAD_BATCH), now)
            elif self._engine.kv_len(session.seq_id) > session.n_past and not self._engine.kv_truncate(session.seq_id, session.n_past):
                self._deliveries.fail(session, UmaError(ErrorCode.DECODE_FAILED, "the call was stopped and this model cannot roll back"), now)

    # resumable prefill

    def prefill(self, item: PlanItem, session: Session, plan: Plan, cost: CostModel) -> None:
        """Open the chunk if it is new, then compute pieces of it for the planned time."""
        engine = self._engine
        if not session.n_chunk:
            tokens = session.token_at(session.n_past, session.n_past + item.n_tokens)
            if not engine.prefill_open(session.seq_id, tokens, item.want_logits):
                return
            session.n_chunk, session.chunk_fraction = item.n_tokens, 0.0
        self.announce()
        t0 = self._clock.now_ns()
        self.t_returned_ns = 0  # what follows is no overhead between two decode calls
        outcome = engine.prefill_run(session.seq_id, t0 + plan.run_ns, plan.quantum_ns, plan.min_pieces)
        now = self._clock.now_ns()
        share = outcome.fraction - session.chunk_fraction
        predicted = round(cost.prefill_ns(item.n_tokens, session.n_past) * share)
        n_done = round(item.n_tokens * share)
        self.reports.append(CallReport(Phase.PREFILL, n_done, session.n_past, predicted, outcome.elapsed_ns, outcome.longest_ns, False))
        self._meters.piece.observe(outcome.longest_ns)
        self._charge([session], outcome.elapsed_ns)
        session.chunk_fraction = outcome.fraction
        session.touch()
        if outcome.n_pieces:  # a lane that only fills must not hide that its prompt starves
            session.progress(0, now)
        if outcome.status is PrefillStatus.DONE:
            self._end_chunk(item, session, now)
        elif outcome.status is PrefillStatus.FAILED:
            self._deliveries.fail(session, UmaError(ErrorCode.DECODE_FAILED, "reading the prompt failed"), now)

    def _end_chunk(self, item: PlanItem, session: Session, now: int) -> None:
        session.n_chunk, session.chunk_fraction = 0, 0.0
        session.progress(item.n_tokens, now)
        self._meters.prefill_tokens.add(item.n_tokens)
        is_first = item.want_logits and not session.generated
        token = self._engine.prefill_sample(session.seq_id, session.sampler) if is_first else -1
        session.transfer = self._engine.handover(session.seq_id)  # before its end: the cache wants the last chunk too
        session.touch()
        if item.want_logits:
            session.become(Phase.DECODE)
        if is_first:
            self._deliveries.deliver(session, token, self._clock.now_ns())

    # transfers

    def transfers(self, sessions: Sequence[Session], budget_ns: int) -> None:
        """Move KV for the planned time, oldest session first; at least one slice."""
        self.announce()
        until = self._clock.now_ns() + budget_ns
        for session in sessions:
            if session.transfer is None:
                continue
            try:
                is_done = session.transfer.step(until)
            except UmaError as error:
                self._deliveries.fail(session, error, self._clock.now_ns())
                continue
            if is_done:
                session.transfer.close()
                session.transfer = None
                session.progress(0, self._clock.now_ns())
                self.on_read(session)
            if self._clock.now_ns() >= until:
                return
