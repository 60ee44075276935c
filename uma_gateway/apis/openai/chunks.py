"""Pieces of OpenAI's answers that several endpoints share; streamed chunks are written from templates.

Chunks of plain text are most of what a gateway writes, so their constant bytes are built once per stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from uma_gateway import sse
from uma_gateway.apis.openai.request import Shape
from uma_gateway.generate import spent_ms
from uma_gateway.link import Event

SPLIT = b'"\\u0000"'  # marks the place of the text; no encoded text can equal it


class ChatChunks:
    """The chunks of one streamed chat."""

    def __init__(self, shape: Shape) -> None:
        self._tail = shape.fields("chat.completion.chunk")
        self._heads: dict[int, tuple[bytes, bytes]] = {}

    def _bytes(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse.data({"choices": choices, **self._tail, **more})

    def content(self, index: int, text: str) -> bytes:
        """Return a chunk with new text."""
        ends = self._heads.get(index)
        if ends is None:
            choice = {"finish_reason": None, "index": index, "delta": {"content": "\0"}}
            head, _, tail = self._bytes([choice]).partition(SPLIT)
            ends = self._heads[index] = head, tail
        return b"%b%b%b" % (ends[0], orjson.dumps(text), ends[1])

    def role(self, index: int) -> bytes:
        """Return the first chunk of an answer."""
        return self._bytes([{"finish_reason": None, "index": index, "delta": {"role": "assistant", "content": ""}}])

    def delta(self, index: int, delta: dict[str, Any], logprobs: list[Any] | None = None, **more: Any) -> bytes:
        choice: dict[str, Any] = {"finish_reason": None, "index": index, "delta": delta}
        if logprobs is not None:
            choice["logprobs"] = {"content": logprobs, "refusal": None}
        return self._bytes([choice], **more)

    def finish(self, index: int, reason: str, delta: Mapping[str, str], **more: Any) -> bytes:
        """Return the last chunk of an answer."""
        return self._bytes([{"finish_reason": reason, "index": index, "delta": delta}], **more)

    def usage(self, usage: dict[str, Any], timings: dict[str, Any]) -> bytes:
        """Return the chunk after all answers, if it was requested."""
        return self._bytes([], usage=usage, timings=timings)


def usage(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the token counts in OpenAI's form."""
    n_prompt, n_answer = counts["prompt_tokens"], counts["completion_tokens"]
    return {
        "completion_tokens": n_answer,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_answer,
        "prompt_tokens_details": {"cached_tokens": counts["cached_tokens"]},
        "completion_tokens_details": {
            "reasoning_tokens": counts.get("reasoning_tokens", 0),
            "accepted_prediction_tokens": counts.get("accepted_prediction_tokens", 0),
            "rejected_prediction_tokens": counts.get("rejected_prediction_tokens", 0),
        },
    }


def timings(eos: Event) -> dict[str, Any]:
    """Return llama-server's figures, which its clients show. Rates are never null."""
    counts, timing = eos["usage"], eos["timing"]
    n_cached = counts["cached_tokens"]
    n_read, n_answer = counts["prompt_tokens"] - n_cached, counts["completion_tokens"]
    prompt_ms, answer_ms = spent_ms(timing)
    n_gaps = max(0, n_answer - 1)
    return {
        "cache_n": n_cached,
        "prompt_n": n_read,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _rate(prompt_ms, n_read),
        "prompt_per_second": _rate(n_read * 1e3, prompt_ms),
        "predicted_n": n_answer,
        "predicted_ms": round(answer_ms, 3),
        "predicted_per_token_ms": _rate(answer_ms, n_gaps),
        "predicted_per_second": _rate(n_gaps * 1e3, answer_ms),
        "queue_ms": timing.get("queue_ms", 0.0),
        **_drafts(counts),
    }


def _drafts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of draft tokens that were verified and accepted; nothing if there were none, as in
    llama-server.
    """
    n_held = counts.get("accepted_prediction_tokens", 0)
    n_drafts = n_held + counts.get("rejected_prediction_tokens", 0)
    return {"draft_n": n_drafts, "draft_n_accepted": n_held} if n_drafts else {}


def prompt_progress(event: Event) -> dict[str, Any]:
    """Return llama-server's report of a prompt's progress, from the daemon's `progress` event."""
    return {
        "total": event["prompt_tokens"],
        "cache": event["cached_tokens"],
        "processed": event["read_tokens"],
        "time_ms": round(event["read_ms"]),
    }


def _rate(amount: float, per: float) -> float:
    return round(amount / per, 3) if per else 0.0


def logprobs(entries: list[Event]) -> list[dict[str, Any]]:
    """Return the daemon's log probabilities in OpenAI's form."""
    return [{**_token(entry), "top_logprobs": [_token(other) for other in entry.get("top", ())]} for entry in entries]


def _token(entry: Event) -> dict[str, Any]:
    data = bytes(entry["bytes"])
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": entry["logprob"],
        "bytes": entry["bytes"],
        "id": entry["id"],
    }


def prompt_logprobs(entries: list[Event]) -> dict[str, Any]:
    """Return a prompt's log probabilities in vLLM's form: for each token an object with the token itself and the
    likeliest ones, by their ids. The first token has none.
    """
    return {"prompt_logprobs": [None if entry["logprob"] is None else _by_id(entry) for entry in entries]}


def _by_id(entry: Event) -> dict[str, Any]:
    """Return the entries by token id, the token itself first. Its rank is known if it is among the likeliest."""
    ranks = {other["id"]: rank for rank, other in enumerate(entry.get("top", ()), 1)}
    each = {token["id"]: token for token in (entry, *entry.get("top", ()))}
    return {
        str(token_id): {
            "logprob": token["logprob"],
            "rank": ranks.get(token_id),
            "decoded_token": bytes(token["bytes"]).decode("utf-8", "replace"),
        }
        for token_id, token in each.items()
    }
