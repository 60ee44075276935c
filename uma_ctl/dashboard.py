"""The data behind `uma-ctl top`. No terminal, no socket: replies in, figures out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from uma_ctl.render import Fields, sub
from uma_ctl.units import is_number

HISTORY = 240  # samples kept for the sparklines
RESIDENT = ("prefill", "decode")  # phases that hold KV cells
TOKENS_TOTAL = "tokens_generated_total"  # metric


class Cell(Enum):
    """A place in the KV map."""

    USED = "█"
    RESERVED = "▒"
    FREE = "·"


class Key(Enum):
    UP = "up"
    DOWN = "down"
    CANCEL = "cancel"
    DRAIN = "drain"
    QUIT = "quit"


_KEYS = {
    b"\x1b[A": Key.UP,
    b"\x1bOA": Key.UP,
    b"k": Key.UP,
    b"\x1b[B": Key.DOWN,
    b"\x1bOB": Key.DOWN,
    b"j": Key.DOWN,
    b"c": Key.CANCEL,
    b"d": Key.DRAIN,
    b"q": Key.QUIT,
}


def parse_keys(data: bytes) -> list[Key]:
    """Turn terminal input into keys; other input is skipped."""
    found, at = [], 0
    while at < len(data):
        length = next((n for n in (3, 1) if data[at : at + n] in _KEYS), 0)
        if length:
            found.append(_KEYS[data[at : at + length]])
        at += length or (3 if data[at : at + 2] in (b"\x1b[", b"\x1bO") else 1)
    return found


@dataclass
class Dashboard:
    """The latest replies, a short history, and the selection."""

    status: Fields = field(default_factory=dict)
    sessions: list[Fields] = field(default_factory=list)
    tick_ms: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    tokens_per_s: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    selected: tuple[Any, Any] | None = None  # (conn, request_id): the selection follows its request through the list
    message: str = ""
    is_drain_armed: bool = False  # `d` was pressed once
    _has_selected: bool = False  # a request has been selected before
    _n_tokens: float | None = None
    _seen_s: float = 0.0

    def update(self, status: Fields, metrics: Fields, sessions: list[Fields], now_s: float) -> None:
        """Take one round of replies."""
        self.status, self.sessions = status, sessions
        last = sub(status, "tick").get("ms_last")
        if is_number(last):
            self.tick_ms.append(last)
        self._count(metrics.get(TOKENS_TOTAL), now_s)
        if self.selected not in [_key(s) for s in sessions]:
            # a request is selected automatically only once: a key pressed just as it ends must not act on another one
            self.selected = _key(sessions[0]) if sessions and not self._has_selected else None
            self._has_selected |= bool(sessions)

    def _count(self, n_tokens: Any, now_s: float) -> None:
        if not is_number(n_tokens):
            return
        if self._n_tokens is not None and now_s > self._seen_s and n_tokens >= self._n_tokens:
            self.tokens_per_s.append((n_tokens - self._n_tokens) / (now_s - self._seen_s))
        self._n_tokens, self._seen_s = n_tokens, now_s  # a smaller count: the daemon was restarted

    @property
    def position(self) -> int:
        """Index of the selected request; -1 without one."""
        keys = [_key(s) for s in self.sessions]
        return keys.index(self.selected) if self.selected in keys else -1

    def move(self, step: int) -> None:
        if self.sessions:
            at = min(len(self.sessions) - 1, max(0, self.position + step))
            self.selected = _key(self.sessions[at])

    def selected_session(self) -> Fields | None:
        at = self.position
        return self.sessions[at] if at >= 0 else None

    def kv_map(self, width: int) -> list[tuple[Cell, int]]:
        """Return `width` places for all cells: the content of each, and the index of its session (-1: none)."""
        total = sub(self.status, "kv").get("cells_total")
        if not is_number(total) or total <= 0:
            return []
        places: list[tuple[Cell, int]] = []
        for i, session in enumerate(self.sessions):
            if session.get("phase") not in RESIDENT:
                continue
            used = _places(_sum(session, "prefilled_tokens", "completion_tokens"), total, width)
            promised = _places(_sum(session, "prompt_tokens", "max_tokens"), total, width)
            places += [(Cell.USED, i)] * used + [(Cell.RESERVED, i)] * max(0, promised - used)
        return (places + [(Cell.FREE, -1)] * width)[:width]


def _places(n_cells: float, total: float, width: int) -> int:
    """Convert cells to places of the map; a session with any cells gets at least one place."""
    return max(1, round(width * n_cells / total)) if n_cells > 0 else 0


def _sum(session: Fields, *names: str) -> float:
    return sum(value for name in names if is_number(value := session.get(name)))


def _key(session: Fields) -> tuple[Any, Any]:
    return session.get("conn"), session.get("request_id")
