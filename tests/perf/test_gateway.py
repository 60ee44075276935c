"""Our daemon is measured through its gateway: what is asked, that the work is the same, and what the gateway itself
costs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perf import cli, gateway, report
from perf.criteria import ON_HTTP, Against, Criterion, judge
from perf.driver import Driver, frames_endpoint, sse_endpoint
from perf.harness import Job
from perf.load import BURDENS, Ask, Phase
from perf.peers import HTTP, OURS, make_server, through_http
from perf.servers import running
from perf.wire import chat_request
from tests.perf.made import make, rows
from tests.perf.test_servers import settings

ASKS = (Ask("a", 40, 30), Ask("b", 40, 30, priority="background"), Ask("c", 40, 30, has_schema=True))


def test_it_counts_as_ours() -> None:
    assert through_http(OURS) == HTTP and through_http(f"{OURS}:guard-off") == f"{HTTP}:guard-off"
    assert Job("solo", (OURS, HTTP, "llama-server"), 3, peer_repeats=1).in_turn(2) == (OURS, HTTP)


def test_its_daemon_is_started_like_ours(tmp_path: Path) -> None:
    ours, http = (make_server(f"{name}:guard-off", settings(tmp_path), tmp_path).command() for name in (OURS, HTTP))
    assert [word for word in ours if not word.endswith(".sock")] == [
        word for word in http if not word.endswith(".sock")
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    server = gateway.PacedServer(0.1, tmp_path_factory.mktemp("paced"))
    with running([server]):
        yield server


def test_the_gateway_and_the_socket_do_the_same_work(server) -> None:
    for endpoint in (
        server.endpoint(),
        frames_endpoint(str(server.socket_path)),
        sse_endpoint("127.0.0.1", server.port, chat_request),
    ):
        before = server.counters()["tokens_generated_total"]
        logs = Driver(endpoint, Phase("p", ASKS, timeout_s=60), "seed").run()
        assert [log.error for log in logs] == ["", "", ""] and [len(log.t_tokens) for log in logs][:2] == [30, 30]
        assert server.counters()["tokens_generated_total"] - before == 90


@pytest.mark.parametrize("burden", BURDENS)
def test_burdens_are_answered(server, burden: str) -> None:
    (log,) = Driver(server.endpoint(), Phase("p", (Ask("x", 0, 0, burden=burden),), timeout_s=60), "seed").run()
    assert log.t_done and not log.error


def test_both_processes_are_counted(server) -> None:
    both, alone = server.usage(), server.gateway_usage()
    assert both.rss_mb > alone.rss_mb > 0
    before = server.gateway_cpu_ns()
    Driver(server.endpoint(), Phase("p", ASKS[:1]), "seed").run()
    assert server.gateway_cpu_ns() > before


def test_what_it_costs_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COUNTS", (1, 2)), ("N_TOKENS", 20), ("N_ROUNDS", 1), ("N_FIRST", 2)):
        monkeypatch.setattr(gateway, name, value)
    (figures,) = gateway.measure(1, 0.1, tmp_path)
    each = {f"x{n}_{name}" for n in (1, 2) for name in ("token_us", "token_all_us", "request_us")}
    assert set(figures) == {*each, "first_ms", "first_later_ms"}
    assert figures["x1_token_all_us"] > 0 and figures["x1_request_us"] > 0 and figures["first_ms"] > 0


def test_it_is_held_against_the_socket_repeat_by_repeat() -> None:
    results = make({"throughput": {OURS: rows("tok_s", 100, 200), HTTP: rows("tok_s", 98, 198)}})
    verdict = judge(results, next(c for c in ON_HTTP if c.scenario == "throughput"))
    assert (verdict.low, verdict.high, verdict.is_met) == (0.98, 0.99, True)
    table = report.scenario_table(results, "throughput")
    assert "uma-http / uma" in table and "0.985" in table
    assert Criterion("x", "x", "tok_s", 0.97, Against.SOCKET, is_floor=True).target == "≥ 0.97x socket"


def test_the_rows_of_the_socket_hold_through_http_too() -> None:
    assert {c.scenario for c in ON_HTTP} >= {"storm", "paste", "crowd", "throughput", "solo"} and all(
        c.ours == HTTP for c in ON_HTTP
    )


@pytest.mark.parametrize("command", ["run", "accept"])
def test_the_command_line_asks_for_it(command: str) -> None:
    assert "--http" in CliRunner().invoke(cli.main, [command, "--help"]).output
