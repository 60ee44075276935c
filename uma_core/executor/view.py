"""The I/O thread's view of an executor: a value, made between ticks on the compute thread.

Rules: readers never wait for the compute thread; during a decode call that takes seconds they see the last view.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from uma_core.cache.resident import n_shared
from uma_core.engine.api import MemoryUse
from uma_core.executor.admission import time_left_ns
from uma_core.executor.executor import Executor
from uma_core.executor.queue_positions import Standing
from uma_core.executor.residency import residency
from uma_core.session.session import Session
from uma_core.trace.words import guard_words
from uma_core.types import Phase, Priority


class ExecutorView(NamedTuple):
    """Plain values that JSON can hold."""

    at_ns: int
    engine: dict[str, Any]
    model: dict[str, Any]
    priorities: dict[str, dict[str, Any]]
    phases: dict[str, int]
    clients: list[dict[str, Any]]
    kv: dict[str, int]
    memory: dict[str, int]
    tick: dict[str, Any]
    speculation: dict[str, Any]
    solo_step_ns: int
    estimate_ms: float  # until the last running request ends
    n_sessions: int


def take(executor: Executor, now_ns: int) -> ExecutorView:
    sessions = list(executor.table)
    info, table = executor.engine.info, executor.table
    memory = executor.engine.memory()
    if executor.draft_model is not None:
        memory = MemoryUse(*map(sum, zip(memory, executor.draft_model.memory(), strict=True)))
    n_saved = residency(executor.engine, sessions).n_saved
    return ExecutorView(
        at_ns=now_ns,
        engine={
            "engine": info.engine,
            "kv_mode": "unified" if info.is_unified else "stream",
            "kv_type": info.kv_type,
            "threads": info.n_threads,
            "prefill_lanes": info.capabilities.n_prefill_slots,
            "kernels": info.kernels,
            "deterministic": info.is_deterministic,
            "weights_from": info.weights_from,
            "n_ctx": info.n_ctx,
            "n_ctx_seq": info.n_ctx_seq,
            "n_seq_max": info.n_seq_max,
            "n_batch": info.n_batch,
            "n_ubatch": info.n_ubatch,
            "adapters": [{"id": a.id, "path": a.path, "scale": a.scale, "bytes": a.n_bytes} for a in info.adapters],
            "notes": list(info.notes),
        },
        model={"name": info.model_name, "path": info.model_path, "fingerprint": info.fingerprint, "arch": info.arch},
        priorities={priority.name.lower(): _by_priority(sessions, priority, now_ns) for priority in Priority},
        phases={
            phase.name.lower(): sum(s.phase is phase for s in sessions) for phase in Phase if phase is not Phase.DONE
        },
        clients=_clients(executor, sessions),
        kv={
            "cells_total": table.n_cells_total,
            "used": sum(s.n_past for s in sessions if s.seq_id >= 0) - n_saved,
            "reserved": table.n_cells_reserved - n_saved,
            "shared": n_shared(executor.cache.residents),
            "cached": sum(h.n for h in executor.cache.residents if not h.owner),
        },
        memory={**memory._asdict(), "cache": executor.cache.store.ram.n_bytes},
        tick=_tick(executor),
        speculation=_speculation(executor),
        solo_step_ns=executor.cost.solo_step_ns(
            max((s.n_past for s in sessions if s.phase is Phase.DECODE), default=0)
        ),
        estimate_ms=max((round(time_left_ns(s, now_ns) / 1e6, 1) for s in sessions), default=0.0),
        n_sessions=len(sessions),
    )


def _by_priority(sessions: list[Session], priority: Priority, now_ns: int) -> dict[str, Any]:
    mine = [s for s in sessions if s.priority is priority]
    waits = [now_ns - s.t_queued_ns for s in mine if s.phase is Phase.QUEUED]
    return {
        "queued": len(waits),
        "active": len(mine) - len(waits),
        "oldest_wait_ms": round(max(waits, default=0) / 1e6, 1),
    }


def _clients(executor: Executor, sessions: list[Session]) -> list[dict[str, Any]]:
    accounts = executor.table.accounts()
    total = sum(executor.client_ns.values()) or 1
    rows = []
    for client in sorted({s.client for s in sessions}):
        mine = [s for s in sessions if s.client == client]
        n_queued = sum(s.phase is Phase.QUEUED for s in mine)
        uid, pid, name = accounts[client]
        who = {"uid": uid, "pid": pid} if not name else {"uid": uid, "pid": mine[0].pid, "account": name}
        share = round(executor.client_ns.get(client, 0) / total, 3)
        rows.append({**who, "active": len(mine) - n_queued, "queued": n_queued, "share": share})
    return rows


def _tick(executor: Executor) -> dict[str, Any]:
    meters, plan, budget_ns = executor.meters, executor.last_plan, executor.last_plan.tick_limit_ns
    return {
        "ms_last": round(executor.last_tick_ns / 1e6, 3),
        "ms_ewma": round(executor.ewma_tick_ns / 1e6, 3),
        "decode_rows": int(meters.tokens_decode.value),
        "prefill_tokens": int(meters.tokens_prefill.value),
        "budget_ms": round(budget_ns / 1e6, 3) if budget_ns else None,
        "guard": executor.guard_state(),
        "guard_detail": guard_words(plan.guard) if plan.guard is not None else None,
        "bmt": _bmt(executor),
        "notes": list(plan.notes),
    }


def _speculation(executor: Executor) -> dict[str, Any]:
    """Count the draft tokens that were verified and accepted, and the time that they saved, by their source."""
    meters, model = executor.meters, executor.draft_model
    return {
        "mode": executor.speculation_mode,
        "is_exact": executor.engine.info.is_deterministic,
        "can_verify": executor.engine.info.capabilities.n_verify_rows > 0,
        "draft_model": model.name if model is not None else None,
        "draft_token_ms": round(model.token_ns / 1e6, 3) if model is not None else None,
        "prediction_heads": "on" if model is not None and model.reads_states else "off",
        "drafted": {source: int(counter.value) for source, counter in meters.drafted.items()},
        "accepted": {source: int(counter.value) for source, counter in meters.accepted_drafts.items()},
        "saved_ms": {source: round(gauge.value / 1e6, 3) for source, gauge in meters.drafts_saved.items()},
    }


def _bmt(executor: Executor) -> dict[str, Any]:
    """Return the memory traffic of the last plan: estimated, allowed and measured."""
    meters = executor.meters
    moved, ns = meters.bmt_moved.value, meters.bmt_time.value
    return {
        "estimate_mb": round(meters.bmt_estimate.value / 1e6, 3),
        "budget_mb": round(meters.bmt_budget.value / 1e6, 3) or None,
        "moved_mb": round(moved / 1e6, 3),
        "ms": round(ns / 1e6, 3),
        "gb_per_s": round(moved / ns, 3) if ns else None,
    }


def sessions(executor: Executor, now_ns: int) -> list[dict[str, Any]]:
    """One row per request, for the `sessions` operation. On the compute thread."""
    queue = executor.queue()
    by_sid = {s.sid: s for s in executor.table} if queue else {}
    return [_row(s, queue.get(s.sid), by_sid, now_ns) for s in executor.table]


def _row(s: Session, standing: Standing | None, by_sid: dict[int, Session], now_ns: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "conn": s.conn_id,
        "request_id": s.id,
        "index": max(0, s.index),
        "uid": s.uid,
        "pid": s.pid,
        "account": s.request.account,
        "lane": s.priority.name.lower(),
        "phase": s.phase.name.lower(),
        "sequence": s.seq_id if s.seq_id >= 0 else None,
        "type": s.request.embed.op if s.request.embed is not None else "generate",
        "prompt_tokens": s.n_given,
        "prefilled_tokens": min(s.n_past, s.n_given) + (s.embedding.n_done if s.embedding is not None else 0),
        "cached_tokens": s.n_cached,
        "completion_tokens": len(s.generated),
        "max_tokens": s.n_max,
        "age_ms": round((now_ns - s.t_received_ns) / 1e6, 1),
        "queue_ms": round(((s.t_admitted_ns or now_ns) - s.t_received_ns) / 1e6, 1),
        "ttft_ms": round((s.t_first_ns - s.t_received_ns) / 1e6, 1) if s.t_first_ns else None,
        "is_held": s.is_held,
        "lora": [{"id": name, "scale": scale} for name, scale in s.adapters],
        "metadata": s.request.metadata,
    }
    if standing is not None and s.phase in (Phase.QUEUED, Phase.PARKED):
        other = by_sid.get(standing.behind)
        row |= {
            "queue_position": standing.position,
            "wait_ms": round(standing.wait_ns / 1e6, 1),
            "waits_for": other.id if other is not None else None,
            "waits_for_conn": other.conn_id if other is not None else None,
        }
    return row
