"""The metric series that the executor writes, looked up once."""

from __future__ import annotations

from uma_core.metrics import catalog as m
from uma_core.policy.plan import Plan
from uma_core.session.draft import Draft
from uma_core.session.session import Session
from uma_core.types import FinishReason, Priority

OVERHEAD_NS = 350_000.0  # host overhead between two decode calls, until it is measured
# factor, less 1, by which the typical overhead moves per measurement: so it is a median, which stalls do not move
OVERHEAD_STEP = 0.03
FIRST_SECONDS_NS = 3_000_000_000  # "worst pause" is judged over a stream's first 3 s, as the product's targets are


class Meters:
    def __init__(self, registry: m.Registry) -> None:
        names = {priority: priority.name.lower() for priority in Priority}
        self.tokens = registry.counter(m.TOKENS_GENERATED)
        self.prefill_tokens = registry.counter(m.PREFILL_TOKENS)
        self.prompt_tokens = registry.counter(m.PROMPT_TOKENS)
        self.ticks = registry.counter(m.TICKS)
        self.calls = registry.counter(m.BATCH_CALLS)
        self.last_rows = registry.gauge(m.LAST_BATCH_SIZE)
        self.rows = registry.histogram(m.BATCH_SIZE)
        self.tokens_decode = registry.gauge(m.TOKENS_PER_TICK, phase="decode")
        self.tokens_prefill = registry.gauge(m.TOKENS_PER_TICK, phase="prefill")
        self.served = registry.gauge(m.SERVED_DECODERS)
        self.tick_time = registry.histogram(m.TICK_TIME)
        self.overhead = registry.histogram(m.TICK_OVERHEAD)
        self.plan_time = registry.histogram(m.PLAN_TIME)
        self.over_budget = registry.counter(m.TICKS_OVER_BUDGET)
        self.decode_call = registry.histogram(m.DECODE_CALL)
        self.decode_last = registry.gauge(m.DECODE_LAST)
        self.decode_ewma = registry.gauge(m.DECODE_EWMA)
        self.drafted = {source: registry.counter(m.DRAFTED, source=source) for source in m.DRAFTED.labels["source"]}
        self.accepted_drafts = {
            source: registry.counter(m.ACCEPTED_DRAFTS, source=source) for source in m.DRAFTED.labels["source"]
        }
        self.drafts_saved = {source: registry.gauge(m.DRAFTS_SAVED, source=source) for source in self.drafted}
        self.piece = registry.histogram(m.PREFILL_PIECE)
        self.sampling = registry.gauge(m.SAMPLING_LAST)
        self.to_chunk = registry.gauge(m.LOGITS_TO_CHUNK)
        self.prediction = registry.histogram(m.PREDICTION_ERROR)
        self.accepted = {priority: registry.counter(m.REQUESTS_ACCEPTED, lane=name) for priority, name in names.items()}
        self.ended = {reason: registry.counter(m.REQUESTS, reason=reason.value) for reason in FinishReason}
        self.queue_wait = {priority: registry.histogram(m.QUEUE_WAIT, lane=name) for priority, name in names.items()}
        self.ttft = {priority: registry.histogram(m.TTFT, lane=name) for priority, name in names.items()}
        self.prompt_time = registry.counter(m.PROMPT_TIME)
        self.ttf5 = {priority: registry.histogram(m.TTF5, lane=name) for priority, name in names.items()}
        self.inter_token = {priority: registry.histogram(m.INTER_TOKEN, lane=name) for priority, name in names.items()}
        self.step = registry.histogram(m.CONSTRAINT_STEP)
        self.steps_ns: list[int] = []  # of constrained tokens, not booked yet
        self.taken_back = registry.counter(m.TOKENS_TAKEN_BACK)
        self.forced = registry.counter(m.TOKENS_FORCED)
        self.stretch = registry.histogram(m.GAP_STRETCH)
        self._gaps: list[tuple[Session, int, int]] = []  # not booked yet: gap, and its limit when it ended
        # limit of an interactive gap that ends now, if the request has no target of its own; 0: none
        self.tbt_limit_ns = 0
        self.overhead_ns = OVERHEAD_NS  # typical time from a decode call's return to the next one
        self._n_overheads = 0
        self.worst_pause = {priority: registry.histogram(m.WORST_PAUSE, lane=name) for priority, name in names.items()}
        self.slo = {
            (kind, priority): registry.counter(m.SLO_VIOLATIONS, kind=kind, lane=name)
            for kind in ("ttft", "tbt")
            for priority, name in names.items()
        }
        self.preemptions = registry.counter(m.PREEMPTIONS)
        self.violations = registry.counter(m.PLAN_VIOLATIONS)
        self.bmt_estimate = registry.gauge(m.BMT_ESTIMATE)
        self.bmt_budget = registry.gauge(m.BMT_BUDGET)
        self.bmt_moved = registry.gauge(m.BMT_MOVED)
        self.bmt_time = registry.gauge(m.BMT_TIME)
        self.bmt_total = registry.counter(m.BMT_TOTAL)
        self.engine_time = registry.counter(m.ENGINE_TIME)
        self.serving_time = registry.counter(m.SERVING_TIME)
        self.kv_bytes = registry.counter(m.KV_BYTES)
        self.kv_copied = registry.counter(m.KV_COPIED_BYTES)

    def on_call(self, n_rows: int, call_ns: int, sample_ns: int) -> None:
        self.calls.add()
        self.last_rows.set(n_rows)
        self.rows.observe(n_rows)
        self.decode_call.observe(call_ns)
        self.decode_last.set(call_ns)
        ewma = self.decode_ewma.value
        self.decode_ewma.set(ewma + 0.1 * (call_ns - ewma) if ewma else call_ns)
        self.sampling.set(sample_ns)

    def on_overhead(self, ns: int, is_ahead: bool) -> None:
        """Note the time from a decode call's return to the next call, with only our own work between them.

        `is_ahead`: the engine had started the next call ahead, so the time says nothing about our work.
        """
        self.overhead.observe(ns)
        if is_ahead:
            return
        self._n_overheads += 1
        step = 1.0 + max(OVERHEAD_STEP, 1.0 / self._n_overheads)
        self.overhead_ns *= step if ns > self.overhead_ns else 1.0 / step

    def on_engine(self, plan: Plan, n_ticks: int, n_bytes: int, ns: int) -> None:
        """Count the bytes that `n_ticks` ticks of one plan moved through memory, and the time of their engine calls."""
        self.bmt_estimate.set(plan.bmt_bytes)
        self.bmt_budget.set(plan.bmt_budget)
        self.bmt_moved.set(n_bytes // n_ticks)
        self.bmt_time.set(ns // n_ticks)
        self.bmt_total.add(n_bytes)
        self.engine_time.add(ns)

    def on_prediction(self, predicted_ns: int, measured_ns: int) -> None:
        if predicted_ns > 0:
            self.prediction.observe(abs(measured_ns / predicted_ns - 1.0))

    def on_drafts(self, draft: Draft, n_verified: int, n_accepted: int) -> None:
        """Count the first tokens of a session's draft, which a step has verified."""
        for source, n_rows, n_tokens in draft.by_source(n_verified, n_accepted):
            self.drafted[source].add(n_rows)
            self.accepted_drafts[source].add(n_tokens)

    def on_saved(self, source: str, ns: float) -> None:
        """Count engine time that drafts saved; negative: time that they or the draft model took."""
        saved = self.drafts_saved[source]
        saved.set(saved.value + ns)

    def on_tick(self, ns: int, budget_ns: int) -> None:
        self.ticks.add()
        self.tick_time.observe(ns)
        if 0 < budget_ns < ns:
            self.over_budget.add()

    def on_token(self, session: Session, last_ns: int, now_ns: int) -> None:
        """Called after `session` counted the token. `last_ns`: when the token before it came; 0 for the first.

        Gaps are booked by `flush`.
        """
        if last_ns:
            self._gaps.append((session, now_ns - last_ns, self.tbt_limit_ns))
            if len(session.generated) == 5:
                self.ttf5[session.priority].observe(now_ns - session.t_received_ns)
        else:
            priority = session.priority
            self.tokens.add()
            ttft = now_ns - session.t_received_ns
            self.ttft[priority].observe(ttft)
            self.prompt_time.add(now_ns - session.t_admitted_ns)
            if 0 < session.request.slo.ttft_ns < ttft:
                self.slo["ttft", priority].add()

    def flush(self) -> None:
        """Book the gaps between tokens."""
        gaps, self._gaps = self._gaps, []
        steps, self.steps_ns = self.steps_ns, []
        for ns in steps:
            self.step.observe(ns)
        self.tokens.add(len(gaps))
        for session, gap, limit in gaps:
            priority, target = session.priority, session.request.slo.tbt_ns
            self.inter_token[priority].observe(gap)
            if limit and priority is Priority.INTERACTIVE:
                self.stretch.observe(gap / (target or limit))
            if 0 < target < gap:
                self.slo["tbt", priority].add()

    def on_end(self, session: Session) -> None:
        """Count the end of an answer."""
        self.flush()
        elapsed, worst = 0, 0
        for gap in session.gaps_ns:
            worst = gap if gap > worst else worst
            elapsed += gap
            if elapsed > FIRST_SECONDS_NS:
                break
        if worst:
            self.worst_pause[session.priority].observe(worst)
