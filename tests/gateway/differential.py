"""Compares the gateway with llama-server, field by field: same model, same requests. `make differential` runs this
file.

It builds llama-server from the pinned source (perf/peer_build.py), records its replies in tests/data/llama-server.json,
and reports how the gateway differs. The suite compares the gateway with the recorded replies. docs/GATEWAY.md gives the
reason for every difference. The comparison reads the tables there, so it fails on a new difference and on one that no
longer exists.
"""

from __future__ import annotations

import contextlib
import fnmatch
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from native.pin import load_pin
from tests.trained import TINY

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "llama-server.json"
GUIDE = ROOT / "docs" / "GATEWAY.md"
ALIAS = "tiny"
WAIT_S = 120.0
Json = dict[str, Any]


class Request(NamedTuple):
    """One request. The guide describes the replies to requests together if their `name` is equal before the slash."""

    name: str
    path: str
    body: Any = None  # None: GET
    headers: Json = {}  # noqa: RUF012 (never changed)


USER = [{"role": "user", "content": "Hello there"}]
GREEDY: Json = {"temperature": 0, "seed": 1}
CHAT: Json = {"model": ALIAS, "messages": USER, "max_tokens": 8, **GREEDY}
NATIVE: Json = {"prompt": "The package", "n_predict": 8, **GREEDY}
OLDER: Json = {"model": ALIAS, "prompt": "The package", "max_tokens": 8, **GREEDY}
PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS},
    }
]
FORM: Json = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["age"],
    "additionalProperties": False,
}
JSON_SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "form", "schema": FORM, "strict": True}}
STREAM: Json = {"stream": True}
USAGE: Json = {"stream": True, "stream_options": {"include_usage": True}}

REQUESTS = (
    Request("health", "/health"),
    Request("props", "/props"),
    Request("models", "/v1/models"),
    Request("slots", "/slots"),
    Request("tokenize/text", "/tokenize", {"content": "Hello <|im_end|> wörld 😀"}),
    Request(
        "tokenize/special", "/tokenize", {"content": "Hello<|im_end|>", "add_special": True, "parse_special": False}
    ),
    Request("tokenize/pieces", "/tokenize", {"content": "Hello wörld 😀", "with_pieces": True}),
    Request("tokenize/nothing", "/tokenize", {}),
    Request("detokenize/tokens", "/detokenize", {"tokens": [40, 41, 42, 300]}),
    Request("detokenize/nothing", "/detokenize", {}),
    Request("apply-template/chat", "/apply-template", {"messages": USER}),
    Request("apply-template/tools", "/apply-template", {"messages": USER, "tools": TOOLS}),
    Request("chat/whole", "/v1/chat/completions", CHAT),
    Request("chat/stream", "/v1/chat/completions", {**CHAT, **STREAM}),
    Request("chat/usage", "/v1/chat/completions", {**CHAT, **USAGE}),
    Request("chat/logprobs", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    Request("chat/logprobs-stream", "/v1/chat/completions", {**CHAT, **STREAM, "logprobs": True, "top_logprobs": 2}),
    Request("chat/stop", "/v1/chat/completions", {**CHAT, "max_tokens": 40, "stop": ["e"]}),
    Request("chat/n", "/v1/chat/completions", {**CHAT, "n": 2}),
    Request("chat/schema", "/v1/chat/completions", {**CHAT, "max_tokens": 60, "response_format": JSON_SCHEMA}),
    Request(
        "chat/tools", "/v1/chat/completions", {**CHAT, "max_tokens": 120, "tools": TOOLS, "tool_choice": "required"}
    ),
    Request(
        "chat/tools-stream",
        "/v1/chat/completions",
        {**CHAT, **STREAM, "max_tokens": 120, "tools": TOOLS, "tool_choice": "required"},
    ),
    Request("chat/timings", "/v1/chat/completions", {**CHAT, **STREAM, "timings_per_token": True}),
    Request("chat/probs", "/v1/chat/completions", {**CHAT, "n_probs": 2}),
    Request("chat/tokens", "/chat/completions/input_tokens", CHAT),
    Request("completions/whole", "/v1/completions", OLDER),
    Request("completions/timed", "/v1/completions", {**OLDER, **STREAM}),
    Request("completions/mixed", "/v1/completions", {**OLDER, "prompt": [1, "The package", 42]}),
    Request("completions/progress", "/v1/completions", {**OLDER, **USAGE, "return_progress": True}),
    Request("completions/stream", "/v1/completions", {**OLDER, **USAGE}),
    Request("completions/stop", "/v1/completions", {**OLDER, "max_tokens": 40, "stop": ["e"]}),
    Request("completions/logprobs", "/v1/completions", {**OLDER, "logprobs": 2}),
    Request("completion/whole", "/completion", NATIVE),
    Request("completion/stream", "/completion", {**NATIVE, **STREAM}),
    Request("completion/timings", "/completion", {**NATIVE, **STREAM, "timings_per_token": True}),
    Request("completion/stop", "/completion", {**NATIVE, "n_predict": 40, "stop": ["e"]}),
    Request("completion/probs", "/completion", {**NATIVE, "n_probs": 2}),
    Request("completion/probs-after", "/completion", {**NATIVE, "n_probs": 2, "post_sampling_probs": True}),
    Request("completion/tokens", "/completion", {**NATIVE, "prompt": [1, 40, 41, 42], "return_tokens": True}),
    Request("completion/named-probs", "/completion", {**NATIVE, "logprobs": 2}),
    Request("completion/bias", "/completion", {**NATIVE, "logit_bias": [[40, 5.0], [41, False]]}),
    Request("completion/object", "/completion", {**NATIVE, "prompt": {"prompt_string": "The package"}}),
    Request("completion/schema", "/completion", {**NATIVE, "n_predict": 60, "json_schema": FORM}),
    Request("completion/grammar", "/completion", {**NATIVE, "grammar": 'root ::= "yes" | "no"'}),
    Request(
        "completion/fields",
        "/completion",
        {**NATIVE, "response_fields": ["content", "timings/predicted_n", "stop_type"]},
    ),
    Request("completion/several", "/completion", {**NATIVE, "prompt": ["The package", "A file"]}),
    Request("completion/progress", "/completion", {**NATIVE, **STREAM, "return_progress": True}),
    Request("infill/code", "/infill", {"input_prefix": "def f():\n", "input_suffix": "\n", "n_predict": 4, **GREEDY}),
    Request("responses/tokens", "/responses/input_tokens", {"model": ALIAS, "input": "Hello"}),
    Request("error/slot", "/slots/0?action=erase", {}),
    Request("error/messages", "/v1/chat/completions", {"model": ALIAS}),
    Request(
        "error/too-long", "/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "word " * 5000}]}
    ),
    Request("error/role", "/v1/chat/completions", {**CHAT, "messages": [{"content": "x"}]}),
    Request("error/tool-choice", "/v1/chat/completions", {**CHAT, "tools": TOOLS, "tool_choice": "sometimes"}),
    Request("error/grammar", "/completion", {**NATIVE, "grammar": "root ::= ((("}),
    Request("error/schema", "/completion", {**NATIVE, "json_schema": {"type": "nothing"}}),
    Request("error/prompt", "/completion", {"n_predict": 4}),
    Request("error/json", "/completion", b"{"),
    Request("error/path", "/v1/nothing"),
)


# --- asking


def ask(port: int, request: Request) -> Json:
    """Return {status, type, body}. The body is JSON, or the list of a stream's events."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    body = (
        request.body if request.body is None or isinstance(request.body, bytes) else json.dumps(request.body).encode()
    )
    headers = {"content-type": "application/json", **request.headers}
    connection.request("GET" if body is None else "POST", request.path, body, headers)
    response = connection.getresponse()
    raw = response.read().replace(str(ROOT).encode(), b"")
    connection.close()
    kind = (response.getheader("content-type") or "").partition(";")[0]
    if kind == "text/event-stream":
        lines = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
        return {
            "status": response.status,
            "type": kind,
            "body": [line if line == "[DONE]" else json.loads(line) for line in lines],
        }
    return {"status": response.status, "type": kind, "body": json.loads(raw) if kind == "application/json" else None}


def ask_all(port: int) -> dict[str, Json]:
    return {request.name: ask(port, request) for request in REQUESTS}


# --- comparing


def fields_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return (path, value) for everything in it. Entries of a list, and events of a stream, share one path."""
    if path.endswith(MADE):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from fields_of(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for inner in value:
            yield from fields_of(inner, f"{path}[]")
    else:
        yield path, value


MADE = "logprobs.top_logprobs"  # a list of {token: logprob}: the keys are tokens, so they count as values, not as names


def type_of(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str | list | dict):
        return {"NoneType": "null"}.get(type(value).__name__, type(value).__name__)
    return "number"


class Difference(NamedTuple):
    request: str
    field: str
    kind: str  # `not here`, `only here`, `type` or `value`
    detail: str = ""  # for people

    def __str__(self) -> str:
        return f"{self.request}: {self.field}: {self.kind} {self.detail}"


def is_any(field: str, volatile: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(field, pattern.replace("[", "[[]")) for pattern in volatile)


def differences(name: str, ours: Json, theirs: Json, volatile: list[str]) -> list[Difference]:
    """Return how our reply differs from theirs. The values of `volatile` fields may differ, but not their types."""
    here: dict[str, list[Any]] = {}
    there: dict[str, list[Any]] = {}
    for reply, found in ((ours, here), (theirs, there)):
        for field, value in fields_of(reply):
            found.setdefault(field, []).append(value)
    made = [Difference(name, field, "not here", repr(there[field][0])[:80]) for field in there if field not in here]
    made += [Difference(name, field, "only here", repr(here[field][0])[:80]) for field in here if field not in there]
    for field in sorted(here.keys() & there.keys()):
        mine, others = here[field], there[field]
        if {type_of(value) for value in mine} != {type_of(value) for value in others}:
            made.append(Difference(name, field, "type", f"{mine[0]!r:.60} instead of {others[0]!r:.60}"))
        elif not is_any(field, volatile) and _joined(mine) != _joined(others):
            made.append(Difference(name, field, "value", f"{_joined(mine)!r:.90} instead of {_joined(others)!r:.90}"))
    return made


def _joined(values: list[Any]) -> Any:
    """Join the texts of a stream, because its pieces may be cut differently. For other fields, list the values that
    occur.
    """
    texts = [value for value in values if isinstance(value, str)]
    if texts and len(set(texts)) > 1 and all(isinstance(value, str | None) for value in values):
        return "".join(texts)
    values = [round(value, 4) if isinstance(value, float) else value for value in values]
    if len({json.dumps(value) for value in values}) == 1:
        return values[0]
    return values[0] if len(values) == 1 else sorted({json.dumps(value) for value in values})


class Reason(NamedTuple):
    """A row of the guide: patterns for the requests and for a field, and the kind of difference."""

    requests: list[str]
    field: str
    kind: str

    def explains(self, difference: Difference) -> bool:
        return (
            difference.kind == self.kind
            and is_any(difference.request, self.requests)
            and is_any(difference.field, [self.field])
        )


def _table(title: str) -> list[list[str]]:
    section = GUIDE.read_text(encoding="utf-8").split(f"### {title}\n")[1].split("\n#")[0]
    rows = [line.strip().strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def reasons() -> list[Reason]:
    """Read the rows of the guide's table; a cell may name several fields."""
    found = []
    for requests, fields, kind, _ in _table("What differs"):
        found += [Reason(_names(requests), field, kind) for field in _names(fields)]
    return found


def volatile_fields() -> list[str]:
    return [name for fields, _ in _table("What no two runs share") for name in _names(fields)]


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def compare(ours: dict[str, Json], theirs: dict[str, Json]) -> tuple[list[Difference], list[Reason]]:
    """Return (differences that the guide does not explain, rows of the guide that explain no difference)."""
    known, volatile = reasons(), volatile_fields()
    found = [difference for name in theirs for difference in differences(name, ours[name], theirs[name], volatile)]
    unexplained = [one for one in found if not any(reason.explains(one) for reason in known)]
    return unexplained, [reason for reason in known if not any(reason.explains(one) for one in found)]


# --- recording


def record() -> dict[str, Json]:
    """Start the pinned llama-server on the embedded model and store its replies.

    Blocks: minutes if it must be built first.
    """
    from perf.peer_build import SERVER, peer_dir

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(peer_dir() / "bin" / SERVER),
        "-m",
        str(TINY),
        "--alias",
        ALIAS,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["-c", "2048", "-np", "4", "-t", "1", "--jinja", "--slots", "--no-webui"]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + WAIT_S
            while True:
                try:
                    if ask(port, Request("", "/health"))["status"] == 200:
                        break
                except OSError:
                    pass
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"llama-server does not answer:\n{log.read()[-3000:].decode(errors='replace')}")
                time.sleep(0.1)
            replies = ask_all(port)
        finally:
            process.terminate()
    text = json.dumps({"pin": load_pin().version, "replies": replies}, indent=1, sort_keys=True)
    RECORDED.write_text(text + "\n", encoding="utf-8")
    return recorded()


def recorded() -> dict[str, Json]:
    """Raises: AssertionError if the replies come from another version."""
    kept = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert kept["pin"] == load_pin().version, (
        "llama.cpp's pin has changed: `make differential` records the new llama-server's replies"
    )
    replies: dict[str, Json] = kept["replies"]
    assert replies.keys() == {request.name for request in REQUESTS}, (
        "the requests have changed: `make differential` records the replies"
    )
    return replies


def main() -> None:
    from tests.daemon.support import SMALL, running
    from tests.folders import short_folder
    from tests.gateway.support import gateway_before

    theirs = record()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        daemon = stack.enter_context(running(folder, "--model", str(TINY), *SMALL))
        gateway = stack.enter_context(gateway_before(folder, daemon, "--model-alias", ALIAS))
        unexplained, stale = compare(ask_all(gateway.port), theirs)
    for difference in unexplained:
        print(difference)
    for reason in stale:
        print(f"docs/GATEWAY.md explains a difference that is gone: {reason}")
    sys.exit(bool(unexplained or stale))


if __name__ == "__main__":
    main()
