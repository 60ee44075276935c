"""Repeats that run beside each other: which lane measures what, on which cores, and how the results are put
together.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perf import harness
from perf.driver import Endpoint, frames_endpoint
from perf.harness import Job, Plan
from perf.lanes import cores_of_lanes, join, lanes_of, run_beside
from perf.load import Sizing
from perf.results import Cell, Results, load
from perf.servers import Server, ServerError, Settings
from tests.perf.fake_server import uds_server
from tests.perf.test_harness import Scripted


class AtModel(Scripted):
    """Lanes are processes, so everything that a server needs to know must be in its settings."""

    def endpoint(self) -> Endpoint:
        return frames_endpoint(str(self.settings.model.with_suffix(".sock")))

    def counters(self) -> dict[str, float]:
        return {"tick_overhead_ms.sum": 0.0}

    def start(self) -> None:
        super().start()
        self.log_path.with_suffix(".cores").write_text(",".join(map(str, sorted(os.sched_getaffinity(self.pid)))))


def make(label: str, settings: Settings, folder: Path) -> Server:
    harness._SETTLE_S = 0.0  # in a lane's process: nothing is computed here that would have to end
    return AtModel(label, settings, folder)


def make_none(label: str, settings: Settings, folder: Path) -> Server:
    if "lane-1" in str(folder):
        raise ServerError("no such server")
    return AtModel(label, settings, folder)


def plan_of(socket_path: Path, out: Path, *jobs: Job) -> Plan:
    return Plan(jobs, str(socket_path.with_suffix(".gguf")), 1, out, Sizing())


needs_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="two cores for two lanes"
)


@needs_cores
def test_lanes_share_the_repeats_and_no_core(tmp_path: Path, socket_path: Path) -> None:
    plan = plan_of(socket_path, tmp_path, Job("solo", ("uma", "llama-server"), 3, peer_repeats=2))
    with uds_server(socket_path.with_suffix(".sock")) as server:
        results = run_beside(plan, 2, make, Results({}, "c", "d", {}), lambda text: None)
    assert {label: len(cell.figures) for label, cell in results.cells["solo"].items()} == {"uma": 3, "llama-server": 2}
    assert load(tmp_path).cells["solo"]["uma"].errors == []
    names = {path.name for path in (tmp_path / "tokens").iterdir()}
    assert names == {f"solo.{label}.r{i}.csv" for label, n in (("uma", 3), ("llama-server", 2)) for i in range(n)}
    chats = [r["prompt"] for r in server.requests if r["id"] == "chat"]
    assert len(chats) == 5 and len(set(chats)) == 3  # both servers get a repeat's prompt, and no other repeat has it
    used = [set((tmp_path / f"lane-{i}" / "logs" / "model-4" / "uma.cores").read_text().split(",")) for i in range(2)]
    assert used[0] and used[1] and not used[0] & used[1]


@needs_cores
def test_a_failed_lane_fails_the_run(tmp_path: Path, socket_path: Path) -> None:
    plan = plan_of(socket_path, tmp_path, Job("solo", ("uma",), 2))
    with uds_server(socket_path.with_suffix(".sock")), pytest.raises(ServerError, match="lanes 1 failed"):
        run_beside(plan, 2, make_none, Results({}, "c", "d", {}), lambda text: None)


def test_no_lane_is_without_a_repeat(tmp_path: Path, socket_path: Path) -> None:
    plan = plan_of(socket_path, tmp_path, Job("solo", ("uma",), 2), Job("crowd", ("uma",), 3))
    assert [lane.lane for lane in lanes_of(plan, 8)] == [(0, 3), (1, 3), (2, 3)]
    assert [lane.lane for lane in lanes_of(plan, 2)] == [(0, 2), (1, 2)]


def test_cores_are_neighbours_and_enough() -> None:
    assert cores_of_lanes(range(16), 5, 2)[:2] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ServerError, match="8 cores; there are 7"):
        cores_of_lanes(range(7), 4, 2)


def test_figures_are_joined_in_the_order_of_repeats() -> None:
    lanes = [Results({}, "c", "d", {}, titles={"solo": "alone"}, allocator_warnings={"uma": 1}) for _ in range(2)]
    lanes[0].cells["solo"] = {"uma": Cell([{"x": 0.0}, {"x": 2.0}, {"x": 4.0}], ["repeat 2: broken"])}
    lanes[1].cells["solo"] = {"uma": Cell([{"x": 1.0}, {"x": 3.0}]), "llama-server": Cell([{"x": 9.0}])}
    results = Results({}, "c", "d", {})
    join(results, lanes)
    assert results.cells["solo"]["uma"].values("x") == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert results.cells["solo"]["uma"].errors == ["repeat 2: broken"]
    assert results.cells["solo"]["llama-server"].values("x") == [9.0]
    assert results.allocator_warnings == {"uma": 2}
