"""A discrete-event simulation: the real policy over the FakeEngine on a virtual clock.

The executor here is minimal and checks every plan. Times are virtual, so results are exact and repeatable. `Machine`
describes how a real machine differs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from uma_core.clock import ManualClock
from uma_core.engine.api import Batch, PrefillOutcome, PrefillStatus
from uma_core.engine.fake.cost import FakeCost
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.calibrate import (
    CHUNK,
    DECODE,
    MIXED,
    PIECE,
    SHORT,
    TRANSFER,
    Shape,
    calibration_shapes,
    fit,
    guess,
)
from uma_core.policy.cost.learn import observe
from uma_core.policy.cost.model import CostModel
from uma_core.policy.memory import PolicyMemory
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan, PlanItem, PrefillMode, check_plan
from uma_core.policy.state import CallReport, DeviceView, SchedulerState, SessionView
from uma_core.types import AdapterSet, Phase, Priority

MS = 1_000_000
S = 1_000_000_000
TICK_OVERHEAD_NS = 100_000
REGIME_NS = 2 * S  # how long a shared machine keeps one speed, on average


class Machine(NamedTuple):
    """How a machine differs from an exact one. All shares are relative to the predicted time."""

    sigma: float = 0.0  # every call and every piece takes longer by |normal(0, sigma)|
    drift: float = 0.0  # other programs take up to this share of the machine, in periods of some seconds
    stall: float = 0.0  # chance per decode step's time of a stall of 0.2 to 1 decode steps
    misjudged: float = 1.0  # a piece takes this many times as long as calibration measured
    is_guessed: bool = False  # nothing was calibrated


EXACT = Machine()
CALM = Machine(sigma=0.03, stall=0.001)
NOISY = Machine(sigma=0.06, drift=0.25, stall=0.01)


@dataclass
class Job:
    """One request: its fields, and what happened to it."""

    n_prompt: int
    n_max: int
    priority: Priority = Priority.INTERACTIVE
    client: int = 1
    at_ns: int = 0
    then: Job | None = None  # submitted when this one is done
    slo_ttft_ns: int = 0
    slo_tbt_ns: int = 0
    adapters: AdapterSet = ()
    sid: int = -1
    seq: int = -1
    phase: Phase = Phase.QUEUED
    n_past: int = 0
    chunk: int = 0
    fraction: float = 0.0
    is_moving: bool = False
    is_held: bool = False
    t_queued: int = 0
    t_progress: int = 0
    t_back: int = 0
    times: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)  # times at which its prompt was worked on
    last_token: int = 0
    blob: bytearray | None = None
    pending_prompt: int = 0  # tokens of a chunk on its way to the decode memory
    first_token: int | None = None  # sent when the second one is about to be computed

    @property
    def gaps(self) -> list[int]:
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def ttft(self) -> int:
        return self.times[0] - self.t_queued


class SimEngine(FakeEngine):
    """Interrupts itself when a request arrives while time passes.

    `overrated`: a real engine estimates the time of a chunk from the chunk before. This one expects this many times the
    real time, so each run reports that much less progress, and the last one jumps to the end.
    """

    next_arrival: Callable[[], int] = staticmethod(lambda: 1 << 62)
    overrated = 1.0
    machine = EXACT
    rng = random.Random(1)
    _speed, _t_regime = 1.0, 0

    def prefill_run(self, seq_id: int, until_ns: int, quantum_ns: int, min_pieces: int) -> PrefillOutcome:
        outcome = super().prefill_run(seq_id, until_ns, quantum_ns, min_pieces)
        return outcome if outcome.status else outcome._replace(fraction=min(0.99, outcome.fraction / self.overrated))

    def elapse(self, ns: float) -> None:
        before = self.clock.now_ns()
        super().elapse(ns * self._slowdown(before) + self._stalled(ns))
        if before < self.next_arrival() <= self.clock.now_ns():
            self.interrupt()

    def _slowdown(self, now: int) -> float:
        if self.machine.drift and now >= self._t_regime:
            self._t_regime = now + int(self.rng.expovariate(1.0 / REGIME_NS))
            self._speed = 1.0 + self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, self.machine.drift)))
        return self._speed

    def _stalled(self, ns: float) -> float:
        step = self.cost.decode_ns([(1, 0)])
        return (
            step * self.rng.uniform(0.2, 1.0)
            if self.machine.stall and self.rng.random() < self.machine.stall * ns / step
            else 0.0
        )


def device_of(engine: FakeEngine, free: tuple[int, ...], n_cells_free: int) -> DeviceView:
    info, model = engine.info, engine.model
    return DeviceView(
        n_batch=info.n_batch, n_ubatch=info.n_ubatch, n_seq_max=info.n_seq_max, n_ctx=info.n_ctx,
        n_ctx_seq=info.n_ctx_seq,
        n_prefill_slots=info.capabilities.n_prefill_slots, is_unified=info.is_unified,
        kv_bytes_per_cell=info.kv_bytes_per_cell,
        one_set_per_call=not info.capabilities.can_mix_adapters,
        can_mix_rows=info.capabilities.can_mix_rows, mixed_rows=info.capabilities.ride_rows,
        weight_bytes=info.weight_bytes, expert_bytes=model.expert_bytes, n_expert=model.n_expert,
        n_expert_used=model.n_expert_used, n_layer=info.n_layer,
        can_copy_prefix=True, can_rollback=True, free_seqs=free, n_cells_free=n_cells_free,
    )  # fmt: skip


def calibrate(cost: FakeCost, device: DeviceView) -> CostModel:
    """Return the model that calibration would measure on this device."""
    times = {}
    for kind, n, kv in calibration_shapes(device):
        ns = {
            DECODE: cost.decode_ns([(1, kv)] * n) if kind == DECODE else 0.0,
            CHUNK: cost.prefill_ns(n, kv),
            TRANSFER: cost.copy_ns(n),
            MIXED: cost.decode_ns([(1, SHORT), (n - 1, kv)]) if kind == MIXED else 0.0,
        }[kind]
        times[Shape(kind, n, kv)] = int(ns)
        if kind == CHUNK and device.n_prefill_slots and not kv:
            times[Shape(PIECE, n, 0)] = int(cost.piece_ns(n, 0))
    return fit(times, device)


class Sim:
    def __init__(
        self, cost: FakeCost, model: FakeModel | None = None, config: SchedulerConfig | None = None, **more: Any
    ) -> None:
        """`more`: machine, or noise (its sigma alone), seed, cost_model, keep_states, overrated (see SimEngine)."""
        self.rng = random.Random(more.get("seed", 1))
        machine: Machine = more.get("machine") or Machine(float(more.get("noise", 0.0)))
        noise = machine.sigma
        jitter = (lambda ns: ns * (1.0 + abs(self.rng.gauss(0.0, noise)))) if noise else None
        self.clock = ManualClock(1)
        self.engine = SimEngine(model or FakeModel(), cost, self.clock, jitter=jitter)
        self.engine.next_arrival = self._next_arrival
        self.engine.machine, self.engine.rng = machine, self.rng
        self.engine.overrated = float(more.get("overrated", 1.0))
        self.config = config or SchedulerConfig()
        self.policy = compose(self.config.stages)
        device = device_of(self.engine, (), 0)
        self.cost: CostModel = more.get("cost_model") or (
            guess(device) if machine.is_guessed else calibrate(cost, device)
        )
        if machine.misjudged != 1.0:
            piece = self.cost.piece
            self.cost = self.cost._replace(
                piece=piece._replace(base=tuple(ns / machine.misjudged for ns in piece.base))
            )
        self.jobs: list[Job] = []  # present, in order of arrival
        self.future: list[Job] = []
        self.done: list[Job] = []
        self.free = list(range(self.engine.info.n_seq_max))
        self.transfers: list[tuple[Any, Callable[[], None]]] = []
        self.memory = PolicyMemory()
        self.reports: list[CallReport] = []
        self.tick_no = 0
        self.last_plan, self.n_repeats, self.n_observed = Plan(), 0, 0
        self.planned_for: list[tuple[int, Phase, bool, bool]] = []
        self.n_sids = 0
        self.batch = Batch(self.engine.info.n_batch)
        self.log: list[tuple[SchedulerState, Plan]] | None = [] if more.get("keep_states") else None

    # requests
    def submit(self, job: Job, at_ns: int | None = None) -> Job:
        job.at_ns = job.at_ns if at_ns is None else at_ns
        self.future.append(job)
        self.future.sort(key=lambda j: j.at_ns)
        return job

    def _next_arrival(self) -> int:
        return self.future[0].at_ns if self.future else 1 << 62

    def _arrive(self) -> None:
        while self.future and self.future[0].at_ns <= self.clock.now_ns():
            job = self.future.pop(0)
            self.n_sids += 1
            job.sid, job.t_queued, job.t_progress = self.n_sids, job.at_ns or 1, job.at_ns or 1
            self.jobs.append(job)

    # one tick
    def view(self, j: Job) -> SessionView:
        return SessionView(
            j.sid, j.seq, j.client, j.priority, j.phase, j.n_prompt, j.n_past, 0, len(j.times), j.n_max,
            j.n_prompt + j.n_max if j.seq >= 0 else 0,
            j.chunk, j.fraction, not (j.is_moving or j.is_held), j.is_moving, j.t_queued, j.times[0] if j.times else 0,
            j.times[-1] if j.times else 0, j.t_progress, j.slo_ttft_ns, j.slo_tbt_ns, 0, 0, t_back_ns=j.t_back,
            adapters=j.adapters,
        )  # fmt: skip

    def state(self) -> SchedulerState:
        used = sum(j.n_prompt + j.n_max for j in self.jobs if j.seq >= 0)
        device = device_of(self.engine, tuple(sorted(self.free)), self.engine.info.n_ctx - used)
        views = tuple(self.view(j) for j in self.jobs)
        return SchedulerState(
            self.tick_no,
            self.clock.now_ns(),
            views,
            device,
            self.config,
            self.cost,
            tuple(self.reports),
            self.memory,
            TICK_OVERHEAD_NS,
        )

    def tick(self) -> Plan:
        self.engine.clear_interrupt()
        self._arrive()
        is_repeated = self.n_repeats and self.clock.now_ns() < self.last_plan.t_repeat_ns
        if is_repeated and self.present() == self.planned_for:
            return self._repeat()
        self._observe()
        state = self.state()
        plan = self.policy(state)
        faults = check_plan(state, plan)
        assert not faults, faults
        if self.log is not None:
            self.log.append((state, plan))
        self.memory, self.reports, self.n_observed = plan.memory, [], 0
        self.last_plan, self.n_repeats, self.planned_for = plan, plan.n_repeats, self.present()
        self.tick_no += 1
        self.clock.advance(TICK_OVERHEAD_NS)
        by_sid = {j.sid: j for j in self.jobs}
        self._admit(plan, by_sid)
        for call in sorted({i.call for i in plan.items if i.call >= 0}):
            self._call([i for i in plan.items if i.call == call], by_sid)
        for item in plan.items:
            if item.mode is PrefillMode.SLICED:
                self._sliced(item, by_sid[item.sid], plan)
        self._move(plan.transfer_ns)
        self._observe()
        self.jobs = [j for j in self.jobs if j.phase is not Phase.DONE]
        return plan

    def present(self) -> list[tuple[int, Phase, bool, bool]]:
        """Return the facts whose change ends the repeats of a plan."""
        return [(j.sid, j.phase, j.is_moving, j.is_held) for j in self.jobs]

    def _observe(self) -> None:
        self.cost, self.n_observed = observe(self.cost, self.reports[self.n_observed :]), len(self.reports)

    def _repeat(self) -> Plan:
        self.n_repeats -= 1
        self.tick_no += 1
        self.clock.advance(TICK_OVERHEAD_NS)
        by_sid = {j.sid: j for j in self.jobs}
        for call in sorted({i.call for i in self.last_plan.items}):
            self._call([i for i in self.last_plan.items if i.call == call], by_sid)
        self.jobs = [j for j in self.jobs if j.phase is not Phase.DONE]
        return self.last_plan

    def _admit(self, plan: Plan, by_sid: dict[int, Job]) -> None:
        for sid in plan.park:
            job = by_sid[sid]
            job.is_moving = True
            export = self.engine.export_state(job.seq, job.n_past)
            self.transfers.append((export, partial(self._parked, job, export)))
        for a in plan.admit:
            job = by_sid[a.sid]
            self.free.remove(a.seq_id)
            job.seq = a.seq_id
            self.engine.set_adapters(job.seq, job.adapters)
            if job.phase is Phase.PARKED:
                job.t_back = self.clock.now_ns()
                job.phase = Phase.DECODE if job.times else Phase.PREFILL
                job.is_moving = True
                move = self.engine.import_state(job.seq, job.blob or b"", job.n_past)
                self.transfers.append((move, partial(setattr, job, "is_moving", False)))
            else:
                job.phase = Phase.PREFILL

    def _parked(self, job: Job, export: Any) -> None:
        job.blob = export.blob
        self.engine.kv_truncate(job.seq, 0)
        self.free.append(job.seq)
        job.phase, job.seq, job.is_moving = Phase.PARKED, -1, False

    def _call(self, items: list[PlanItem], by_sid: dict[int, Job]) -> None:
        batch = self.batch
        batch.clear()
        kv = n_prompt = n_past = 0
        for i in items:
            job = by_sid[i.sid]
            if job.first_token is not None:
                token, job.first_token = job.first_token, None
                self._token(job, token)
            if i.phase is Phase.DECODE:
                kv += job.n_past
                batch.add(job.last_token, job.n_past, i.seq_id, True)
            else:
                batch.extend(np.full(i.n_tokens, 7, np.int32), job.n_past, i.seq_id, i.want_logits)
                n_prompt, n_past = n_prompt + i.n_tokens, n_past + job.n_past
        n, n_decoded = batch.n, batch.n - n_prompt
        phase = Phase.DECODE if n_decoded else Phase.PREFILL
        predicted, riding = self.cost.call_ns(n_decoded, kv, n_prompt, n_past)
        out = self.engine.decode(batch, [None] * batch.n_rows)
        assert out.status == 0, out
        self.reports.append(
            CallReport(phase, n, kv + n_past, predicted, out.call_ns, 0, False, n_prompt if n_decoded else 0, riding)
        )
        tokens = iter(out.tokens)
        for i in items:
            job = by_sid[i.sid]
            job.n_past += i.n_tokens
            job.t_progress = self.clock.now_ns()
            if i.phase is Phase.PREFILL:
                job.pieces.append(self.clock.now_ns())
            if i.want_logits:
                self._token(job, next(tokens))
            elif job.n_past == job.n_prompt - 1:
                job.phase, job.last_token = Phase.DECODE, 7

    def _token(self, job: Job, token: int) -> None:
        job.times.append(self.clock.now_ns())
        job.last_token = token
        job.phase = Phase.DECODE
        if len(job.times) >= job.n_max:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        job.phase = Phase.DONE
        self.engine.prefill_close(job.seq)
        self.engine.kv_truncate(job.seq, 0)
        if not job.is_moving:
            self.free.append(job.seq)
        self.done.append(job)
        if job.then is not None:
            self.submit(job.then, self.clock.now_ns())

    def _sliced(self, item: PlanItem, job: Job, plan: Plan) -> None:
        if not job.chunk:
            assert self.engine.prefill_open(job.seq, np.full(item.n_tokens, 7, np.int32), item.want_logits)
            job.chunk, job.fraction = item.n_tokens, 0.0
        now = self.clock.now_ns()
        out = self.engine.prefill_run(job.seq, now + plan.run_ns, plan.quantum_ns, plan.min_pieces)
        part = out.fraction - job.fraction
        whole = self.cost.prefill_ns(item.n_tokens, job.n_past) if out.n_pieces else 0
        n_done = int(item.n_tokens * part)
        report = CallReport(Phase.PREFILL, n_done, job.n_past, int(whole * part), out.elapsed_ns, out.longest_ns, False)
        self.reports.append(report._replace(n_chunk=item.n_tokens, n_pieces=out.n_pieces, whole_ns=whole))
        job.fraction = out.fraction
        if out.n_pieces:
            job.t_progress = self.clock.now_ns()
            job.pieces.append(self.clock.now_ns())
        if out.status is PrefillStatus.DONE:
            move = self.engine.publish_kv(job.seq)
            job.is_moving = True
            token = self.engine.prefill_sample(job.seq, None) if item.want_logits else None
            job.chunk, job.fraction, n = 0, 0.0, item.n_tokens
            job.pending_prompt = n

            def landed() -> None:
                job.is_moving = False
                job.n_past += n
                job.pending_prompt = 0
                if job.phase is Phase.DONE:
                    self.engine.kv_truncate(job.seq, 0)
                    self.free.append(job.seq)

            self.transfers.append((move, landed))
            if token is not None and job.priority is Priority.INTERACTIVE and job.n_max > 1:
                job.phase, job.first_token = Phase.DECODE, token
            elif token is not None:
                self._token(job, token)
            elif job.n_past + n == job.n_prompt - 1:
                job.phase, job.last_token = Phase.DECODE, 7

    def _move(self, transfer_ns: int) -> None:
        until = self.clock.now_ns() + transfer_ns
        while self.transfers and transfer_ns > 0 and self.clock.now_ns() < until:
            move, landed = self.transfers[0]
            if not move.step(until):
                break
            self.transfers.pop(0)
            landed()

    # the loop
    def run(self, max_ticks: int = 200_000) -> Sim:
        """Run until everything is done. Fails if nothing progresses although something could."""
        n_idle = 0
        while (self.jobs or self.future) and self.tick_no < max_ticks:
            before = self.clock.now_ns()
            plan = self.tick()
            if plan.items or plan.admit or plan.park or self.clock.now_ns() - before > TICK_OVERHEAD_NS:
                n_idle = 0
                continue
            n_idle += 1
            if self.future:
                self.clock.advance(max(0, self.future[0].at_ns - self.clock.now_ns()))
            elif self.jobs:
                self.clock.advance(MS)
                assert n_idle < 200, f"stuck with {self.jobs}"
        assert not self.jobs and not self.future, "not finished"
        return self


def percentile(values: list[int], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p * len(ordered)))]


def peer_makespan(cost: FakeCost, model: FakeModel, jobs: list[Job]) -> tuple[int, list[int]]:
    """Simulate a plain server: FIFO over slots; each step decodes all and fills 2048 rows with prompts in slot order.

    Returns makespan and TTFTs. Every step is one ubatch of decode rows and prompt ubatches of n_ubatch.
    """
    queue = sorted(jobs, key=lambda j: j.at_ns)
    slots: list[list[int] | None] = [None] * model.n_seq_max  # [index, prompt left, n_past, tokens]
    now, ttft, n_done = 0, [0] * len(queue), 0
    order = list(range(len(queue)))
    while n_done < len(queue):
        for k in range(len(slots)):
            if slots[k] is None and order and queue[order[0]].at_ns <= now:
                i = order.pop(0)
                slots[k] = [i, queue[i].n_prompt, 0, 0]
        live = [s for s in slots if s]
        if not live:
            now = queue[order[0]].at_ns
            continue
        rows = [s for s in live if s[1] == 0]
        if rows:
            now += int(cost.decode_ns([(1, s[2]) for s in rows]))
        budget = 2048 - len(rows)
        ended = []
        for s in live:
            if s[1] and budget:
                n = min(s[1], budget)
                budget -= n
                while n:
                    part = min(n, model.n_ubatch)
                    now += int(cost.prefill_ns(part, s[2]))
                    s[1], s[2], n = s[1] - part, s[2] + part, n - part
                if not s[1]:
                    ended.append(s)
        for s in rows + ended:
            s[3] += 1
            s[2] += s in rows
            if s[3] == 1:
                ttft[s[0]] = now - queue[s[0]].at_ns
            if s[3] >= queue[s[0]].n_max:
                slots[slots.index(s)] = None
                n_done += 1
    return now, ttft
