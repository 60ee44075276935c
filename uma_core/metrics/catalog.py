"""Every metric, declared once. Prometheus text, the documented JSON and docs/METRICS.md iterate over METRICS.

Call sites keep the series: `ttft = registry.histogram(metrics.TTFT, lane="interactive")`, then `ttft.observe(ns)`.
Label values are closed sets. Unbounded sets (clients, requests) belong in `status`, not here.
"""

from __future__ import annotations

from collections.abc import Mapping

from uma_core.errors import ErrorCode
from uma_core.metrics.core import Counter, Distribution, Gauge, Histogram, Kind, Metric, Registry, Snapshot, log_buckets
from uma_core.types import PRIORITIES, FinishReason, Phase

__all__ = ["METRICS", "Counter", "Distribution", "Gauge", "Histogram", "Metric", "Registry", "Snapshot", "new_registry"]

_MS = 1_000_000
_US = 1_000
_LATENCY = log_buckets(100 * _US, 100_000 * _MS)  # 0.1 ms .. 100 s
_SHORT = log_buckets(1 * _US, 10_000 * _MS)  # 1 us .. 10 s
_RATIO = log_buckets(0.001, 10)
_ROWS = (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
_EXPORT_EVERY = 4  # readers of metrics need only 6 bounds per decade

_LANE = {"lane": PRIORITIES}
_TIER = {"tier": ("resident", "ram", "disk")}
_REMOVAL = {"cause": ("room", "cleared", "damaged", "redundant", "unfinished", "unusable")}
_PHASE = {"phase": tuple(phase.name.lower() for phase in Phase if phase is not Phase.DONE)}
_DRAFT = {"source": ("lookup", "history", "prediction", "forced", "draft")}
_WORK = {"phase": ("decode", "prefill")}


def _counter(
    name: str, help: str, unit: str = "", labels: Mapping[str, tuple[str, ...]] | None = None, json: str = ""
) -> Metric:
    return Metric(name, Kind.COUNTER, unit, help, labels or {}, json=json)


def _gauge(
    name: str, help: str, unit: str = "", labels: Mapping[str, tuple[str, ...]] | None = None, json: str = ""
) -> Metric:
    return Metric(name, Kind.GAUGE, unit, help, labels or {}, json=json)


def _times(
    name: str, help: str, buckets: tuple[float, ...], labels: Mapping[str, tuple[str, ...]] | None = None
) -> Metric:
    return Metric(name, Kind.HISTOGRAM, "seconds", help, labels or {}, buckets, _EXPORT_EVERY)


# requests and clients
REQUESTS_ACCEPTED = _counter("requests_accepted_total", "requests that entered a queue", labels=_LANE)
REQUESTS = _counter(
    "requests_total", "requests that ended, by reason", labels={"reason": tuple(r.value for r in FinishReason)}
)
ERRORS = _counter("errors_total", "error codes sent to clients", labels={"code": tuple(e.code for e in ErrorCode)})
QUEUE_DEPTH = _gauge("queue_depth", "requests waiting for a sequence", labels=_LANE)
SESSIONS = _gauge(
    "sessions_by_phase",
    "requests in progress, by phase",
    labels=_PHASE,
)
CONNECTIONS = _gauge("connections_open", "open connections")
CONNECTIONS_TOTAL = _counter("connections_total", "connections accepted")
RX_BYTES = _counter("rx_bytes_total", "bytes read from clients", "bytes")
TX_BYTES = _counter("tx_bytes_total", "bytes written to clients", "bytes")
TX_BUFFERED = _gauge("tx_buffered_bytes", "unsent bytes for slow readers", "bytes")
SLOW_CLIENTS = _counter("slow_clients_total", "connections dropped because the reader fell too far behind")

# tokens and ticks
TOKENS_GENERATED = _counter("tokens_generated_total", "tokens generated", "tokens")
PREFILL_TOKENS = _counter("prefill_tokens_total", "prompt tokens computed", "tokens")
PROMPT_TOKENS = _counter("prompt_tokens_total", "prompt tokens accepted, computed or restored", "tokens")
TICKS = _counter("ticks_total", "ticks that computed something")
BATCH_CALLS = _counter("batch_calls_total", "decode calls")
LAST_BATCH_SIZE = _gauge("last_batch_size", "rows of the last decode call", "rows")
BATCH_SIZE = Metric(
    "batch_rows", Kind.HISTOGRAM, "rows", "rows of a decode call", buckets=tuple(map(float, _ROWS)), json="batch_size"
)
TOKENS_PER_TICK = _gauge("tokens_per_tick", "tokens of the last tick, by phase", "tokens", _WORK)
SERVED_DECODERS = _gauge("served_decoders", "streams that got a token in the last tick")
TICKS_OVER_BUDGET = _counter(
    "ticks_over_budget_total", "ticks that took longer than the guard allowed", json="ticks_over_budget"
)
TICK_TIME = _times("tick_seconds", "time of one tick: plan, calls and outcomes", _LATENCY)
TICK_OVERHEAD = _times("tick_overhead_seconds", "time from a decode call's return to the next decode call", _SHORT)
PLAN_TIME = _times("plan_seconds", "time to plan one tick", _SHORT)

# the engine's time
DECODE_CALL = _times("decode_call_seconds", "time of one decode call, until its logits are readable", _LATENCY)
DECODE_LAST = _gauge("decode_last_seconds", "time of the last decode call", "seconds", json="decode_ms_last")
DECODE_EWMA = _gauge("decode_ewma_seconds", "moving average of decode calls", "seconds", json="decode_ms_ewma")
SOLO_STEP = _gauge(
    "solo_step_seconds", "predicted decode call of one stream alone: the baseline of the guard", "seconds"
)
PREFILL_PIECE = _times(
    "prefill_piece_seconds",
    "longest piece of a prefill run: the longest time that a decode tick would have waited",
    _LATENCY,
)
DRAFTED = _counter("draft_tokens_total", "draft tokens that were verified, by their source", labels=_DRAFT)
ACCEPTED_DRAFTS = _counter("accepted_draft_tokens_total", "draft tokens that were accepted", labels=_DRAFT)
DRAFTS_SAVED = _gauge(
    "draft_saved_seconds",
    "engine time saved by drafts since the start: what the accepted tokens would have taken in steps of one token, "
    "less what the drafts' rows and the draft model took; negative: a loss",
    "seconds",
    _DRAFT,
    json="draft_saved_ms_total",
)
SAMPLING_LAST = _gauge(
    "sampling_last_seconds", "time to sample all rows of the last tick", "seconds", json="sampling_ms_last"
)
LOGITS_TO_CHUNK = _gauge(
    "logits_to_first_chunk_seconds",
    "time from the last decode call's readable logits to the wake-up of the I/O thread for the call's events",
    "seconds",
    json="time_logits_to_first_chunk",
)
OVERLAP_ACTIVE = _gauge("overlap_active", "1 if the last tokens were sent while the next decode call ran")
PREDICTION_ERROR = Metric(
    "prediction_error_ratio",
    Kind.HISTOGRAM,
    "ratio",
    "|measured / predicted - 1| of engine calls",
    buckets=_RATIO,
    export_every=_EXPORT_EVERY,
)

# delays that users notice
QUEUE_WAIT = _times("queue_seconds", "time from acceptance to a sequence", _LATENCY, _LANE)
TTFT = _times("time_to_first_token_seconds", "time from the decoded frame to the first token event", _LATENCY, _LANE)
PROMPT_TIME = _counter("prompt_seconds_total", "time from a request's sequence to its first token event", "seconds")
INTER_TOKEN = _times("inter_token_seconds", "gap between two token events of one stream", _LATENCY, _LANE)
GAP_STRETCH = Metric(
    "interactive_gap_stretch",
    Kind.HISTOGRAM,
    "ratio",
    "gap between two tokens of an interactive stream / the limit of that gap; above 1: too long",
    buckets=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0),
)
TTF5 = _times("time_to_fifth_token_seconds", "time from the decoded frame to the fifth token event", _LATENCY, _LANE)
WORST_PAUSE = _times("early_pause_seconds", "longest gap in the first 3 s of a stream", _LATENCY, _LANE)
SLO_VIOLATIONS = _counter(
    "slo_violations_total",
    "first tokens (ttft) and gaps (tbt) over their target",
    labels={"kind": ("ttft", "tbt"), **_LANE},
    json="slo_violations",
)

# constrained answers
CONSTRAINT_COMPILE = _times("constraint_compile_seconds", "time to compile a schema or grammar", _SHORT)
CONSTRAINT_CACHE = _counter(
    "constraint_cache_total",
    "lookups of compiled schemas and grammars, by result",
    labels={"result": ("hit", "miss")},
)
CONSTRAINT_STEP = _times(
    "constraint_step_seconds", "time between two decode calls for a token of a constrained answer", _SHORT
)
TOKENS_FORCED = _counter(
    "forced_tokens_total", "tokens that a grammar or a spent reasoning budget determined, without sampling", "tokens"
)
TOKENS_TAKEN_BACK = _counter(
    "taken_back_tokens_total", "tokens taken back because they completed a banned string", "tokens"
)

# the policy
PREFILL_GUARD_ACTIVE = _gauge("prefill_guard_active", "1 while the latency guard holds prefill back")
PREEMPTIONS = _counter("preemptions_total", "background sessions that lost their sequence or their place to make room")
PLAN_VIOLATIONS = _counter("plan_violations_total", "plans that broke their contract and were replaced")
BMT_ESTIMATE = _gauge(
    "bmt_estimate_bytes", "bytes that the last plan was expected to move", "bytes", json="bmt_estimate_last"
)
BMT_BUDGET = _gauge(
    "bmt_budget_bytes", "bytes that the last plan was allowed to move; 0: no budget", "bytes", json="bmt_budget"
)
BMT_MOVED = _gauge(
    "bmt_moved_bytes",
    "bytes that the last tick moved, by the rows and chunks that it computed",
    "bytes",
    json="bmt_moved_last",
)
BMT_TIME = _gauge(
    "bmt_seconds", "measured time of the engine calls that moved these bytes", "seconds", json="bmt_ms_last"
)
BMT_TOTAL = _counter(
    "bmt_moved_bytes_total", "bytes that ticks moved, by the rows and chunks that they computed", "bytes"
)
ENGINE_TIME = _counter("engine_seconds_total", "measured time of decode calls and prompt runs", "seconds")
SERVING_TIME = _counter("serving_seconds_total", "time during which there was at least one request", "seconds")

# KV memory
KV_CELLS_USED = _gauge("kv_cells_used", "KV cells of running requests that hold a token", "cells")
KV_CELLS_RESERVED = _gauge("kv_cells_reserved", "KV cells reserved for running requests", "cells")
KV_CELLS_SHARED = _gauge("kv_cells_shared", "tokens whose KV more than one sequence holds, each counted once", "cells")
KV_CELLS_TOTAL = _gauge("kv_cells_capacity", "total number of KV cells", "cells", json="kv_cells_total")
ALLOC_WARNINGS = _counter("alloc_warnings_total", "times that an engine found no KV cells for admitted work")
CACHE_HITS = _counter("cache_hits_total", "prompts whose prefix was restored", labels=_TIER)
CACHE_MISSES = _counter("cache_misses_total", "prompts that found nothing to reuse")
CACHE_TOKENS_SAVED = _counter("cache_tokens_saved_total", "prompt tokens restored instead of computed", "tokens", _TIER)
CACHE_EVICTIONS = _counter("cache_evictions_total", "cache entries removed to make room", labels=_TIER)
CACHE_FILES_REMOVED = _counter(
    "cache_files_removed_total", "files removed from the cache directory, by cause", labels=_REMOVAL
)
CACHE_BYTES = _gauge("cache_bytes", "bytes held by the cache", "bytes", _TIER)
CACHE_RESTORE = _times("cache_restore_seconds", "time to restore one prompt's prefix", _LATENCY, _TIER)
KV_BYTES = _counter("kv_bytes_total", "KV of prompts, computed or from the cache", "bytes")
KV_COPIED_BYTES = _counter(
    "kv_copied_bytes_total", "KV copied: to the decode memory, between sequences, to and from snapshots", "bytes"
)
RELIEVED_BYTES = _counter("relieved_bytes_total", "cached KV dropped because the system ran short of memory", "bytes")

# the process
READY = _gauge("ready", "1 while new requests are accepted")
UPTIME = _gauge("uptime_seconds", "time since the start", "seconds", json="uptime_ms")
RESIDENT_BYTES = _gauge("resident_bytes", "resident memory of the process", "bytes")
MEMORY_BYTES = _gauge(
    "memory_bytes", "memory of the engine, by purpose", "bytes", {"purpose": ("weights", "kv", "compute")}
)
GENERATION = _gauge("config_generation", "number of configurations that have been in use")
RELOADS = _counter("reloads_total", "reloads, by result", labels={"result": ("ok", "failed")})
LOG_DROPPED = _counter("log_lines_dropped_total", "log lines that could not be written")

METRICS: tuple[Metric, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Metric))


def new_registry() -> Registry:
    """Return a registry of all declared metrics, each at zero."""
    return Registry(METRICS)
