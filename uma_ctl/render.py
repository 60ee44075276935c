"""Turns dicts from the daemon into text for people; nothing else formats. Pure. A missing key is shown as "-".

`docs/PROTOCOL.md` describes the dicts. An older or newer daemon may leave out keys or add some.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from uma_ctl import units

Fields = Mapping[str, Any]
PERCENTILES = ("p50", "p95", "p99", "max")
PROMISED = 95  # percent of the gaps between tokens: below it the daemon's verdict is `missed`
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}  # control characters that JSON leaves as they are


def as_json(value: Any) -> str:
    """One line of JSON, for machines. A terminal may show it, so no control characters of a peer's text are in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)


def sub(fields: Any, key: str) -> Fields:
    """The dict under `key`, or an empty one: daemons of other versions may lack it."""
    value = fields.get(key) if isinstance(fields, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def rows_of(fields: Any, key: str) -> list[Fields]:
    """The dicts in the list under `key`."""
    return [item for item in list_of(fields, key) if isinstance(item, Mapping)] if isinstance(fields, Mapping) else []


def list_of(fields: Fields, key: str) -> Sequence[Any]:
    value = fields.get(key)
    return value if isinstance(value, (list, tuple)) else ()


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """Aligned `label  value` lines."""
    listed = list(items)
    width = max((len(label) for label, _ in listed), default=0)
    return "\n".join(f"{label:<{width}}  {value}".rstrip() for label, value in listed)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    lines = [list(headers), *[[*row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part and not part.startswith(units.NOTHING))


# ---- status


def status(fields: Fields, is_verbose: bool = False) -> str:
    """Return the whole status as a screen: state, queues, latency, tick, memory, reload. Verbose: also the reasons for
    the last tick's plan.
    """
    blocks = [pairs(_identity(fields)), _queues(fields), _latency(fields), pairs(_machine(fields)), _clients(fields)]
    if is_verbose:
        blocks.append(pairs(_decision(sub(fields, "tick"))))
    return "\n\n".join(block for block in blocks if block)


def _identity(fields: Fields) -> list[tuple[str, str]]:
    model, engine = sub(fields, "model"), sub(fields, "engine")
    arch = model.get("arch")  # labelled, because llama is the name of an engine too
    name = units.text(model.get("name")) + (" (demonstration model)" if model.get("is_demo") else "")
    threads = units.counted(engine.get("threads"), "thread")
    lines = [
        ("state", state_line(fields)),
        ("model", joined(name, f"{arch} architecture" if arch else "", units.text(model.get("fingerprint"))[:16])),
        ("backend", joined(units.text(fields.get("backend")), units.text(fields.get("devices")), threads)),
        ("engine", _engine(engine)),
        *(("adapter", _adapter(adapter)) for adapter in rows_of(engine, "adapters")),
        ("uptime", joined(units.span(fields.get("uptime_s")), f"ready after {units.ms(fields.get('start_ms'))}")),
    ]
    retiring = [
        f"{units.text(m.get('model'))}, {units.counted(m.get('sessions'), 'stream')}"
        for m in rows_of(fields, "retiring")
    ]
    return [
        *lines,
        *(("retiring", model) for model in retiring),
        *(("note", units.text(note)) for note in list_of(engine, "notes")),
    ]


def state_line(fields: Fields) -> str:
    """Return the state, why it is not ready, and the remaining work."""
    share, drain = fields.get("load_share"), sub(fields, "drain")
    line = (
        f"{units.text(fields.get('state'))}: {units.text(fields['reason'])}"
        if fields.get("reason")
        else units.text(fields.get("state"))
    )
    loaded = f"{units.share(share, 1)} loaded" if share is not None else ""
    left = f"{units.counted(drain.get('remaining'), 'request')} left" if drain else ""
    return joined(line, loaded, left) or units.NOTHING


def _adapter(adapter: Fields) -> str:
    scale = adapter.get("scale")
    use = f"scale {scale:g} by default" if isinstance(scale, (int, float)) and scale else "only if a request names it"
    return joined(units.text(adapter.get("id")), units.text(adapter.get("path")), use)


def _engine(engine: Fields) -> str:
    return joined(
        units.text(engine.get("engine")),
        f"{units.text(engine.get('kv_mode'))} KV",
        units.text(engine.get("kv_type")),
        units.counted(engine.get("n_seq_max"), "sequence"),
        units.counted(engine.get("prefill_lanes"), "prefill slot"),
        f"{units.text(engine.get('kernels'))} kernels",
    )


def _queues(fields: Fields) -> str:
    rows = [
        (
            units.text(name),
            units.count(priority.get("queued")),
            units.count(priority.get("active")),
            units.ms(priority.get("oldest_wait_ms")),
        )
        for name, priority in sub(fields, "lanes").items()
        if isinstance(priority, Mapping)
    ]
    return table(("priority", "queued", "active", "oldest wait"), rows) if rows else ""


def _latency(fields: Fields) -> str:
    latency = sub(fields, "latency")
    if not latency:
        return ""
    rows = [
        (label, *(units.ms(sub(latency, key).get(p)) for p in PERCENTILES))
        for label, key in (("first token", "ttft_ms"), ("inter-token", "itl_ms"))
    ]
    solo = f"one stream alone {units.ms(latency.get('solo_itl_ms'))}; {promise_line(latency)}"
    return table(("latency", *PERCENTILES), rows) + "\n" + solo


def drafts_line(speculation: Fields) -> str:
    """Return the mode unless it is off, how many of the verified draft tokens were accepted, and the engine time that
    they saved.
    """
    mode = speculation.get("mode", "off")
    drafted, accepted, saved = (sub(speculation, key) for key in ("drafted", "accepted", "saved_ms"))
    return joined(
        f"mode {units.text(mode)}" if mode != "off" else "",
        *(
            f"{name} {units.count(accepted.get(name))} of {units.count(n)}{_saved(saved.get(name))}"
            for name, n in drafted.items()
            if n
        ),
    )


def _saved(ms: Any) -> str:
    """Return what a source of drafts saved or lost; nothing from a daemon that does not measure it."""
    if not units.is_number(ms):
        return ""
    return f" ({'lost' if ms < 0 else 'saved'} {units.ms(abs(ms))})"


def promise_line(latency: Fields) -> str:
    """Return the share of the last minute's gaps that stayed within their limit, and whether the promise was kept."""
    share, verdict = latency.get("within_limit"), units.text(latency.get("slo_verdict"))
    if not units.is_number(share):
        return "last minute: too few gaps to judge" if verdict == "no data" else f"promise {verdict}"
    return f"last minute: {100 * share:.1f} % of gaps kept their limit ({PROMISED} % are promised: {verdict})"


def _machine(fields: Fields) -> list[tuple[str, str]]:
    kv, memory = sub(fields, "kv"), sub(fields, "memory")
    used, total = kv.get("used"), kv.get("cells_total")
    cells = f"{units.count(used)} of {units.count(total)} cells used ({units.share(used, total)})"
    lines = [
        ("sessions", units.text(fields.get("sessions"))),
        ("tick", tick_line(sub(fields, "tick"))),
        ("drafts", drafts_line(sub(fields, "speculation"))),
        ("KV", joined(cells, *(f"{units.count(kv.get(key))} {key}" for key in ("reserved", "shared", "cached")))),
        (
            "memory",
            joined(*(f"{units.size(memory.get(key))} {key}" for key in ("weights", "kv", "compute", "cache", "rss"))),
        ),
        ("residency", _residency(sub(fields, "residency"))),
        ("HTTP", _http(sub(fields, "http"))),
        ("reload", reload_line(sub(fields, "reload"))),
    ]
    return [line for line in lines if line[1] not in ("", units.NOTHING)]


def _residency(fields: Fields) -> str:
    sizes = (f"{units.size(fields.get(key))} of the model {key}" for key in ("mapped", "locked"))
    return joined(
        *sizes, *(f"{units.text(name)}={units.text(value)}" for name, value in sub(fields, "environ").items())
    )


def _http(http: Fields) -> str:
    if not http:
        return ""
    restarts = http.get("restarts")
    return joined(
        f"{units.text(http.get('host'))} port {units.text(http.get('port'))}",
        "the gateway runs" if http.get("is_running") else "the gateway does not run",
        units.counted(restarts, "restart") if restarts else "",
    )


def tick_line(tick: Fields) -> str:
    return joined(
        f"{units.ms(tick.get('ms_last'))} last",
        f"{units.ms(tick.get('ms_ewma'))} average",
        f"{units.ms(tick.get('budget_ms'))} budget",
        units.counted(tick.get("decode_rows"), "decode row"),
        units.counted(tick.get("prefill_tokens"), "prefill token"),
        f"guard {units.text(tick.get('guard'))}" if tick.get("guard") is not None else "",
    )


def _decision(tick: Fields) -> list[tuple[str, str]]:
    """Return the reasons for the last plan: the guard's limits and room, memory traffic, notes."""
    guard, bmt = sub(tick, "guard_detail"), sub(tick, "bmt")
    lines = [("guard", units.text(tick.get("guard")))]
    if guard:
        lines += [
            (
                "... limits",
                joined(*(f"{units.count(guard.get(f'{key}_ms'))} ms {key}" for key in ("round", "everyday", "long"))),
            ),
            ("... room", joined(*(f"{units.count(guard.get(key))} ms {name}" for key, name in _ROOMS))),
            ("... gap holds", units.text(guard.get("kind"))),
            ("... learnt", joined(*(f"{key.replace('_', ' ')} {units.text(guard.get(key))}" for key in _LEARNT))),
        ]
    moved = f"{units.count(bmt.get('moved_mb'))} MB in {units.ms(bmt.get('ms'))}"
    rates = f"{units.count(bmt.get('gb_per_s'))} GB/s"
    estimate = f"{units.count(bmt.get('estimate_mb'))} MB expected"
    budget = f"{units.count(bmt.get('budget_mb'))} MB allowed" if bmt.get("budget_mb") else "no budget"
    lines += [("memory traffic", joined(moved, rates, estimate, budget))] if bmt else []
    return [*lines, *(("note", units.text(note)) for note in list_of(tick, "notes"))]


_ROOMS = (("room_ms", "in an everyday gap"), ("long_room_ms", "in a long one"), ("need_ms", "needed"))
_LEARNT = ("error", "credit")


def reload_line(reload: Fields) -> str:
    if not reload:
        return ""
    error = reload.get("error")
    now = ", another one is under way" if reload.get("is_under_way") else ""
    failed = f", the last one failed: {error_line(error)}" if error else ""
    return f"generation {units.text(reload.get('generation'))}, last {units.text(reload.get('last'))}{failed}{now}"


def _clients(fields: Fields) -> str:
    rows = [
        (client_name(c), units.count(c.get("active")), units.count(c.get("queued")), units.share(c.get("share"), 1))
        for c in rows_of(fields, "clients")
    ]
    return table(("client", "active", "queued", "share"), rows) if rows else ""


def client_name(client: Fields) -> str:
    if client.get("name"):
        return units.text(client["name"])
    account = f"{units.text(client['account'])}, " if client.get("account") else ""
    return f"{account}uid {units.text(client.get('uid'))} pid {units.text(client.get('pid'))}"


# ---- sessions, metrics, everything else


def sessions(items: Sequence[Fields]) -> str:
    if not items:
        return "no sessions"
    rows = [
        (
            units.text(s.get("request_id")),
            units.text(s.get("conn")),
            units.text(s.get("lane")),
            units.text(s.get("phase")),
            f"{units.count(s.get('prefilled_tokens'))}/{units.count(s.get('prompt_tokens'))}",
            f"{units.count(s.get('completion_tokens'))}/{units.count(s.get('max_tokens'))}",
            units.ms(s.get("age_ms")),
            client_name(s),
            _waits_for(s),
        )
        for s in items
    ]
    return table(("request", "conn", "priority", "phase", "prompt", "answer", "age", "client", "waits for"), rows)


def _waits_for(session: Fields) -> str:
    """Return why a request does not go on, if the daemon knows: what it waits for, its place in the queue, how long."""
    if session.get("is_held"):
        return "its client, which reads too slowly"
    position, wait = session.get("queue_position"), session.get("wait_ms")
    if not units.is_number(position):
        return units.NOTHING
    other = session.get("waits_for")
    reason = f"the end of {units.text(other)}{_of_conn(session)}" if other is not None else "its turn"
    return joined(reason, f"place {position + 1:g}", f"about {units.ms(wait)}" if wait else "")


def _of_conn(session: Fields) -> str:
    """Return the connection of the request that is waited for: each `uma-ctl generate` calls its request `r1`."""
    conn = session.get("waits_for_conn")
    return f" (conn {units.text(conn)})" if conn is not None else ""


def metrics(fields: Fields) -> str:
    """Return metrics as an aligned list, with a distribution on one line. Labelled values of zero are left out."""
    return pairs((units.printable(name), _metric(value)) for name, value in _leaves(fields))


def _leaves(fields: Fields, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping) or _is_distribution(value):
            yield name, value
            continue
        inner = list(_leaves(value, f"{name}."))
        yield from [leaf for leaf in inner if not _is_nothing(leaf[1])] or [(name, 0)]


def _is_distribution(value: Fields) -> bool:
    return "count" in value and "mean" in value


def _is_nothing(value: Any) -> bool:
    return value == 0 or (isinstance(value, Mapping) and value.get("count") == 0)


def _metric(value: Any) -> str:
    if isinstance(value, Mapping) and _is_distribution(value):
        if _is_nothing(value):
            return "0"
        return ", ".join(f"{key} {units.count(value[key])}" for key in ("count", "mean", *PERCENTILES) if key in value)
    return units.count(value) if units.is_number(value) else units.text(value)


def tree(value: Any, indent: str = "") -> str:
    """Return any reply, indented: for operations without a formatter of their own."""
    if isinstance(value, Mapping):
        return "\n".join(_branch(f"{indent}{units.text(key)}:", item, indent) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "\n".join(_branch(f"{indent}{i}:", item, indent) for i, item in enumerate(value, 1))
    return indent + units.text(value)


def _branch(label: str, item: Any, indent: str) -> str:
    is_deep = (isinstance(item, Mapping) and item) or (
        isinstance(item, (list, tuple)) and any(isinstance(x, Mapping) for x in item)
    )
    return f"{label}\n{tree(item, indent + '  ')}" if is_deep else f"{label} {units.text(item)}"


def error_line(error: Any) -> str:
    """`E_LIMIT_003 overloaded: message (retry after 250 ms)` from an error event or object."""
    if not isinstance(error, Mapping):
        return units.text(error)
    head = " ".join(str(error[key]) for key in ("code", "name") if error.get(key))
    line = units.printable(f"{head}: {error.get('message', '')}" if head else str(error.get("message", "")))
    detail = sub(error, "detail")
    retry = detail.get("retry_after_ms", error.get("retry_after_ms"))
    field = detail.get("field")
    extra = ([f"field {units.text(field)}"] if field else []) + (
        [f"retry after {units.ms(retry)}"] if retry is not None else []
    )
    return f"{line} ({', '.join(extra)})" if extra else line


def changes(items: Sequence[Fields]) -> str:
    """Return the changes of a reload."""
    if not items:
        return "no changes"
    effect = {True: "at once", False: "with a new engine"}
    rows = [
        (*(units.text(c.get(key)) for key in ("name", "old", "new")), effect[bool(c.get("is_live"))]) for c in items
    ]
    return table(("option", "old", "new", "takes effect"), rows)


def summary(usage: Fields, timing: Fields, reason: str) -> str:
    """One line about a finished answer."""
    total, tokens = timing.get("total_ms"), usage.get("completion_tokens")
    rate = (
        f"{tokens / (total / 1000):.0f} tokens/s"
        if units.is_number(total) and units.is_number(tokens) and total and tokens
        else ""
    )
    return joined(
        units.text(reason),
        f"{units.count(usage.get('prompt_tokens'))} + {units.count(tokens)} tokens",
        "" if tokens == 0 else f"{units.ms(timing.get('ttft_ms'))} to the first",
        rate,
    )


def token_table(tokens: Sequence[Fields]) -> str:
    """Return tokens with their probabilities, and the likeliest alternatives of each."""

    def told(one: Fields) -> str:
        return f"{bytes(one['bytes']).decode('utf-8', 'replace')!r} {math.exp(one['logprob']):.3f}"

    return "\n".join("  ".join(map(told, [one, *one["top"]])) for one in tokens)


def pieces(tokens: Sequence[Any], shown: Sequence[Any]) -> str:
    """Return a line for each token: its id, and its text as a JSON string, or its bytes if they are not valid text on
    their own.
    """
    width = max((len(str(token)) for token in tokens), default=0)
    return "\n".join(f"{token!s:>{width}}  {_piece(piece)}" for token, piece in zip(tokens, shown, strict=False))


def _piece(piece: Any) -> str:
    if isinstance(piece, str):
        return json.dumps(piece, ensure_ascii=not piece.isprintable())
    return " ".join(f"{byte:02x}" for byte in piece) if isinstance(piece, (list, tuple)) else units.NOTHING
