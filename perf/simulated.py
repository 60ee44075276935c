"""Uses of a shared model, in the simulator: cases, device profiles, and the figures that users notice.

Smaller is better for every figure. Times between tokens (TBT) are in steps of the same chat alone on the same
machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from perf.simulator import CALM, EXACT, MS, NOISY, Job, Machine, S, Sim, percentile
from uma_core.engine.fake.cost import CPU_SHAPE, GPU_SHAPE, FakeCost
from uma_core.engine.fake.engine import FakeModel
from uma_core.types import Priority

BACK = Priority.BACKGROUND
MIX_ROWS = (2, 4, 8, 16)
EARLY_NS = 3 * S  # the promise about the worst pause covers a stream's first seconds


class Profile(NamedTuple):
    """A device. `scale` multiplies lengths, `hurry` divides times of arrival: a fast device gets more of both."""

    cost: FakeCost
    model: FakeModel
    scale: int = 1
    hurry: int = 1


# The 2-core CPU with llama.cpp's kernels, with kernels for a few rows, and a data-centre GPU with either engine; see
# FakeCost for the sources.
CHEAP_ROWS = replace(
    CPU_SHAPE, decode=((1, 16.2 * MS), (8, 17.5 * MS), (16, 28.0 * MS)), prefill_cell_ns=((1, 2300.0), (512, 890.0))
)
FEW_ROWS_GPU = replace(GPU_SHAPE, decode=((1, 3.9 * MS), (8, 4.3 * MS), (16, 5.0 * MS), (32, 7.0 * MS)))
GPU_MODEL = FakeModel(n_ctx=65536, kv_bytes_per_cell=131072, weight_bytes=8_500_000_000)
PROFILES: dict[str, Profile] = {
    "cpu-llama": Profile(CPU_SHAPE, FakeModel()),
    "cpu-graph": Profile(CHEAP_ROWS, FakeModel(is_unified=True, ride_rows=MIX_ROWS)),
    "gpu-llama": Profile(GPU_SHAPE, GPU_MODEL, 2, 4),
    "gpu-graph": Profile(FEW_ROWS_GPU, replace(GPU_MODEL, is_unified=True, ride_rows=MIX_ROWS), 2, 4),
}
MACHINES: dict[str, Machine] = {
    "exact": EXACT,
    "calm": CALM,
    "noisy": NOISY,
    "misjudged": CALM._replace(misjudged=1.5),
    "guessed": CALM._replace(is_guessed=True),
}


class Run(NamedTuple):
    """One simulation that has ended."""

    chats: list[Job]  # the jobs whose time between tokens counts
    urgent: list[Job]  # the jobs whose time to the first token counts
    n_background: float  # background prompt tokens read, and tokens generated, while the chats ran
    makespan_ns: int


Figures = dict[str, float]
Case = Callable[
    [Sim, Profile], tuple[list[Job], list[Job]]
]  # submits jobs; returns the jobs whose TBT counts, and those whose TTFT counts


def _at(profile: Profile, ms: float) -> int:
    return int(ms * MS / profile.hurry)


def _storm(sim: Sim, p: Profile, n_chats: int, n_prompts: int = 6) -> tuple[list[Job], list[Job]]:
    chats = [sim.submit(Job(32, 160 * p.scale, client=10 + i, at_ns=_at(p, 100 * i))) for i in range(n_chats)]
    for i in range(n_prompts):
        sim.submit(Job(1200 * p.scale, 1, BACK, 2, at_ns=_at(p, 500 + 400 * i)))
    return chats, chats


def _late_chats(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    chat = sim.submit(Job(32, 400 * p.scale, client=1))
    sizes = (16, 200, 48, 700, 100)
    late = [sim.submit(Job(n * p.scale, 24, client=2 + i, at_ns=_at(p, 800 + 1500 * i))) for i, n in enumerate(sizes)]
    return [chat], late


def _begin_together(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    chats = [
        sim.submit(Job(n * p.scale, 60 * p.scale, client=i, at_ns=_at(p, 10 * i)))
        for i, n in enumerate((120, 160, 200, 80))
    ]
    return chats, chats


def _paste(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    sim.submit(Job(2400 * p.scale, 32, BACK, 2))
    chat = sim.submit(Job(24, 64 * p.scale, at_ns=_at(p, 500)))
    return [chat], [chat]


def _chain(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    last = None
    for _ in range(4):
        last = Job(48, 24 * p.scale, client=1, then=last)
    for _ in range(3):
        sim.submit(Job(32, 400 * p.scale, BACK, 2))
    assert last is not None
    steps = [sim.submit(last, _at(p, 1500))]
    while steps[-1].then is not None:
        steps.append(steps[-1].then)
    return steps, steps


def _mixed(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    chat = sim.submit(Job(64, 240 * p.scale, client=1))
    late = sim.submit(Job(300 * p.scale, 40 * p.scale, client=3, at_ns=_at(p, 2500)))
    sim.submit(Job(200, 120 * p.scale, BACK, 2))
    for i in range(3):
        sim.submit(Job(900 * p.scale, 24, BACK, 2, at_ns=_at(p, 300 * i)))
    return [chat], [late]


def _crowd(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    rng = random.Random(3)
    jobs = []
    for i in range(16):
        n_prompt, n_max = rng.randint(16, 700), rng.randint(4, 48)
        priority = Priority(n_prompt > 512)
        jobs.append(sim.submit(Job(n_prompt * p.scale, n_max * p.scale, priority, client=i % 5)))
    chats = [job for job in jobs if job.priority is Priority.INTERACTIVE]
    return chats, chats


def _background_only(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    jobs = [sim.submit(Job(128 * p.scale, 160 * p.scale, BACK, 2 + i % 2)) for i in range(4)]
    return [], jobs


def _deep(sim: Sim, p: Profile) -> tuple[list[Job], list[Job]]:
    """Submit a long document in the background, and a chat that also has a long history."""
    sim.submit(Job(3600, 24, BACK, 2))
    chat = sim.submit(Job(2400, 80 * p.scale, client=1, at_ns=_at(p, 200)))
    return [chat], [chat]


CASES: dict[str, Case] = {
    "storm": lambda sim, p: _storm(sim, p, 1),
    "two-chats": lambda sim, p: _storm(sim, p, 2),
    "three-chats": lambda sim, p: _storm(sim, p, 3, 3),
    "late-chats": _late_chats,
    "together": _begin_together,
    "paste": _paste,
    "chain": _chain,
    "mixed": _mixed,
    "crowd": _crowd,
    "background": _background_only,
    "deep": _deep,
}


def run(case: str, profile: Profile, machine: Machine, seed: int = 1) -> Run:
    """Run one simulation to its end."""
    sim = Sim(profile.cost, profile.model, machine=machine, seed=seed)
    chats, urgent = CASES[case](sim, profile)
    jobs = list(sim.future)
    while not all(len(chat.times) >= chat.n_max for chat in chats) and (sim.jobs or sim.future):
        _step(sim)
    n_background = sum(_work(job) for job in jobs if job.priority is BACK)
    sim.run(2_000_000)
    return Run(chats, urgent, n_background, sim.clock.now_ns())


def _step(sim: Sim) -> None:
    before = sim.clock.now_ns()
    plan = sim.tick()
    if not (plan.items or plan.admit or plan.park) and sim.clock.now_ns() - before < MS:
        sim.clock.advance(max(MS, sim.future[0].at_ns - sim.clock.now_ns()) if sim.future and not sim.jobs else MS)


def _work(job: Job) -> float:
    """Return the tokens of this job that were computed so far, in prompt tokens; a generated token counts as
    sixteen.
    """
    return min(job.n_prompt, job.n_past) + job.pending_prompt + job.chunk * job.fraction + 16 * len(job.times)


def solo(profile: Profile, machine: Machine, seed: int, n_prompt: int) -> Job:
    """Run a chat alone, long enough for a p95."""
    sim = Sim(profile.cost, profile.model, machine=machine, seed=seed + 100)
    job = sim.submit(Job(n_prompt, 400))
    sim.run()
    return job


def figures(case: str, profile: Profile, machine: Machine, seed: int = 1) -> Figures:
    """Return what users would notice in one simulation.

    `background`: seconds of the device for a thousand tokens' worth of background work.
    """
    found = run(case, profile, machine, seed)
    quick = {n: Sim(profile.cost, profile.model).cost.prompt_ns(n, 0) for n in {job.n_prompt for job in found.urgent}}
    out: Figures = {"makespan_s": found.makespan_ns / S}
    gaps = [chat for chat in found.chats if len(chat.gaps) >= 20]
    if gaps:
        alone = solo(profile, machine, seed, min(chat.n_prompt for chat in gaps)).gaps
        step, p95 = percentile(alone, 0.5), percentile(alone, 0.95)
        out["tbt_p95_x"] = max(percentile(chat.gaps, 0.95) for chat in gaps) / p95
        out["pause_x"] = max(_worst_early(chat) for chat in gaps) / step
        out["stream_x"] = max(sum(chat.gaps) / len(chat.gaps) for chat in gaps) / (sum(alone) / len(alone))
    if found.n_background:
        out["background_s"] = (
            max(chat.times[-1] for chat in found.chats) / S * 1000 / found.n_background if found.chats else 0.0
        )
    waits = [job.ttft / max(MS, quick[job.n_prompt]) for job in found.urgent]
    out["ttft_x"] = sum(waits) / len(waits)
    out["ttft_worst_x"] = max(waits)
    return {name: value for name, value in out.items() if value}


def _worst_early(chat: Job) -> int:
    worst = elapsed = 0
    for gap in chat.gaps:
        worst, elapsed = max(worst, gap), elapsed + gap
        if elapsed > EARLY_NS:
            break
    return worst


class Point(NamedTuple):
    """One row of a table of results."""

    case: str
    profile: str
    machine: str
    figure: str


def survey(
    cases: tuple[str, ...] = (), profiles: tuple[str, ...] = (), machines: tuple[str, ...] = (), n_seeds: int = 3
) -> dict[Point, float]:
    """Return all figures, each the mean over the seeds that have it."""
    out: dict[Point, float] = {}
    for case, profile, machine in _grid(cases, profiles, machines):
        seeds = range(1, 2 if MACHINES[machine] == EXACT else n_seeds + 1)
        rows = [figures(case, PROFILES[profile], MACHINES[machine], seed) for seed in seeds]
        for name in dict.fromkeys(name for row in rows for name in row):
            found = [row[name] for row in rows if name in row]
            out[Point(case, profile, machine, name)] = sum(found) / len(found)
    return out


def _grid(
    cases: tuple[str, ...], profiles: tuple[str, ...], machines: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    for case in cases or CASES:
        for profile in profiles or PROFILES:
            for machine in machines or MACHINES:
                yield case, profile, machine
