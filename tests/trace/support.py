"""Recorded ticks."""

from __future__ import annotations

from perf.simulator import MS, Job, Sim
from uma_core.engine.fake.cost import CPU_SHAPE, FakeCost
from uma_core.policy.config import SchedulerConfig
from uma_core.trace.lines import Lines, Tick
from uma_core.types import Priority


def busy_second(cost: FakeCost = CPU_SHAPE, **knobs: float) -> list[Tick]:
    """Record a busy second: a chat, background prompts and streams, and two clients, with noise, so that corrections
    and margins move.
    """
    sim = Sim(cost, config=SchedulerConfig(**knobs), keep_states=True, noise=0.03)
    sim.submit(Job(32, 40))
    for i in range(3):
        sim.submit(Job(400, 20, Priority.BACKGROUND, 2, at_ns=100 * MS * i))
    sim.run()
    return [Tick(state, plan, after[0].reports) for (state, plan), after in zip(sim.log, sim.log[1:], strict=False)]


def lines_of(ticks: list[Tick]) -> list[str]:
    lines = Lines()
    return [line for tick in ticks for line in lines.of(tick)]
