"""Runs scenarios against servers, interleaved: in every repeat each scenario runs on all servers in turn (A B, B A, A B
...).

All servers of a group run at once, but only one gets requests at a time. An idle one must use no CPU; every phase
checks that: `foreign_cores` counts everything on the machine that is neither the server nor the client.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perf.driver import Driver
from perf.gguf_file import model_file
from perf.load import Ask, Needs, Phase, Sizing
from perf.peers import is_ours
from perf.proc import machine_cpu_s
from perf.results import TOKENS, Results, csv_name, write_tokens
from perf.scenarios import SCENARIOS
from perf.scenarios.base import Scenario
from perf.servers import Server, ServerError, Settings, running
from perf.stats import PhaseLog

MakeServer = Callable[[str, Settings, Path], Server]
Say = Callable[[str], None]
_WARM_UP = Phase("warm-up", (Ask("warm", 128, 16),), timeout_s=120.0)
_SETTLE_S = 0.3  # between phases: sequences are freed, thread pools go to sleep


@dataclass(frozen=True, slots=True)
class Job:
    """One scenario on these servers, this many times."""

    scenario: str
    labels: tuple[str, ...]
    repeats: int
    peer_repeats: float = math.inf  # other servers take part in only this many

    def in_turn(self, repeat: int) -> tuple[str, ...]:
        """Return the servers in the order of this repeat; every other repeat reverses it."""
        present = tuple(label for label in self.labels if repeat < self.peer_repeats or is_ours(label))
        return present if repeat % 2 == 0 else present[::-1]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run."""

    jobs: tuple[Job, ...]
    model: str  # a shape's name, or the path of a GGUF
    threads: int
    out: Path
    sizing: Sizing = field(default_factory=Sizing)
    n_gpu_layers: int = 0
    max_minutes: float = math.inf
    quiet_cores: float = 0.25  # with more foreign load than this, a measurement is repeated once
    n_retries: int = 1
    lane: tuple[int, int] = (0, 1)  # (i, n): the i-th of all repeats, and every n-th after it


class Harness:
    """Executes a plan; the results on disk are complete after every repeat."""

    def __init__(self, plan: Plan, make: MakeServer, results: Results, say: Say) -> None:
        self._plan = plan
        self._make = make
        self._results = results
        self._say = say
        self._t_end = time.monotonic() + plan.max_minutes * 60
        self._slowest_s: dict[str, float] = {}

    def run(self) -> Results:
        """Run the plan. Blocks until it is done or its time is up. Raises: ServerError if a server cannot start."""
        for needs, jobs in self._groups():
            servers = self._servers(needs, jobs)
            model, labels = servers[0].settings.model, ", ".join(server.label for server in servers)
            self._say(f"{model.name}: {needs.n_seq} sequences of {needs.n_ctx_seq}; starting {labels}")
            with running(servers) as up:
                self._run_group(jobs, {server.label: server for server in up})
                for server in up:
                    count = self._results.allocator_warnings
                    count[server.label] = count.get(server.label, 0) + server.n_allocator_warnings()
            self._results.save(self._plan.out)
        return self._results

    def prepare(self) -> None:
        """Make models and servers, without starting any. Raises: ServerError, BuildError."""
        for needs, jobs in self._groups():
            self._servers(needs, jobs)

    def _servers(self, needs: Needs, jobs: list[Job]) -> list[Server]:
        """Make one server for each label of the jobs; none is started."""
        folder = self._plan.out / "logs" / f"{needs.shape or 'model'}-{needs.n_seq}"
        settings = self._settings(needs)
        return [
            self._make(label, settings, folder)
            for label in dict.fromkeys(label for job in jobs for label in job.labels)
        ]

    def _groups(self) -> Iterator[tuple[Needs, list[Job]]]:
        by_needs: dict[Needs, list[Job]] = {}
        for job in self._plan.jobs:
            by_needs.setdefault(SCENARIOS[job.scenario].needs(self._plan.sizing), []).append(job)
        yield from by_needs.items()

    def _settings(self, needs: Needs) -> Settings:
        plan = self._plan
        model = model_file(needs.shape or plan.model)
        return Settings(model, plan.threads, needs.n_seq, needs.n_ctx_seq, plan.n_gpu_layers, needs.has_disk)

    def _run_group(self, jobs: list[Job], servers: dict[str, Server]) -> None:
        for server in servers.values():
            (warm,) = run_phase(server, _WARM_UP, "warm-up").streams
            if not warm.is_complete:
                raise ServerError(
                    f"{server.label} does not serve: {warm.error or 'the answer is short'}\n{server.log_tail()}"
                )
        late: set[Job] = set()
        first, step = self._plan.lane
        for repeat in range(first, max(job.repeats for job in jobs), step):
            for job in jobs:
                if repeat >= job.repeats or job in late:
                    continue
                if not self._has_time(job):
                    late.add(job)
                    self._results.notes.append(
                        f"{job.scenario}: the time was up before repeat {repeat + 1} of {job.repeats}"
                    )
                    continue
                self._run_job(job, repeat, servers)
                self._results.save(self._plan.out)

    def _has_time(self, job: Job) -> bool:
        return time.monotonic() + self._slowest_s.get(job.scenario, 0.0) < self._t_end

    def _run_job(self, job: Job, repeat: int, servers: dict[str, Server]) -> None:
        begin = time.monotonic()
        scenario = SCENARIOS[job.scenario]
        self._results.titles[scenario.name] = scenario.title
        for label in job.in_turn(repeat):
            logs = self._measure(scenario, servers[label], repeat)
            figures = scenario.measure(logs) | {"failed_n": float(sum(log.n_failed for log in logs.values()))}
            cell = self._results.cell(scenario.name, label)
            cell.figures.append(figures)
            cell.errors += [
                f"repeat {repeat}: {name}/{s.name}: {s.error or f'{len(s.t_tokens)} of {s.n_asked} tokens'}"
                for name, log in logs.items()
                for s in log.streams
                if not s.is_complete
            ]
            write_tokens(self._plan.out / TOKENS / csv_name(scenario.name, label, repeat), logs)
            self._say(f"  {scenario.name} #{repeat + 1} {label}: {_brief(figures)}")
        self._slowest_s[job.scenario] = max(self._slowest_s.get(job.scenario, 0.0), time.monotonic() - begin)

    def _measure(self, scenario: Scenario, server: Server, repeat: int) -> dict[str, PhaseLog]:
        """Run all phases; once more if other programs were busy on the machine, unless a stream was lost: that counts.
        A server that dies fails the run.
        """
        seed = f"{self._plan.sizing.seed}/{repeat}/{scenario.name}"
        for attempt in range(self._plan.n_retries + 1):
            logs = {}
            for phase in scenario.phases(self._plan.sizing):
                if phase.is_restarted:
                    server.restart()
                logs[phase.name] = run_phase(server, phase, f"{seed}/{attempt}")
            noise = max(
                (log.foreign_cpu_s * 1000.0 / log.makespan_ms for log in logs.values() if log.makespan_ms > 500.0),
                default=0.0,
            )
            if not noise > self._plan.quiet_cores or any(log.n_failed for log in logs.values()):
                break
            self._say(f"  {scenario.name} #{repeat + 1} {server.label}: others used {noise:.2f} cores")
        return logs


def run_phase(server: Server, phase: Phase, seed: str) -> PhaseLog:
    """Run one phase on one server; CPU and memory are reported separately. Raises: ServerError if the server ends."""
    driver = Driver(server.endpoint(), phase, seed)
    gc.collect()
    gc.disable()
    counters = server.counters()
    machine, client, before = machine_cpu_s(), time.process_time(), server.usage()
    try:
        streams = driver.run()
    finally:
        gc.enable()
    after = server.usage()
    client_s, server_s = time.process_time() - client, after.cpu_s - before.cpu_s
    foreign = max(machine_cpu_s() - machine - client_s - server_s, 0.0)  # in this order NaN stays NaN
    # without the first counts, those since the server's start would pass for the phase's
    changed = {k: v - counters.get(k, 0.0) for k, v in server.counters().items()} if counters else {}
    time.sleep(_SETTLE_S)
    return PhaseLog(driver.t_start, tuple(streams), server_s, client_s, foreign, after.rss_mb, driver.t_end, changed)


_BRIEF = (
    "ttft_ms",
    "ttft_p50_ms",
    "itl_p50_ms",
    "p95_x",
    "pause_3s_x",
    "slowdown_x",
    "tok_s",
    "makespan_ms",
    "failed_n",
    "foreign_cores",
)


def _brief(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {figures[name]:.4g}" for name in _BRIEF if name in figures)
