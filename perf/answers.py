"""How much speculation gains when a trained model answers real tasks: our daemon's modes beside llama-server's.

Every server runs in its own process and gets each task once, alternating with the others, so that none drafts from
an answer that it gave before. All get the same tokens, and answer greedily until the model ends.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.driver import Driver, Endpoint
from perf.load import Ask, Phase
from perf.peers import OURS, PEER, is_ours, make_server
from perf.report import markdown_table
from perf.servers import LlamaServer, Server, ServerError, Settings, running
from perf.stats import StreamLog, spread
from perf.wire import frame, http_request

N_TOKENS = 600  # of an answer at most
N_CTX_SEQ = 2048
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    kind: str
    tokens: tuple[int, ...]  # of the prompt, including its template and special tokens
    schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one server and one set of tasks."""

    tok_s: float  # of all streams, from their first tokens to their last
    n_tokens: int


def labels(draft: Path | None) -> dict[str, str]:
    """Return the servers' labels by their names in tables."""
    found = {
        "off": OURS,
        "auto": f"{OURS}:speculate=auto",
        "llama-server": PEER,
        "llama-server ngram-simple": f"{PEER}:ngram-simple",
        "llama-server ngram-mod": f"{PEER}:ngram-mod",
    }
    if draft is not None:
        found["auto and draft model"] = f"{OURS}:speculate=auto,draft-model={draft}"
        found["llama-server draft model"] = f"{PEER}:draft={draft}"
    return found


def measure(
    model: Path,
    rows: Sequence[dict[str, Any]],
    named: dict[str, str],
    counts: Sequence[int],
    repeats: int,
    folder: Path,
) -> Iterator[tuple[str, int, str, Figures]]:
    """Yield (kind of task, streams, name of the server, figures) of each repeat. Each repeat and count of streams has
    its own tasks, so that no server meets a task twice.

    Raises: ServerError, OSError.
    """
    settings = Settings(model, 2, n_seq=max(counts), n_ctx_seq=N_CTX_SEQ)
    servers = {name: make_server(label, settings, folder) for name, label in named.items()}
    reader = next(s for s in servers.values() if isinstance(s, LlamaServer))
    with running(list(servers.values())):
        tasks = [_task(reader.port, row) for row in rows]
        for repeat in range(repeats):
            for kind in dict.fromkeys(task.kind for task in tasks):
                mine = [task for task in tasks if task.kind == kind]
                sets = len(counts) * repeats
                for i, n_streams in enumerate(counts):
                    chosen = mine[repeat * len(counts) + i :: sets]
                    order = list(servers.items())
                    for name, server in order if repeat % 2 == 0 else order[::-1]:
                        yield kind, n_streams, name, _answered(server, chosen, n_streams, f"{kind} {repeat}")


def _task(port: int, row: dict[str, Any]) -> Task:
    """Render and tokenize a task as llama-server does."""
    asked: dict[str, Any] = {name: row[name] for name in ("messages", "tools") if name in row}
    prompt = _post(port, "/apply-template", asked)["prompt"]
    tokens = _post(port, "/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]
    return Task(row["kind"], tuple(tokens), _schema(json.loads(row["answer"])) if row["kind"] == "json" else None)


def _post(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30.0) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def _schema(value: Any) -> dict[str, Any]:
    """Return a JSON Schema for values like this one, as a program that needs its fields would send it."""
    if isinstance(value, dict):
        fields = {name: _schema(inner) for name, inner in value.items()}
        return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": _schema(value[0]) if value else {}}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {"type": [kinds[type(value)], "null"] if value is not None else ["string", "number", "null"]}


def _answered(server: Server, tasks: Sequence[Task], n_streams: int, name: str) -> Figures:
    """Let the server answer the tasks, `n_streams` at a time."""
    by_name = {f"t{i}": task for i, task in enumerate(tasks)}
    names = list(by_name)
    asks = tuple(
        Ask(ask, len(by_name[ask].tokens), N_TOKENS, after=(names[i - n_streams],) if i >= n_streams else ())
        for i, ask in enumerate(names)
    )
    here = server.endpoint()

    def encode(ask: Ask, _: str) -> bytes:
        return _frame(ask.name, by_name[ask.name]) if is_ours(server.label) else _completion(by_name[ask.name])

    endpoint = Endpoint(here.address, encode, here.parser, here.is_multiplexed)
    logs = Driver(endpoint, Phase(name, asks, timeout_s=TIMEOUT_S), name).run()
    return _figures(server, logs, n_streams)


def _frame(name: str, task: Task) -> bytes:
    constraint = {"constraint": {"json_schema": task.schema}} if task.schema else {}
    asked = {"tokens": task.tokens, "max_tokens": N_TOKENS, "temperature": 0, "stream": True}
    return frame({"id": name, "priority": "interactive", **asked, **constraint})


def _completion(task: Task) -> bytes:
    schema = {"json_schema": task.schema} if task.schema else {}
    asked = {"prompt": task.tokens, "n_predict": N_TOKENS, "temperature": 0, "stream": True}
    return http_request("/completion", {**asked, **schema})


def _figures(server: Server, logs: Sequence[StreamLog], n_streams: int) -> Figures:
    """Compute the figures. Tokens are taken from the server's own count: a token that ends in half a character is
    counted but not sent.
    """
    for log in logs:
        if log.n_reported < 1 or not log.t_tokens:
            raise ServerError(f"{server.label}: {log.name}: {log.error or 'no tokens'}")
    n_tokens = sum(log.n_reported for log in logs)
    spent_ns = sum(log.t_tokens[-1] - log.t_tokens[0] for log in logs)
    return Figures(n_streams * 1e9 * (n_tokens - len(logs)) / max(1, spent_ns), n_tokens)


def table(found: dict[tuple[str, int, str], list[Figures]], names: list[str]) -> str:
    """Return tokens a second as multiples of ours without speculation in the same repeat: median, lowest, highest."""
    rows = []
    for kind, n in dict.fromkeys((kind, n) for kind, n, _ in found):
        base = found[kind, n, names[0]]
        cells = [kind, str(n), f"{spread(f.tok_s for f in base).median:.0f}"]
        for name in names[1:]:
            s = spread(f.tok_s / b.tok_s for f, b in zip(found[kind, n, name], base, strict=True))
            cells.append(f"{s.median:.2f} ({s.low:.2f} to {s.high:.2f})")
        rows.append(cells)
    return markdown_table(["tasks", "streams", "ours, tokens/s", *names[1:]], rows)
