"""Progress of an answer while it is generated: llama-server's clients get the progress of the prompt and the timings so
far; vLLM's clients get the usage so far.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from uma_gateway.apis.openai import chunks
from uma_gateway.body import boolean, table
from uma_gateway.fields import need
from uma_gateway.link import Event
from uma_gateway.model import Model


def progress_field(body: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Return the field that makes the daemon report how it reads a streamed request's prompt. Raises: GatewayError."""
    wanted = [name for name in ("return_progress", "timings_per_token") if boolean(body, name)]
    wanted += ["stream_options"] if _wants_usage(body) else []
    for name in wanted:
        need(model, "prompt_progress", name)
    return {"prompt_progress": True} if wanted else {}


def _wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether each chunk has the usage; as in vLLM, only if the stream reports usage at all. Raises: GatewayError."""
    options = table(body, "stream_options")
    return boolean(options, "continuous_usage_stats") and boolean(options, "include_usage")


class Pace:
    """Follows one prompt and its answers."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._tells_progress = boolean(body, "return_progress")
        self._tells_timings = boolean(body, "timings_per_token")
        self._tells_usage = _wants_usage(body)
        self.tells_tokens = self._tells_timings or self._tells_usage
        self._prompt: Event = {"prompt_tokens": 0, "cached_tokens": 0, "read_ms": 0.0}
        self._t_first: dict[int, float] = {}  # time of each answer's first token
        self._n: dict[int, int] = {}  # tokens of each answer

    def read(self, progress: Event) -> dict[str, Any]:
        """Return the fields by which a chunk reports the prompt's progress: none if the request does not want them."""
        self._prompt = progress
        if not self._tells_progress:
            return {}
        told = {"prompt_progress": chunks.prompt_progress(progress)}
        return {**told, "timings": _read_so_far(progress)} if self._tells_timings else told

    def token(self, event: Event, index: int) -> dict[str, Any]:
        """Count the tokens of one more text of an answer. Returns the fields by which its chunks report the time and
        tokens so far.
        """
        if not self.tells_tokens:
            return {}
        now = time.perf_counter()
        t_first, n_tokens = self._t_first.setdefault(index, now), self._n.get(index, 0) + event.get("n_tokens", 1)
        self._n[index] = n_tokens
        names, read_ms = ("prompt_tokens", "cached_tokens"), self._prompt["read_ms"]
        usage = {**{name: self._prompt[name] for name in names}, "completion_tokens": n_tokens}
        told: dict[str, Any] = {"usage": chunks.usage(usage)} if self._tells_usage else {}
        if self._tells_timings:
            timing = {"ttft_ms": read_ms, "total_ms": read_ms + (now - t_first) * 1e3}
            told["timings"] = chunks.timings({"usage": usage, "timing": timing})
        return told


def _read_so_far(progress: Event) -> dict[str, Any]:
    usage = {
        "prompt_tokens": progress["read_tokens"],
        "cached_tokens": progress["cached_tokens"],
        "completion_tokens": 0,
    }
    return chunks.timings({"usage": usage, "timing": {"ttft_ms": progress["read_ms"]}})
