"""Predicts how long a request that arrived now would wait until its own prompt is read. A router of several daemons
uses this figure.
"""

from __future__ import annotations

from uma_core.executor.executor import Executor, device_view
from uma_core.executor.queue_positions import expected_waits, unread_ns
from uma_core.policy.memory import PolicyMemory
from uma_core.policy.state import SchedulerState
from uma_core.types import Phase, Priority


def predicted_waits_ms(executor: Executor, now_ns: int) -> dict[str, float]:
    """By priority. On the compute thread.

    A new request waits for a sequence, and for the prompts that are read before its own: the longer wait counts.
    """
    table = executor.table
    device, config, memory = device_view(executor.engine), executor.config, PolicyMemory()
    state = SchedulerState(executor.n_ticks, now_ns, table.views(), device, config, executor.cost, (), memory)
    running = [view for view in state.sessions if view.seq_id >= 0]
    waiting = [view for view in state.sessions if view.seq_id < 0]
    waits = {}
    for priority in Priority:
        before = [view for view in waiting if view.priority <= priority]
        reading = [view for view in running if view.phase is Phase.PREFILL and view.priority <= priority]
        prompts_ns = sum(unread_ns(state, view) for view in (*before, *reading))
        seq_ns = expected_waits(state, running, before, table.mean_answer)[-1][0]
        waits[priority.name.lower()] = round(max(seq_ns, prompts_ns) / 1e6, 3)
    return waits
