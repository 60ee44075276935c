"""Runs several transfers, one after the other, as one Transfer of a session."""

from __future__ import annotations

from collections.abc import Generator

from uma_core.cache.disk import Ticket
from uma_core.cache.resident import Resident
from uma_core.clock import Clock
from uma_core.engine.api import Transfer
from uma_core.errors import ErrorCode, UmaError

WAIT_MOST_NS = 2_000_000  # longest wait for the disk in one step, so that a new request is noticed

LOST = "the source sequence of the copy failed"

Steps = Generator[Transfer, None, None]


class Chain:
    """Steps the transfers that `steps` yields. Errors of a step are thrown into `steps`, which decides how to go on."""

    def __init__(self, steps: Steps, clock: Clock, n_bytes: int = 0) -> None:
        self.n_bytes = n_bytes
        self._steps = steps
        self._clock = clock
        self._transfer: Transfer | None = None
        self._is_open = True
        self._advance(None)

    @property
    def is_done(self) -> bool:
        return not self._is_open

    def step(self, until_ns: int) -> bool:
        while self._transfer is not None:
            try:
                is_done = self._transfer.step(until_ns)
            except UmaError as error:
                self._advance(error)
                continue
            if not is_done:
                return False
            self._advance(None)
            if self._clock.now_ns() >= until_ns:
                break
        return self._transfer is None

    def close(self) -> None:
        """Undo unfinished work; `steps` gets GeneratorExit."""
        if self._is_open:
            self._is_open = False
            if self._transfer is not None:
                self._transfer.close()
                self._transfer = None
            self._steps.close()

    def interrupt(self, error: UmaError) -> None:
        """Stop the current step with an error."""
        if self._transfer is not None:
            self._advance(error)

    def _advance(self, error: UmaError | None) -> None:
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None
        try:
            self._transfer = next(self._steps) if error is None else self._steps.throw(error)
        except StopIteration:
            self._is_open = False


class Readers:
    """Waits until no transfer copies from a sequence."""

    n_bytes = 0

    def __init__(self, resident: Resident) -> None:
        self._resident = resident

    def step(self, until_ns: int) -> bool:
        return not self._resident.readers

    def close(self) -> None:
        pass


class Room:
    """Waits for the transfer's first step, before which idle sequences make room."""

    n_bytes = 0

    def step(self, until_ns: int) -> bool:
        return True

    def close(self) -> None:
        pass


class DiskRead:
    """Waits for the disk thread; the caller takes the payload from the ticket."""

    n_bytes = 0

    def __init__(self, ticket: Ticket, clock: Clock) -> None:
        self._ticket = ticket
        self._clock = clock

    def step(self, until_ns: int) -> bool:
        left_ns = min(until_ns - self._clock.now_ns(), WAIT_MOST_NS)
        return self._ticket.done.wait(max(0, left_ns) / 1e9)

    def close(self) -> None:
        pass


class CopyReader:
    """A restore that copies, or will copy, from another sequence; the source lists it as a reader."""

    def __init__(self, chains: dict[int, Chain], seq_id: int, span: tuple[int, int]) -> None:
        self.span = span
        self._chains = chains
        self._seq_id = seq_id
        self._is_lost = self._is_copying = False

    def lose_source(self) -> None:
        self._is_lost = True
        if self._is_copying:
            self._chains[self._seq_id].interrupt(UmaError(ErrorCode.STATE_RESTORE_FAILED, LOST))

    def check(self) -> None:
        """Raise an error if the source was lost. Raises: STATE_RESTORE_FAILED."""
        if self._is_lost:
            raise UmaError(ErrorCode.STATE_RESTORE_FAILED, LOST)

    def copying(self, transfer: Transfer) -> Steps:
        self._is_copying = True
        try:
            yield transfer
        finally:
            self._is_copying = False
