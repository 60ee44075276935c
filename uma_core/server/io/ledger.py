"""Keeps track of the requests in progress, and checks that each ends with exactly one final event."""

from __future__ import annotations

import logging
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Key = tuple[int, str]  # connection, request
T = TypeVar("T")


class Entry(Generic[T]):
    __slots__ = ("is_accepted", "work")

    def __init__(self, work: T) -> None:
        self.work = work
        self.is_accepted = False


class Ledger(Generic[T]):
    """One entry per request, from receipt to final event. Violations are our bugs: counted and logged, never fatal."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry[T]] = {}
        self.n_violations = 0

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, key: Key, work: T) -> None:
        self._entries[key] = Entry(work)

    def accept(self, key: Key) -> bool:
        """Record the acceptance. False: nothing may be sent for it."""
        entry = self._entries.get(key)
        if entry is None or entry.is_accepted:
            return self._violation(key, "accepted twice or after its end")
        entry.is_accepted = True
        return True

    def is_running(self, key: Key) -> bool:
        """Check a token event. False: it must not be sent."""
        entry = self._entries.get(key)
        if entry is None or not entry.is_accepted:
            return self._violation(key, "a token outside of acceptance and end")
        return True

    def end(self, key: Key) -> bool:
        """Record the final event. False: it is a second one and must not be sent."""
        if self._entries.pop(key, None) is None:
            return self._violation(key, "a second final event")
        return True

    def find(self, key: Key) -> T | None:
        """Return the work of a request, accepted or not."""
        entry = self._entries.get(key)
        return None if entry is None else entry.work

    def pending(self, key: Key) -> T | None:
        """Return the work of a request that is not accepted yet."""
        entry = self._entries.get(key)
        return None if entry is None or entry.is_accepted else entry.work

    def under_way(self) -> list[tuple[Key, bool]]:
        """List the requests without a final event, and whether each was accepted."""
        return [(key, entry.is_accepted) for key, entry in self._entries.items()]

    def forget(self, conn_id: int, request_ids: list[str]) -> None:
        """Drop the requests of a client that is gone."""
        for request_id in request_ids:
            self._entries.pop((conn_id, request_id), None)

    def _violation(self, key: Key, what: str) -> bool:
        self.n_violations += 1
        log.error("conn %d request %s: %s", *key, what)
        return False
