"""Runs repeats at the same time, for scenarios of many minutes on a machine with many cores.

A lane is a process on its own cores. It takes every n-th repeat, and measures its servers in turn as usual. Lanes
share memory bandwidth and the last-level cache, so absolute times are not comparable with those of sequential repeats.
The two sides of a pair have similar neighbours, not the same ones.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

from perf.harness import Harness, MakeServer, Plan, Say
from perf.results import TOKENS, Results, load
from perf.servers import ServerError, asked_to_end


def run_beside(plan: Plan, n_lanes: int, make: MakeServer, results: Results, say: Say) -> Results:
    """Run the lanes. Blocks until all are done; their results are joined in the order of repeats. Raises:
    ServerError.
    """
    lanes = lanes_of(plan, n_lanes)
    cores = cores_of_lanes(sorted(os.sched_getaffinity(0)), len(lanes), plan.threads)
    say(f"{len(lanes)} lanes of {len(cores[0])} cores")
    Harness(plan, make, results, say).prepare()  # otherwise every lane would make the model and build the peer
    context = multiprocessing.get_context("spawn")
    empty = dataclasses.replace(results, cells={}, titles={}, allocator_warnings={}, notes=[])
    workers: list[BaseProcess] = [
        context.Process(target=_lane, args=(lane, mine, make, empty)) for lane, mine in zip(lanes, cores, strict=True)
    ]
    _wait(workers)
    join(results, [load(lane.out) for lane in lanes])
    for lane in lanes:
        shutil.copytree(lane.out / TOKENS, plan.out / TOKENS, dirs_exist_ok=True)
    results.save(plan.out)
    return results


def lanes_of(plan: Plan, n_lanes: int) -> list[Plan]:
    """Return the plan of each lane; at most as many lanes as repeats. Load from other lanes never causes a repeat of
    a measurement.
    """
    n = min(n_lanes, max(job.repeats for job in plan.jobs))
    return [dataclasses.replace(plan, lane=(i, n), out=plan.out / f"lane-{i}", quiet_cores=math.inf) for i in range(n)]


def cores_of_lanes(cores: Sequence[int], n_lanes: int, n_threads: int) -> list[list[int]]:
    """Return neighbouring cores for each lane, equally many. Raises: ServerError if a server's threads would share
    them.
    """
    n_each = len(cores) // n_lanes
    if n_each < n_threads:
        raise ServerError(
            f"{n_lanes} lanes of {n_threads} threads need {n_lanes * n_threads} cores; there are {len(cores)}"
        )
    return [list(cores[i * n_each : (i + 1) * n_each]) for i in range(n_lanes)]


def join(results: Results, lanes: Sequence[Results]) -> None:
    """Interleave the lanes' figures: the first of each lane, then the second of each."""
    for lane in lanes:
        results.titles |= lane.titles
        results.notes += lane.notes
        for label, n in lane.allocator_warnings.items():
            results.allocator_warnings[label] = results.allocator_warnings.get(label, 0) + n
    for scenario in results.titles:
        for label in dict.fromkeys(label for lane in lanes for label in lane.cells.get(scenario, {})):
            found = [lane.cells[scenario][label] for lane in lanes if label in lane.cells.get(scenario, {})]
            cell = results.cell(scenario, label)
            cell.errors += [error for each in found for error in each.errors]
            for i in range(max(len(each.figures) for each in found)):
                cell.figures += [each.figures[i] for each in found if i < len(each.figures)]


def _lane(plan: Plan, cores: Sequence[int], make: MakeServer, results: Results) -> None:
    os.sched_setaffinity(0, cores)  # processes that the lane starts inherit them
    Harness(plan, make, results, _say_in(plan.lane[0])).run()


def _say_in(lane: int) -> Say:
    return lambda text: print(f"[{lane}] {text}", flush=True)


def _wait(workers: Sequence[BaseProcess]) -> None:
    """Start the workers and wait. None is left running in any case. Raises: ServerError if one fails."""
    try:
        with asked_to_end():
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
                worker.join()
    failed = [i for i, worker in enumerate(workers) if worker.exitcode]
    if failed:
        raise ServerError(
            f"lanes {', '.join(map(str, failed))} failed; their messages are above, their logs in lane-N/logs"
        )
