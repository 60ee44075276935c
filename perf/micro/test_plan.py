"""What planning a tick costs: 16, 1,000 and 10,000 sessions. Targets: 100 µs at 16, 2 ms at 1,000."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from perf import states
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.calibrate import guess
from uma_core.policy.memory import PolicyMemory
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import check_plan
from uma_core.policy.state import DeviceView, SchedulerState, SessionView
from uma_core.types import Phase, Priority

SECOND = 1_000_000_000
N_SEQ = 16


def device(free_seqs: tuple[int, ...]) -> DeviceView:
    return states.DEVICE._replace(
        n_batch=512,
        n_seq_max=N_SEQ,
        n_ctx=65_536,
        free_seqs=free_seqs,
        n_cells_free=65_536 - 4096 * (N_SEQ - len(free_seqs)),
    )


def view(i: int) -> SessionView:
    """The first twelve decode (half of them for background clients), two read prompts, the rest wait."""
    phase = Phase.DECODE if i < 12 else Phase.PREFILL if i < 14 else Phase.QUEUED
    n_past = 300 if phase is Phase.DECODE else 64 if phase is Phase.PREFILL else 0
    n_prompt = 200 if phase is Phase.DECODE else 1200
    now = 100 * SECOND
    return states.WAITING._replace(
        sid=i + 1,
        seq_id=i if i < 14 else -1,
        client=i % 7,
        priority=Priority(i % 2),
        phase=phase,
        n_prompt=n_prompt,
        n_past=n_past,
        n_generated=100 if phase is Phase.DECODE else 0,
        n_max=512,
        n_cells=n_prompt + 512,
        t_queued_ns=now - (20_000 - i) * 1000,
        t_first_ns=now - SECOND if phase is Phase.DECODE else 0,
        t_last_ns=now - 20_000_000 if phase is Phase.DECODE else 0,
        t_progress_ns=now - 20_000_000,
    )


def state_of(n_sessions: int) -> SchedulerState:
    seen = device((14, 15))
    return SchedulerState(
        1,
        100 * SECOND,
        tuple(view(i) for i in range(n_sessions)),
        seen,
        SchedulerConfig(),
        guess(seen),
        (),
        PolicyMemory(),
    )


@pytest.mark.parametrize("n_sessions", [1, 16, 100, 1_000, 10_000])
def test_plan(benchmark: BenchmarkFixture, n_sessions: int) -> None:
    state, pipeline = state_of(n_sessions), compose(SchedulerConfig().stages)
    plan = benchmark(pipeline, state)
    assert check_plan(state, plan) == []
    assert plan.items


@pytest.mark.parametrize("n_sessions", [16, 1_000])
def test_check_plan(benchmark: BenchmarkFixture, n_sessions: int) -> None:
    state = state_of(n_sessions)
    plan = compose(SchedulerConfig().stages)(state)
    assert benchmark(check_plan, state, plan) == []


@pytest.mark.parametrize("stage", SchedulerConfig().stages)
def test_each_stage_at_16_sessions(benchmark: BenchmarkFixture, stage: str) -> None:
    """The pipeline without one stage: the difference from `test_plan[16]` is what the stage costs."""
    state = state_of(16)
    plan = benchmark(compose([name for name in SchedulerConfig().stages if name != stage]), state)
    assert check_plan(state, plan) == []
