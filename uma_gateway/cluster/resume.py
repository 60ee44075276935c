"""Continues an answer on another daemon: the request that goes on after the text that was sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uma_core.types import thought_mark

PROMPT_TAIL = 256  # last characters of a prompt, in which a template may have begun a thought


def can_resume(fields: Mapping[str, Any]) -> bool:
    """Whether an answer can be continued from its text: it is single and streamed, and its form does not depend on
    earlier text.
    """
    constraint = fields.get("constraint")
    if fields.get("n", 1) != 1 or fields.get("best_of") or fields.get("stream") is False or fields.get("echo"):
        return False
    return fields.get("prompt") is not None and (constraint is None or not constraint.get("triggers"))


def resumed(fields: Mapping[str, Any], tail: list[str | int], text: str, n_tokens: int) -> dict[str, Any]:
    """Return the request that continues after `text`. `tail`: the same text as parts of a prompt. `n_tokens`: its
    number of tokens.
    """
    prompt = fields["prompt"]
    parts = [prompt] if isinstance(prompt, str) else list(prompt)
    more = {**fields, "prompt": [*parts, *tail]}
    for name in ("prompt_logprobs", "prompt_progress"):  # these were sent before any text
        more.pop(name, None)
    if fields.get("max_tokens"):
        more["max_tokens"] = max(1, fields["max_tokens"] - n_tokens)
    if fields.get("min_tokens"):
        more["min_tokens"] = max(0, fields["min_tokens"] - n_tokens)
    if fields.get("constraint") is not None:
        more["constraint"] = {**fields["constraint"], "prefix": fields["constraint"].get("prefix", "") + text}
    thought = fields.get("reasoning")
    # a thought that has not begun may still begin, so the field stays as it is
    if thought is not None and thought_mark(thought["end"]) in text:
        del more["reasoning"]
    elif thought is not None and _start_of_thought(fields, text) is not None:
        more["reasoning"] = {**thought, "start": ""}
        if thought.get("budget_tokens") is not None:
            n_left = max(0, thought["budget_tokens"] - n_thought(fields, text, n_tokens))
            more["reasoning"]["budget_tokens"] = n_left
            if not n_left:
                more["reasoning"] |= _unsaid(thought.get("message", ""), thought["end"], text)
    return more


def _unsaid(message: str, end: str, text: str) -> dict[str, str]:
    """Return what is left of the message and the end that cut a thought off. The lost daemon may have begun both."""
    said = message + end
    n_said = next((n for n in range(len(said) - 1, 0, -1) if text.endswith(said[:n])), 0)
    return {"message": message[n_said:], "end": end[max(0, n_said - len(message)) :]}


def n_thought(fields: Mapping[str, Any], text: str, n_tokens: int) -> int:
    """Estimate how many of the counted tokens belong to the thought, by its share of the text."""
    at = _start_of_thought(fields, text)
    if at is None:
        return 0
    end = thought_mark(fields["reasoning"]["end"])
    inside = text[at:].partition(end)[0] if end else ""  # an empty end ends the thought at once, as in the daemon
    return round(n_tokens * len(inside) / max(1, len(text)))


def _start_of_thought(fields: Mapping[str, Any], text: str) -> int | None:
    """Return the offset at which the thought starts in the answer's text; None: it has not begun."""
    prompt, thought = fields["prompt"], fields["reasoning"]
    start = thought_mark(thought.get("start", ""))
    if start in text:
        return text.find(start) + len(start)
    return 0 if _begins_thought([prompt] if isinstance(prompt, str) else prompt[-1:], thought) else None


def _begins_thought(parts: list[str | int], thought: Mapping[str, Any]) -> bool:
    """Whether a prompt with this end has begun a thought, as some templates do; the daemon looks there too."""
    tail = "".join(part for part in parts if isinstance(part, str))[-PROMPT_TAIL:]
    return tail.rfind(thought_mark(thought["start"])) > tail.rfind(thought_mark(thought["end"]))
