"""Reports the progress of prompts to requests that asked for it (`prompt_progress`).

Rules: on the compute thread; at most one event per PERIOD_NS, and always one at a prompt's end, before the first token.
"""

from __future__ import annotations

from collections import deque

from uma_core.clock import Clock
from uma_core.session.events import Event, Progress
from uma_core.session.session import Session

PERIOD_NS = 100_000_000  # a bar that moves ten times a second looks smooth; mixed batches read a few tokens every 10 ms


class PromptProgress:
    """Owned by the executor."""

    def __init__(self, events: deque[Event], clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._told_ns: dict[int, int] = {}  # when each prompt that is being read was last reported, by session number

    def on_progress(self, session: Session) -> None:
        """More of the session's prompt was computed."""
        is_one_of_several = session.index > 0  # they share the prompt of the first
        if not session.request.prompt_progress or is_one_of_several or session.generated:
            return
        now, is_whole = self._clock.now_ns(), session.n_past >= session.n_prompt
        told_ns = self._told_ns.get(session.sid)
        if not is_whole and told_ns is not None and now - told_ns < PERIOD_NS:
            return
        self._told_ns[session.sid] = now
        self._events.append(
            Progress(
                session.conn_id,
                session.id,
                session.n_prompt,
                session.n_cached,
                session.n_past,
                now - session.t_admitted_ns,
            )
        )

    def on_end(self, session: Session) -> None:
        """The session has ended."""
        self._told_ns.pop(session.sid, None)
