"""Idle sequences whose cells others need: each saves what only it holds, and is then emptied.

Rules: one after the other, because one may hold the beginning of the next. Sessions that are admitted meanwhile begin
when all are empty (`Emptied`); until then the cells are those that these sessions have reserved and do not use yet.
Sequences that admitted sessions take over may also hold more than there is room for (`is_short`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from uma_core.cache.chain import Chain, Steps
from uma_core.cache.resident import Resident
from uma_core.clock import Clock

log = logging.getLogger(__name__)


class Leaving:
    """The sequences that leave, in order. The first one is being saved."""

    def __init__(self, save: Callable[[Resident], Steps], dismiss: Callable[[Resident], None], clock: Clock) -> None:
        self._save = save
        self._dismiss = dismiss
        self._clock = clock
        self._queue: list[Resident] = []
        self._chain: Chain | None = None

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, resident: Resident) -> None:
        resident.is_awaited = True
        self._queue.append(resident)
        if self._chain is None:
            self._start()

    def stay(self, resident: Resident) -> None:
        """Forget a sequence: a session continues in it, or it is empty already."""
        if not resident.is_awaited:
            return
        is_first = self._queue[0] is resident
        self._remove(resident)
        if is_first and self._chain is not None:
            self._chain.close()
            self._start()

    def step(self, until_ns: int) -> bool:
        """Save and empty sequences. True: all are empty."""
        if self._chain is not None and self._chain.step(until_ns):
            self._chain = None
        return not self._queue

    def _start(self) -> None:
        chain = Chain(self._steps(), self._clock)
        self._chain = None if chain.is_done else chain

    def _steps(self) -> Steps:
        while self._queue:
            resident = self._queue[0]
            try:
                if resident.n:
                    yield from self._save(resident)
            except Exception:  # a bug, or no memory: sessions wait for these cells
                log.exception("sequence %d makes room without being saved", resident.seq_id)
            self._remove(resident)
            self._dismiss(resident)

    def _remove(self, resident: Resident) -> None:
        resident.is_awaited = False
        self._queue.remove(resident)


class Emptied:
    """Waits until all sequences that leave are empty and there is enough room. They leave even if nobody waits.

    `is_short`: whether sequences that sessions take over still hold too much. Those sessions wait for transfers that
    copy from their sequences, so whoever waits for them copies from none.
    """

    n_bytes = 0

    def __init__(self, leaving: Leaving, is_short: Callable[[], bool] = lambda: False) -> None:
        self._leaving = leaving
        self._is_short = is_short

    def step(self, until_ns: int) -> bool:
        return self._leaving.step(until_ns) and not self._is_short()

    def close(self) -> None:
        pass
