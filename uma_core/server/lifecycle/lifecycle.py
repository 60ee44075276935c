"""The daemon's state, and the ways out: drain, undrain, swap, stop.

Rules: readiness changes first; refused clients are told when to retry; a drain past its deadline ends the remaining
requests with reason `draining` and what they have generated so far. A later drain or undrain replaces an earlier one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uma_core.clock import Clock
from uma_core.config.options import Config, ns
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.thread import ComputeThread
from uma_core.server.io.loop import Loop, Timer
from uma_core.server.lifecycle.host import Host, log_failure
from uma_core.session.events import Call
from uma_core.types import FinishReason

log = logging.getLogger(__name__)

POLL_NS = 20_000_000
CUT_GRACE_NS = 2_000_000_000  # for the running decode call to return after a drain's deadline
STARTING, READY, DEGRADED, DRAINING, STOPPING = "starting", "ready", "degraded", "draining", "stopping"
STAY, EXIT, RELOAD, SWAP = "stay", "exit", "reload", "swap"
AFTER_DRAIN = {
    STAY: "no new requests until undrain",
    EXIT: "the daemon stops after the running requests",
    RELOAD: "a reload follows the running requests",
    SWAP: "another model, which does not fit beside this one, is loaded after the running requests",
}


@dataclass(slots=True)
class Drain:
    deadline_ns: int
    then: str
    t_cut_ns: int = 0  # when the remaining requests were told to end; 0: not yet
    is_aborted: bool = False
    is_over: bool = False


class Lifecycle:
    """Owned by the I/O thread. `on_exit` stops the daemon, `on_reload` reloads and then calls its argument."""

    def __init__(
        self, config: Callable[[], Config], loop: Loop, compute: ComputeThread, host: Host, clock: Clock
    ) -> None:
        self.on_exit: Callable[[], None] = loop.stop
        self.on_reload: Callable[[Callable[[], object]], object] = lambda done: done()
        self.on_change: Callable[[str], None] = lambda state: None
        self.n_in_flight: Callable[[], int] = lambda: 0  # requests without a final event, on the I/O side
        self.has_unsent: Callable[[], bool] = lambda: False  # whether bytes wait for their readers
        self.lost: UmaError | None = None  # why there is no model to serve
        self._config = config
        self._loop = loop
        self._compute = compute
        self._host = host
        self._clock = clock
        self._state = self._last = STARTING
        self._drain: Drain | None = None
        self._held: Drain | None = None  # an operator's drain during a swap, which stays in effect after it
        self._swap: tuple[Callable[[], None], Callable[[UmaError], None]] | None = None
        self._poll: Timer | None = None

    # the state

    @property
    def state(self) -> str:
        return DEGRADED if self._state == READY and self._fault() else self._state

    @property
    def is_leaving(self) -> bool:
        """Whether the process will end, now or after a drain."""
        return self._state == STOPPING or (
            self._state == DRAINING and self._drain is not None and self._drain.then == EXIT
        )

    def reason(self) -> str:
        """Return why the state is not `ready`."""
        if self._state == DRAINING and self._drain is not None:
            return AFTER_DRAIN[self._drain.then]
        return {STARTING: self._host.doing, STOPPING: "requests are being ended"}.get(self._state) or self._fault()

    def hung_ns(self) -> int:
        """Return how long the compute thread's turn has taken if that is too long; 0: it is not."""
        since, limit = self._compute.turn_since_ns, ns(self._config().engine.hang_timeout_ms)
        elapsed = self._clock.now_ns() - since
        return elapsed if since and limit and elapsed > limit else 0

    def _fault(self) -> str:
        if self.lost is not None:
            return str(self.lost)
        hung_ns = self.hung_ns()
        return f"the engine has not returned for {hung_ns / 1e9:.1f} s" if hung_ns else ""

    def gate(self) -> UmaError | None:
        """Return the error that refuses generate requests now; None: they are accepted."""
        closed = self._closed()
        if closed is None and self._state == READY and self.hung_ns():
            return UmaError(
                ErrorCode.ENGINE_HUNG, self._fault(), retry_after_ms=round(self._config().drain.retry_after_ms)
            )
        return closed

    def _closed(self) -> UmaError | None:
        retry_ms = round(self._config().drain.retry_after_ms)
        if self._state == STOPPING:
            return UmaError(ErrorCode.SHUTTING_DOWN)
        if self._state == DRAINING:
            return UmaError(ErrorCode.DRAINING, retry_after_ms=retry_ms)
        if self._state == STARTING:
            return UmaError(ErrorCode.MODEL_NOT_LOADED, self._host.doing, retry_after_ms=retry_ms)
        if self.lost is not None:
            return UmaError(ErrorCode.MODEL_NOT_LOADED, str(self.lost), retry_after_ms=retry_ms)
        return None

    def _become(self, state: str) -> None:
        self._state = state
        self._host.admission.closed = self._closed()
        self.check()

    def check(self) -> None:
        """Report a change of state since the last call. Call it regularly: hangs begin and end without an event."""
        state = self.state
        if state == self._last:
            return
        is_hang = state == DEGRADED and self.lost is None
        level = logging.ERROR if state == DEGRADED else logging.INFO
        code = f"{ErrorCode.ENGINE_HUNG.code} {ErrorCode.ENGINE_HUNG.spec.name}: " if is_hang else ""
        log.log(level, "state: %s -> %s%s", self._last, state, f" ({code}{self.reason()})" if state == DEGRADED else "")
        self._last = state
        self.on_change(state)

    def loading(self) -> None:
        """Serve nothing until `loaded`."""
        if self._state != STOPPING:
            self._become(STARTING)

    def loaded(self, lost: UmaError | None = None) -> None:
        """Serve the loaded model. `lost`: there is none to serve, and why. An earlier drain stays in effect."""
        self.lost = lost
        if self._state in (STARTING, READY):
            self._become(READY if self._drain is None else DRAINING)
        if self._state == DRAINING:
            self._schedule()

    # drain

    def drain(self, timeout_ns: int | None, then: str) -> dict[str, Any]:
        """Begin a drain. Idempotent; a later call may set another deadline or another next step."""
        self._abandon_swap(UmaError(ErrorCode.DRAINING, "a drain was requested during the reload"))
        if self._state != STOPPING:
            self._begin(timeout_ns, then)
        return self.progress()

    def _begin(self, timeout_ns: int | None, then: str) -> None:
        limit = ns(self._config().drain.deadline_ms) if timeout_ns is None else timeout_ns
        self._drain = Drain(self._clock.now_ns() + limit, then)
        self._become(DRAINING)
        self._schedule()

    def undrain(self) -> dict[str, Any]:
        self._abandon_swap(
            UmaError(ErrorCode.RELOAD_BUSY, "the reload was abandoned: undrain came before the old model was idle")
        )
        self._drain = None
        if self._state == DRAINING:
            self._become(READY if self._host.engine is not None or self.lost is not None else STARTING)
        return {"state": self.state}

    def progress(self) -> dict[str, Any]:
        view, drain = self._host.view, self._drain
        left_ms = max(0, drain.deadline_ns - self._clock.now_ns()) / 1e6 if drain is not None else 0.0
        return {
            "state": self.state,
            "remaining": self.n_remaining(),
            "estimate_ms": min(view.estimate_ms, left_ms) if view else 0.0,
            "deadline_ms": round(left_ms, 1),
            "then": drain.then if drain is not None else STAY,
        }

    def n_remaining(self) -> int:
        """Return the number of requests that still run. Only the compute side knows those whose client is gone."""
        return max(len(self._host.rows), self.n_in_flight())

    def _schedule(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
        self._poll = self._loop.call_later(POLL_NS, self._check_drain)

    def _check_drain(self) -> None:
        drain = self._drain
        if self._state != DRAINING or drain is None or drain.is_over:
            return
        is_late = self._clock.now_ns() >= drain.deadline_ns
        if self.n_remaining() == 0 and (is_late or not self.has_unsent()):
            self._drained(drain)
            return
        if is_late:
            self._enforce_deadline(drain)
        self._schedule()

    def _enforce_deadline(self, drain: Drain) -> None:
        """End the remaining requests; if that does not help, abort the decode call; then stop waiting for it."""
        now = self._clock.now_ns()
        if not drain.t_cut_ns:
            drain.t_cut_ns = now
            log.warning("drain deadline passed: ending %d requests", self.n_remaining())
            self._compute.submit(Call(self._cut, log_failure("ending the remaining requests")))
        elif now - drain.t_cut_ns > CUT_GRACE_NS and not drain.is_aborted:
            drain.is_aborted = True
            for executor in self._compute.executors:
                executor.engine.abort()
        elif now - drain.t_cut_ns > 2 * CUT_GRACE_NS and self._compute.turn_since_ns < drain.t_cut_ns:
            self._give_up(drain)  # the compute thread is stuck, or the remaining requests are not on it

    def _give_up(self, drain: Drain) -> None:
        """End a drain that something waits for, although the engine or a tokeniser does not return."""
        if drain.then == EXIT:
            self.stop()
        elif drain.then == SWAP:
            self._drain = self._held
            self._abandon_swap(UmaError(ErrorCode.ENGINE_HUNG))
            self._become(READY if self._drain is None else DRAINING)

    def _cut(self) -> None:
        for executor in self._compute.executors:
            executor.end_all(FinishReason.DRAINING)

    def _drained(self, drain: Drain) -> None:
        log.info("drained")
        drain.is_over = True
        if drain.then == EXIT:
            self.stop()
        elif drain.then == RELOAD:
            self.on_reload(lambda: self._reloaded(drain))
        elif drain.then == SWAP and self._swap is not None:
            (on_drained, _), self._swap = self._swap, None
            on_drained()

    def _reloaded(self, drain: Drain) -> None:
        if self._drain is drain:  # otherwise a later drain replaced it
            self.undrain()

    # swap: the old model must go before the new one fits

    def swap(self, on_drained: Callable[[], None], on_abandoned: Callable[[UmaError], None]) -> None:
        """Drain with the configured deadline, then call `on_drained`; or `on_abandoned` if another command intervenes.

        A daemon that an operator drained stays drained afterwards. Raises: SHUTTING_DOWN.
        """
        if self.is_leaving:
            raise UmaError(ErrorCode.SHUTTING_DOWN)
        if self._state == DRAINING and self.n_remaining() == 0:
            on_drained()
            return
        self._held = self._drain

        def go_on() -> None:
            self._drain = self._held
            on_drained()

        self._swap = (go_on, on_abandoned)
        self._begin(None, SWAP)

    def _abandon_swap(self, why: UmaError) -> None:
        if self._swap is not None:
            (_, on_abandoned), self._swap = self._swap, None
            on_abandoned(why)

    # stop

    def stop(self) -> None:
        """Stop now. The loop returns, and then the running requests get their final events."""
        if self._state == STOPPING:
            return
        self._abandon_swap(UmaError(ErrorCode.SHUTTING_DOWN))
        self._become(STOPPING)
        self.on_exit()
