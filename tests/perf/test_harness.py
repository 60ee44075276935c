"""The harness end to end on a scripted server: what it runs, in which order, and what it leaves on disk."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from perf import harness, report
from perf.driver import Endpoint, frames_endpoint
from perf.harness import Harness, Job, Plan
from perf.load import Ask, Phase, Sizing
from perf.results import Results, load
from perf.servers import Server, ServerError, Settings, running
from tests.perf.fake_server import frame, uds_server, uma_script


class Scripted(Server):
    """A process that sleeps, and a socket on which the test answers."""

    path: Path

    def command(self) -> list[str]:
        return ["sleep", "60"]

    def endpoint(self) -> Endpoint:
        return frames_endpoint(str(self.path))

    def is_ready(self) -> bool:
        return True

    def counters(self) -> dict[str, float]:
        return {"tick_overhead_ms.sum": 1.0}

    def start(self) -> None:
        self.pids = [*getattr(self, "pids", ()), 0]
        super().start()
        self.pids[-1] = self.pid


@pytest.fixture
def made(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    Scripted.path = socket_path
    monkeypatch.setattr(harness, "_SETTLE_S", 0.0)  # nothing is computed here that would have to end
    return []


def run(made: list[Scripted], plan: Plan) -> tuple[Results, list[str]]:
    said: list[str] = []

    def make(label: str, settings: Settings, folder: Path) -> Server:
        made.append(Scripted(label, settings, folder))
        return made[-1]

    results = Results({}, "c", "d", {})
    Harness(plan, make, results, said.append).run()
    return results, said


def plan_of(tmp_path: Path, *jobs: Job, max_minutes: float = 5.0) -> Plan:
    return Plan(jobs, str(tmp_path / "m.gguf"), 1, tmp_path / "out", Sizing(), max_minutes=max_minutes, quiet_cores=1e9)


def test_repeats_alternate_the_order_and_all_is_stored(tmp_path: Path, socket_path: Path, made: list[Scripted]) -> None:
    with uds_server(socket_path):
        results, said = run(made, plan_of(tmp_path, Job("solo", ("a", "b"), 2), Job("crowd", ("a",), 1)))
    order = [line.split()[:3] for line in said if line.startswith("  ")]
    assert [(s, n, label.rstrip(":")) for s, n, label in order] == [
        ("solo", "#1", "a"),
        ("solo", "#1", "b"),
        ("crowd", "#1", "a"),
        ("solo", "#2", "b"),
        ("solo", "#2", "a"),
    ]
    assert len(results.cells["solo"]["b"].figures) == 2 and results.cells["solo"]["b"].errors == []
    assert results.cells["crowd"]["a"].figures[0]["done_n"] == 24
    stored = load(tmp_path / "out")
    assert stored.cells["solo"]["a"].spread("ttft_ms").n == 2
    names = {path.name for path in (tmp_path / "out" / "tokens").iterdir()}
    assert names == {"solo.a.r0.csv", "solo.a.r1.csv", "solo.b.r0.csv", "solo.b.r1.csv", "crowd.a.r0.csv"}
    assert "24 clients" in report.summary(results)
    with pytest.raises(ServerError):
        _ = made[0].pid


def test_peers_take_part_in_the_first_repeats_only(tmp_path: Path, socket_path: Path, made: list[Scripted]) -> None:
    labels = ("uma", "llama-server", "uma:guard-off")
    with uds_server(socket_path):
        results, said = run(made, plan_of(tmp_path, Job("solo", labels, 3, peer_repeats=1)))
    assert {label: len(cell.figures) for label, cell in results.cells["solo"].items()} == {
        "uma": 3,
        "llama-server": 1,
        "uma:guard-off": 3,
    }
    assert len(results.ratios("solo", "ttft_ms", "uma", "llama-server")) == 1
    assert [line.split()[2].rstrip(":") for line in said if "#2" in line] == ["uma:guard-off", "uma"]


def test_prompts_are_unique_over_repeats_and_equal_for_both_servers(
    tmp_path: Path, socket_path: Path, made: list[Scripted]
) -> None:
    with uds_server(socket_path) as server:
        run(made, plan_of(tmp_path, Job("solo", ("a", "b"), 2)))
    chats = [r["prompt"] for r in server.requests if r["id"] == "chat"]
    assert chats[0] == chats[1] and chats[2] == chats[3] and chats[0] != chats[2]


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path, socket_path: Path, made: list[Scripted]) -> None:
    with uds_server(socket_path) as server:
        results, _ = run(made, plan_of(tmp_path, Job("agent-restart", ("a",), 1)))
    prompts = {r["id"]: r["prompt"] for r in server.requests}
    assert prompts["turn19"].startswith(prompts["turn18"]) and not prompts["cold"].startswith(prompts["turn0"])
    assert len(set(made[0].pids)) == 2 and results.cells["agent-restart"]["a"].errors == []


def test_failed_stream_is_an_error_with_its_place(tmp_path: Path, socket_path: Path, made: list[Scripted]) -> None:
    def script(request: dict[str, object]) -> list[bytes]:
        if request["id"] == "chat":
            return [frame({"id": "chat", "event": "error", "code": "E_RUNTIME_001", "message": "broken"})]
        return uma_script(request)

    with uds_server(socket_path, script):
        results, _ = run(made, plan_of(tmp_path, Job("solo", ("uma",), 1)))
    (error,) = results.cells["solo"]["uma"].errors
    assert error == "repeat 0: solo/chat: E_RUNTIME_001 broken"
    assert results.cells["solo"]["uma"].figures[0]["failed_n"] == 1


@pytest.mark.parametrize("n_lost", [0, 1])
def test_a_repeat_beside_other_programs_is_repeated_but_hides_no_lost_stream(
    tmp_path: Path, socket_path: Path, made: list[Scripted], n_lost: int
) -> None:
    def script(request: dict[str, object]) -> list[bytes]:
        is_lost = request["id"] == "chat" and [r["id"] for r in server.requests].count("chat") <= n_lost
        return uma_script({**request, "max_tokens": 3} if is_lost else request)

    plan = replace(plan_of(tmp_path, Job("solo", ("uma",), 1)), quiet_cores=-1.0)  # never quiet enough
    with uds_server(socket_path, script) as server:
        results, _ = run(made, plan)
    assert results.cells["solo"]["uma"].figures[0]["failed_n"] == n_lost
    assert [r["id"] for r in server.requests].count("chat") == 2 - n_lost


def test_an_answer_that_is_short_is_an_error_in_whatever_phase(
    tmp_path: Path, socket_path: Path, made: list[Scripted]
) -> None:
    def script(request: dict[str, object]) -> list[bytes]:
        """The chat gets half of its requested tokens when it is alone."""
        is_solo = [r["id"] for r in server.requests].count("chat0") == 1 and request["id"] == "chat0"
        return uma_script({**request, "max_tokens": 80} if is_solo else request)

    with uds_server(socket_path, script) as server:
        results, _ = run(made, plan_of(tmp_path, Job("storm", ("uma",), 1)))
    cell = results.cells["storm"]["uma"]
    assert cell.errors == ["repeat 0: solo/chat0: 80 of 160 tokens"]
    assert cell.figures[0]["failed_n"] == 1


def test_a_burden_that_is_answered_is_no_failure(tmp_path: Path, socket_path: Path, made: list[Scripted]) -> None:
    with uds_server(socket_path, lambda request: uma_script({"max_tokens": 1, **request})):
        results, _ = run(made, plan_of(tmp_path, Job("burdens", ("uma",), 1)))
    cell = results.cells["burdens"]["uma"]
    assert cell.errors == [] and cell.figures[0]["failed_n"] == 0


def test_server_that_cannot_serve_ends_the_run_before_measuring(
    tmp_path: Path, socket_path: Path, made: list[Scripted]
) -> None:
    refusal = [frame({"id": "warm", "event": "error", "code": "E_MODEL_001", "message": "nothing loaded"})]
    with uds_server(socket_path, lambda request: refusal), pytest.raises(ServerError, match="nothing loaded"):
        run(made, plan_of(tmp_path, Job("solo", ("a",), 1)))


def test_time_limit_leaves_whole_repeats_and_says_so(tmp_path: Path, socket_path: Path, made: list[Scripted]) -> None:
    with uds_server(socket_path):
        results, _ = run(made, plan_of(tmp_path, Job("solo", ("a",), 3), max_minutes=0.0))
    assert results.cells == {}
    assert results.notes == ["solo: the time was up before repeat 1 of 3"]


def test_what_the_system_does_not_say_is_unknown_not_nothing(
    tmp_path: Path, socket_path: Path, made: list[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "machine_cpu_s", lambda: math.nan)
    with uds_server(socket_path):
        results, _ = run(made, plan_of(tmp_path, Job("solo", ("uma",), 1)))
    assert math.isnan(results.cells["solo"]["uma"].figures[0]["foreign_cores"])


def test_counts_since_the_start_do_not_pass_for_those_of_a_phase(
    tmp_path: Path, socket_path: Path, made: list[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look may fail, for example when a busy server does not answer in time."""
    looks = iter([{}, {"tokens_total": 9000.0}, {"tokens_total": 9016.0}])
    monkeypatch.setattr(Scripted, "counters", lambda self: next(looks))
    server = Scripted("uma", Settings(tmp_path / "m.gguf", 1, 1, 512), tmp_path)
    with uds_server(socket_path), running([server]):
        phase = Phase("warm-up", (Ask("warm", 8, 16),))
        assert [harness.run_phase(server, phase, seed).counters for seed in "ab"] == [{}, {"tokens_total": 16.0}]
