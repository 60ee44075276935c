"""The compute thread: its end."""

from __future__ import annotations

from uma_core.clock import ManualClock
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.executor.admission import AdmissionControl, Limits
from uma_core.executor.executor import Executor, device_view
from uma_core.executor.thread import CLOSE_S, ComputeThread
from uma_core.metrics.catalog import new_registry
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.calibrate import guess


def test_engines_share_the_time_to_keep_their_content_and_the_current_one_goes_first() -> None:
    """The daemon waits for the thread, not for each engine: one that takes all of it leaves nothing to the others."""
    clock, closed = ManualClock(1), list[tuple[Executor, float]]()
    thread = ComputeThread(lambda: None, clock, lambda: -1)

    class Slow(Executor):
        def close(self, timeout_s: float) -> None:
            closed.append((self, timeout_s))
            clock.advance(int(timeout_s * 1e9))

    for _ in range(2):
        engine = FakeEngine(FakeModel(), clock=clock)
        admission, cost = AdmissionControl(Limits(), clock), guess(device_view(engine))
        thread.install(Slow(engine, admission, SchedulerConfig(), cost, new_registry(), clock, ports=thread.ports))
    old, current = thread.executors
    thread.stop(0)  # before its first turn, in which the old one would retire: it has no sessions
    thread.start()
    assert thread.stop(60)
    assert closed == [(current, CLOSE_S), (old, 0.0)]
