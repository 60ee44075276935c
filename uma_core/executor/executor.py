"""One tick: snapshot, plan, admissions, calls, outcomes. Carries plans out; chooses nothing.

Rules: runs on the compute thread only. A plan that breaks its contract is our bug: it is counted, and the tick falls
back to `decode_only`.
"""

from __future__ import annotations

import logging
from typing import Any

from uma_core.cache.admin import cache_admin
from uma_core.cache.housekeeping import Housekeeper
from uma_core.cache.manager import PrefixCache
from uma_core.cache.relief import drop_idle, forget, trim_snapshots
from uma_core.cache.settings import CacheSettings
from uma_core.clock import Clock
from uma_core.engine.api import Engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.accounting import bytes_moved
from uma_core.executor.admission import AdmissionControl
from uma_core.executor.answers import Group
from uma_core.executor.calls import Calls
from uma_core.executor.meters import Meters
from uma_core.executor.output import Output
from uma_core.executor.ports import Ports, unheard
from uma_core.executor.prompt_progress import PromptProgress
from uma_core.executor.queue_positions import QueuePositions, Standing, standings
from uma_core.executor.residency import Residency, residency
from uma_core.executor.slots import Slots
from uma_core.metrics.catalog import Registry
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.learn import observe
from uma_core.policy.cost.model import CostModel
from uma_core.policy.index import indexed
from uma_core.policy.memory import PolicyMemory
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan, PlanItem, PrefillMode, check_plan, decode_only
from uma_core.policy.state import CallReport, DeviceView, SchedulerState
from uma_core.session.events import Stale, Submit
from uma_core.session.session import Session
from uma_core.session.table import SessionTable
from uma_core.speculation.model import Drafter
from uma_core.speculation.settings import OFF, Settings
from uma_core.speculation.speculator import Speculator
from uma_core.trace.recorder import Sink
from uma_core.types import FinishReason, Phase, Priority

log = logging.getLogger(__name__)

# per tick, to copy the last chunk of ended sessions: their sequences are free once it has arrived
LAST_CHUNK_NS = 200_000
FLUSH_MOST_NS = 250_000_000  # how late metrics may be while a plan is repeated ...
FLUSH_TICKS = 16  # ... also in ticks: booking many at once would be a pause by itself


class Executor:
    """Owns one engine's sessions. The I/O thread reads `events`."""

    def __init__(
        self,
        engine: Engine,
        admission: AdmissionControl,
        config: SchedulerConfig,
        cost: CostModel,
        registry: Registry,
        clock: Clock,
        speculator: Speculator | None = None,
        ports: Ports | None = None,
    ) -> None:
        """`speculator`: the source of draft tokens; None: nothing is drafted. `ports`: None: the thread that ticks it
        reads `events`.
        """
        ports = ports or unheard()
        self.engine = engine
        self.table = SessionTable(engine.info)
        self.meters = Meters(registry)
        self.events = ports.events
        self.cache = PrefixCache(engine, cost, registry, clock, self.table.give_back, ports.wake)
        self.housekeeper = Housekeeper(self.cache)
        self.prompt_progress = PromptProgress(self.events, clock)
        self._speculator = speculator if engine.info.capabilities.n_verify_rows else None
        self.output = Output(engine, self.table, self.meters, self.events, self.cache, clock, self._on_finished)
        self.slots = Slots(engine, self.table, self.cache, self.housekeeper, self.output, self.meters)
        self.calls = Calls(
            engine, self.output, self.meters, clock, self.cache, self.prompt_progress, self._speculator, ports
        )
        self.queue_positions = QueuePositions()
        self.admission = admission
        self.cost = cost
        self.recorders: tuple[Sink, ...] = ()
        self.last_plan = Plan()
        self._last_state: SchedulerState | None = None  # the state that it was made for
        self.n_ticks = 0
        self._groups_waiting: list[Group] = []  # those with answers that wait for their prompt
        self._n_repeats = 0  # times that the last plan may be carried out again ...
        self._n_changes = 0  # ... while the table stays at this
        self._groups: list[list[tuple[PlanItem, Session]]] = []  # its decode calls
        self._tick_ns: list[int] = []  # durations that are not booked yet
        self._t_flushed_ns = 0  # when the last tick was booked
        self._t_served_ns = 0  # up to when time with requests is counted; 0: there are no requests
        self._serving_ns = 0  # the part of that time that is not booked yet
        self.last_tick_ns = 0
        self.ewma_tick_ns = 0.0
        self._clock = clock
        self._memory = PolicyMemory()
        self._reports: tuple[CallReport, ...] = ()
        self._device = device_view(engine)
        self.set_config(config)

    def set_config(self, config: SchedulerConfig) -> None:
        """Between two ticks."""
        self.config = config
        self._n_repeats = 0
        self._pipeline = compose(config.stages)

    def set_cache(self, settings: CacheSettings) -> None:
        """Between two ticks."""
        self.housekeeper.stop()
        self.cache.apply(settings)

    @property
    def speculation_mode(self) -> str:
        """The mode of requests that give none; `off` if the engine verifies no drafts."""
        return self._speculator.mode if self._speculator is not None else OFF

    @property
    def draft_model(self) -> Drafter | None:
        return self._speculator.model if self._speculator is not None else None

    def set_speculation(self, settings: Settings) -> None:
        """Between two ticks."""
        if self._speculator is not None:
            self._speculator.apply(settings)

    # requests

    def submit(self, command: Submit) -> None:
        if command.text is not None and command.text is not self.engine:
            self.events.append(Stale(command.conn_id, command.request.id))
            return
        sessions = self.admission.admit(command, self.engine.info, self.table, self.events, self.cache.peek)
        if not sessions:
            return
        first = sessions[0]
        for session in sessions:
            self.cache.accept(session)
        if len(sessions) > 1:
            self._groups_waiting.append(Group(sessions))
        self.queue_positions.accepted(first)
        self.meters.accepted[first.priority].add()
        self.meters.prompt_tokens.add(first.n_given)
        for session in sessions:
            for recorder in self.recorders:
                recorder.name(session.sid, session.id)
            self._open_sampler(session)
            if self._speculator is not None and session.phase is Phase.QUEUED:  # else it has ended already
                self._speculator.begin(session)
        if first.phase is Phase.QUEUED:
            self.output.scores.begin(first)
        for which in command.cancelled:
            self.cancel(command.conn_id, command.request.id, which)

    def _open_sampler(self, session: Session) -> None:
        try:
            self.output.open_sampler(session)
        except Exception as error:  # without the sampler it asked for, the session would silently be greedy
            log.exception("the sampler of request %s failed to open", session.id)
            self.output.fail(session, UmaError(ErrorCode.SAMPLER_FAILED, str(error)), self._clock.now_ns())

    def _on_finished(self, session: Session) -> None:
        self.prompt_progress.on_end(session)
        if self._speculator is not None:
            self._speculator.end(session)

    def cancel(self, conn_id: int, request_id: str, which: int | None = None) -> bool:
        """Cancel one of a request's answers; None: all of them."""
        found = [s for s in self.table.find(conn_id, request_id) if which is None or which == max(0, s.index)]
        for session in found:
            if session.group is not None and which is None:
                session.group.is_cancelled = True
            self.output.finish(session, FinishReason.CANCELLED, self._clock.now_ns())
        return bool(found)

    def hang_up(self, conn_id: int) -> None:
        for session in self.table.of_connection(conn_id):
            self.output.finish(session, FinishReason.CANCELLED, self._clock.now_ns())

    def hold(self, conn_id: int, is_held: bool) -> None:
        now = self._clock.now_ns()
        for session in self.table.of_connection(conn_id):
            session.hold(is_held, now)
        self.table.n_changes += 1

    def end_all(self, reason: FinishReason, error: UmaError | None = None) -> None:
        for session in self.table:
            self.output.finish(session, reason, self._clock.now_ns(), error)

    # the tick

    def tick(self) -> bool:
        """Run one tick. Returns False if nothing can be done until something changes."""
        if not len(self.table):
            self.calls.t_returned_ns = self._t_served_ns = 0
            self.flush()
            return False
        now = self._clock.now_ns()
        self._t_served_ns = self._t_served_ns or now
        self._expire(now)
        self.output.constraints.next_tick()
        if self._groups_waiting:
            self._follow()
        likeliest = self._speculator.propose(self.last_plan.stretch) if self._speculator is not None else 0.0
        has_drafts = likeliest > 0.0 and likeliest >= self.last_plan.draft_floor
        is_repeated = self._n_repeats and now < self.last_plan.t_repeat_ns and self._n_changes == self.table.n_changes
        if is_repeated and not has_drafts and not any(r.is_every_tick for r in self.recorders):
            return self._repeat(now)
        self.flush()
        self.slots.shift()
        n_changes = self.table.n_changes
        state = self._snapshot(now)
        self._reports = ()
        plan = self._plan(state)
        if self.queue_positions.is_due(now, plan):
            self.events.extend(self.queue_positions.tell(state, plan, self.table))
        self.meters.tbt_limit_ns = plan.tbt_limit_ns
        is_busy = self._carry_out(plan)
        if not is_busy:
            self.calls.t_returned_ns = 0
        self._learn(state, plan)
        is_steady = not (self.slots.can_shift or self.cache.has_steps)
        self._n_repeats, self._n_changes = plan.n_repeats if is_steady else 0, n_changes
        return is_busy

    def _repeat(self, now: int) -> bool:
        """Carry out the last plan once more, as the policy allowed. It consists of decode calls only."""
        self._n_repeats -= 1
        starts_next = self._starts_next(self._n_repeats)
        for group in self._groups:
            self.calls.again(group, starts_next)
        self._end_tick(now)
        if len(self._tick_ns) >= FLUSH_TICKS or now - self._t_flushed_ns > FLUSH_MOST_NS:
            self.flush()
        return True

    def _starts_next(self, n_repeats: int) -> bool:
        """Whether the next call will be the same, one token further.

        After the last repeat, the next plan most likely has the same call too, unless this one left out a session.
        """
        if len(self._groups) != 1 or not (n_repeats or len(self._groups[0]) == len(self.table)):
            return False
        return not any(session.is_at_its_last for _, session in self._groups[0])

    def _follow(self) -> None:
        """Pass answers whose prompt has been read to the policy."""
        for group in self._groups_waiting:
            for session in group.follow():
                self.output.scores.begin(session)
                session.is_waiting = False
                session.touch()
                self.table.n_changes += 1
        self._groups_waiting = [group for group in self._groups_waiting if group.is_waiting]

    def _expire(self, now: int) -> None:
        for session in self.table:
            if session.deadline_ns and now >= session.deadline_ns:
                self.output.finish(session, FinishReason.TIMEOUT, now)

    def _snapshot(self, now: int) -> SchedulerState:
        table, cache = self.table, self.cache
        cache.cost = self.cost
        sessions = [session for session in table if not session.is_waiting]
        cache.store.poll(any(s.phase is Phase.DECODE for s in sessions))
        cache.offer(sessions)
        is_awaited = any(s.phase in (Phase.QUEUED, Phase.PARKED) for s in sessions)
        held, loss = cache.losses(table.free_seqs, now) if is_awaited else ((), ())
        sharing = residency(self.engine, sessions) if is_awaited else Residency()
        device = self._device._replace(
            free_seqs=tuple(table.free_seqs),
            n_cells_free=table.n_cells_total - table.n_cells_reserved + sharing.n_saved,
            seq_held=held,
            seq_loss_ns=loss,
            seq_shared=sharing.shared,
            draft_token_ns=self.draft_model.token_ns if self.draft_model is not None else 0,
        )
        state = SchedulerState(
            self.n_ticks,
            now,
            table.views(),
            device,
            self.config,
            self.cost,
            self._reports,
            self._memory,
            int(self.meters.overhead_ns),
        )
        return indexed(state)

    def _plan(self, state: SchedulerState) -> Plan:
        try:
            plan = self._pipeline(state)
            faults = check_plan(state, plan)
        except Exception as error:  # a stage's bug must not end the daemon
            log.exception("the policy failed")
            plan, faults = Plan(), [f"{type(error).__name__}: {error}"]
        if faults:
            self.meters.violations.add()
            log.error("plan refused (%s): %s", ErrorCode.PLAN_INVALID.code, "; ".join(faults))
            plan = decode_only(state)
        self.meters.plan_time.observe(self._clock.now_ns() - state.now_ns)
        return plan

    def _carry_out(self, plan: Plan) -> bool:
        self.slots.park(plan)
        self._admit(plan)
        self.slots.take(plan)
        groups, sliced, embeds = self._resolve(plan)
        self._groups = groups
        for group in groups:
            for _, session in group:
                self.output.deliver_first(session)
            is_whole = all(_goes(*pair) for pair in group)
            live = group if is_whole else [pair for pair in group if _goes(*pair)]
            if live:
                self.calls.decode(live, plan.n_repeats > 0 and self._starts_next(plan.n_repeats))
        for item, session in embeds:
            self.calls.embed(item, session)
        if plan.drafting and self._speculator is not None:
            self._run_draft_model(plan, self._speculator)
        if sliced is not None:
            self.calls.prefill(*sliced, plan, self.cost)
        moving = [s for s in self.table if s.transfer is not None]
        until = self._clock.now_ns() + max(plan.transfer_ns, LAST_CHUNK_NS)
        if moving:
            self.calls.transfers(moving, plan.transfer_ns)
        self.cache.step(until)
        return bool(groups or sliced or embeds or moving or plan.admit or plan.park or self.cache.has_steps)

    def _run_draft_model(self, plan: Plan, speculator: Speculator) -> None:
        """Let the draft model draft. Its tokens are verified in the next tick."""
        self.calls.t_returned_ns = 0  # what follows is not overhead between two decode calls
        self.calls.announce()
        begin = self._clock.now_ns()
        until = begin + plan.drafting_ns
        for sid, n_tokens in plan.drafting:
            speculator.run_model(sid, n_tokens, until - self._clock.now_ns())
        self.meters.on_saved("draft", begin - self._clock.now_ns())

    def _admit(self, plan: Plan) -> None:
        now = self._clock.now_ns()
        for admission in plan.admit:
            session = self.table.get(admission.sid)
            if not session.t_admitted_ns:  # a session that comes back after parking has had its wait counted
                self.meters.queue_wait[session.priority].observe(now - session.t_queued_ns)
            self.table.admit(session, admission.seq_id, now)

    def _resolve(
        self, plan: Plan
    ) -> tuple[list[list[tuple[PlanItem, Session]]], tuple[PlanItem, Session] | None, list[tuple[PlanItem, Session]]]:
        """Return the decode calls, the chunk that pauses, and embedding chunks that do not, each a call of its own."""
        embeds: list[tuple[PlanItem, Session]] = []
        groups: dict[int, list[tuple[PlanItem, Session]]] = {}
        sliced = None
        for item in plan.items:
            pair = (item, self.table.get(item.sid))
            if pair[1].transfer is not None or pair[1].seq_id != item.seq_id:
                continue  # what its sequence held is still being saved
            if item.mode is PrefillMode.SLICED:
                sliced = pair
            elif pair[1].embedding is not None:
                embeds.append(pair)
            else:
                groups.setdefault(item.call, []).append(pair)
        return [groups[call] for call in sorted(groups)], sliced, embeds

    def _learn(self, state: SchedulerState, plan: Plan) -> None:
        """Give this tick's outcome to the policy, the metrics and the recorder."""
        self._memory = plan.memory
        self.last_plan, self._last_state = plan, state
        self._end_tick(state.now_ns)
        reports = self.flush()
        if reports:
            decoded = sum(r.n_rows - r.n_mixed for r in reports if r.phase is Phase.DECODE)
            self.meters.tokens_decode.set(decoded)
            self.meters.tokens_prefill.set(sum(r.n_rows for r in reports) - decoded)
            self.meters.served.set(decoded)
        for recorder in self.recorders:
            recorder(state, plan, reports)

    def _end_tick(self, t_tick_ns: int) -> None:
        self.n_ticks += 1
        now = self._clock.now_ns()
        self._tick_ns.append(now - t_tick_ns)
        self._serving_ns += now - self._t_served_ns
        self._t_served_ns = now

    def flush(self) -> tuple[CallReport, ...]:
        """Correct the cost model and bring the metrics up to date. Returns the reports since the last time."""
        self._t_flushed_ns = self._clock.now_ns()
        ticks, self._tick_ns = self._tick_ns, []
        if not ticks:
            return ()
        reports = self.calls.accounting.flush(self.cost)
        self._reports += reports
        self.cost = observe(self.cost, reports)
        self.meters.flush()
        self.meters.serving_time.add(self._serving_ns)
        self._serving_ns = 0
        if reports:
            self.cache.measure()
            n_bytes = sum(bytes_moved(self._device, report) for report in reports)
            self.meters.on_engine(self.last_plan, len(ticks), n_bytes, sum(report.elapsed_ns for report in reports))
            for ns in ticks:
                self.last_tick_ns = ns
                self.ewma_tick_ns += 0.1 * (ns - self.ewma_tick_ns)
                self.output.tick_ns = int(self.ewma_tick_ns)
                self.meters.on_tick(ns, self.last_plan.tick_limit_ns)
        return reports

    @property
    def has_streams(self) -> bool:
        """Whether the last plan had decode calls."""
        return bool(self._groups)

    # idle time and the end

    def idle(self) -> float | None:
        """Do a slice of the cache's housekeeping. Returns the seconds until there may be more to do; None: not before
        the next command.
        """
        return self.housekeeper.idle()

    def relieve(self) -> int:
        """Free memory when it is short: snapshots first; if there are none, the KV of idle sequences.

        Returns the bytes that were freed.
        """
        n_bytes = trim_snapshots(self.cache) or drop_idle(self.cache)
        self.engine.trim()
        return n_bytes

    def close(self, timeout_s: float) -> None:
        """Save what should survive the engine. Every session has ended, and the engine is about to close.

        Blocks for `timeout_s` at most.
        """
        self.housekeeper.close(timeout_s)
        forget(self.cache)

    # what others may ask between ticks

    def record(self, recorder: Sink) -> None:
        """Report every tick to a sink from now on. Idempotent."""
        if recorder in self.recorders:
            return
        for session in self.table:
            recorder.name(session.sid, session.id)
        self.recorders = (*self.recorders, recorder)
        self._n_repeats = 0  # ticks that repeat a plan are not recorded: a short recording might be empty

    def forget(self, recorder: Sink) -> None:
        self.recorders = tuple(r for r in self.recorders if r is not recorder)

    def cache_admin(self, args: dict[str, Any]) -> dict[str, Any]:
        """Carry out the `cache` operation; memory that `clear` frees goes back to the system. Raises: NOT_FOUND,
        BAD_REQUEST.
        """
        if args["action"] == "clear":
            self.housekeeper.stop()
        reply = cache_admin(self.cache, args)
        if args["action"] == "clear":
            self.engine.trim()
        return reply

    def queue(self) -> dict[int, Standing]:
        """Return the places of the requests that waited for a sequence in the last tick, by sid."""
        state = self._last_state
        if state is None or all(session.seq_id >= 0 for session in self.table):
            return {}
        return standings(state, self.last_plan, self.table.mean_answer)

    @property
    def client_ns(self) -> dict[int, int]:
        """Return the measured engine time by fairness account."""
        return self.calls.accounting.client_ns

    def guard_state(self) -> str:
        """Return off, idle (no interactive stream), open (waiting work fits) or active (holds prompts or background
        streams back).
        """
        if "latency_guard" not in self.config.stages:
            return "off"
        guard = self.last_plan.guard
        if guard is None or not any(s.phase is Phase.DECODE and s.priority is Priority.INTERACTIVE for s in self.table):
            return "idle"
        return "active" if guard.holds_prompt or guard.holds_rows else "open"


def _goes(item: PlanItem, session: Session) -> bool:
    """Whether the item can still run: handing out the session's first token may have ended it or rewound it."""
    if item.phase is Phase.DECODE:
        return session.phase is Phase.DECODE and session.transfer is None
    return session.phase is not Phase.DONE


def device_view(engine: Engine) -> DeviceView:
    """The engine's limits as the policy sees them; what changes from tick to tick is empty."""
    info = engine.info
    can = info.capabilities
    return DeviceView(
        n_batch=info.n_batch,
        n_ubatch=info.n_ubatch,
        n_seq_max=info.n_seq_max,
        n_ctx=info.n_ctx,
        n_ctx_seq=info.n_ctx_seq,
        n_prefill_slots=can.n_prefill_slots,
        is_unified=info.is_unified,
        kv_bytes_per_cell=info.kv_bytes_per_cell,
        weight_bytes=info.weight_bytes,
        expert_bytes=info.expert_bytes,
        n_expert=info.n_expert,
        n_expert_used=info.n_expert_used,
        can_copy_prefix=can.can_copy_prefix,
        can_rollback=can.can_rollback,
        can_mix_rows=can.can_mix_rows,
        one_set_per_call=bool(info.adapters) and not can.can_mix_adapters,
        computes_ahead=can.computes_ahead,
        n_verify_rows=can.n_verify_rows,
        mixed_rows=can.ride_rows,
        n_layer=info.n_layer,
        free_seqs=(),
        n_cells_free=0,
    )
