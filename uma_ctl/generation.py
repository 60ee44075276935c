"""One generate request from the command line to its last event, shared by `generate`, `chat` and `uma-cli`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from uma_ctl import output, render
from uma_ctl.client import Client, Event
from uma_ctl.constraint import take_constraint
from uma_ctl.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SERVER, ServerError
from uma_ctl.interrupt import cancel_on_sigint
from uma_ctl.options import THOUGHT, Target

GRACE_S = 5.0  # the daemon enforces timeout_ms; the client waits a little longer before it gives up
COMPLETE = ("stop", "length")

FIELDS = (  # options that are request fields as they are
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "seed",
    "n",
    "logprobs",
    "priority",
)


@dataclass
class Answer:
    """The result of a request."""

    text: str = ""
    reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, Any] = field(default_factory=dict)
    is_interrupted: bool = False
    tokens: list[Event] = field(default_factory=list)  # with `--logprobs`: each token's log probabilities
    answers: list[Answer] = field(default_factory=list)  # with `--n`: all of them, including the first

    @property
    def exit_status(self) -> int:
        if self.is_interrupted:
            return EXIT_INTERRUPTED
        return EXIT_OK if self.reason in COMPLETE else EXIT_SERVER


def build_request(options: Mapping[str, Any]) -> dict[str, Any]:
    """Turn command-line options into request fields; for options that are not given the daemon's defaults apply.

    Raises: UsageError.
    """
    request = {name: options[name] for name in FIELDS if options.get(name) is not None}
    if options.get("stop"):
        request["stop"] = list(options["stop"])
    if options.get("lora"):
        request["lora"] = options["lora"]
    if options.get("banned"):
        request["banned_strings"] = list(options["banned"])
    if options.get("think") or options.get("reasoning_budget") is not None:
        start, end = options.get("think") or THOUGHT
        request["reasoning"] = {"start": start, "end": end}
        if options.get("reasoning_budget") is not None:
            request["reasoning"]["budget_tokens"] = options["reasoning_budget"]
    if options.get("timeout"):
        request["timeout_ms"] = options["timeout"] * 1000
    constraint = take_constraint(options)
    if constraint is not None:
        request["constraint"] = constraint
    request["stream"] = not options.get("no_stream", False)
    return request


def show(target: Target, request: Mapping[str, Any]) -> Answer:
    """Run a request over a new connection and print its answer as it arrives, or every event as JSON.

    Raises: CannotConnect, and what `run` raises.
    """
    with target.connect() as client:
        if target.as_json:
            return run(client, request, on_event=lambda event: output.line(render.as_json(event)))
        sink = output.TextSink()
        try:
            answer = run(client, request, sink.write)
        finally:
            sink.end_line()
    _note_tokens(answer)
    return answer


def _note_tokens(answer: Answer) -> None:
    """Show each token's probability and the likeliest alternatives on standard error (`--logprobs`)."""
    for number, one in enumerate(answer.answers or [answer], 1):
        if one.tokens:
            output.note(("" if not answer.answers else f"[{number}]\n") + render.token_table(one.tokens))


def nothing(_: Any) -> None:
    """Do nothing: for callers that want only the text, or only the events."""


def run(
    client: Client,
    request: Mapping[str, Any],
    on_text: Callable[[str], None] = nothing,
    on_event: Callable[[Event], None] = nothing,
) -> Answer:
    """Send the request and pass on its text as it arrives. Blocks until the final event.

    Ctrl-C cancels the request at the daemon; its final event is still awaited. Raises: ServerError for a refused or
    failed request, BrokenProtocol, NoAnswer.
    """
    timeout_ms = request.get("timeout_ms")
    client.set_timeout(timeout_ms / 1000 + GRACE_S if timeout_ms else None)
    answer = Answer()
    sent = {"id": client.new_id(), **request}
    events = client.generate(sent)
    with cancel_on_sigint(lambda: client.cancel(sent["id"])) as interrupt:
        for event in events:
            on_event(event)
            _take(answer, event, on_text)
    answer.is_interrupted = interrupt.is_set and answer.reason not in COMPLETE
    return answer


def _take_one_of_several(answer: Answer, index: int, event: Event, on_text: Callable[[str], None]) -> None:
    """Take an event of one of several answers. Each is shown under its number once it has ended, because answers that
    are printed as they stream could not be told apart.
    """
    while len(answer.answers) <= index:
        answer.answers.append(Answer())
    one = answer.answers[index]
    one.text += event.get("text") or ""
    one.tokens += event.get("logprobs") or ()
    if event["event"] == "end":
        one.reason = str(event.get("reason", ""))
        label = f"[{index + 1}]" if one.reason in COMPLETE else f"[{index + 1}, {one.reason}]"
        on_text(f"{label} {one.text.rstrip()}\n")
        answer.text = answer.answers[0].text


def _take(answer: Answer, event: Event, on_text: Callable[[str], None]) -> None:
    kind = event.get("event")
    if kind == "error":
        raise ServerError(event)
    index = event.get("index")
    if isinstance(index, int) and kind in ("token", "end"):
        _take_one_of_several(answer, index, event, on_text)
        return
    answer.tokens += event.get("logprobs") or ()
    text = event.get("text")
    if kind in ("token", "eos") and isinstance(text, str) and text:
        answer.text += text
        on_text(text)
    if kind == "eos":
        for one in event.get("answers") or ():
            _take_one_of_several(answer, one["index"], {"event": "end", **one}, on_text)
        answer.reason = str(event.get("reason", ""))
        answer.usage = event.get("usage") or {}
        answer.timing = event.get("timing") or {}
        if answer.reason == "error":
            raise ServerError(event.get("error") or event)
