"""The whole cluster: two nodes from Ray's own cluster utility, the gateway as Serve's ingress, daemons on the
simulated engine.

All tests of the file share one cluster and run in this order: the last ones remove nodes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import support
from tests.daemon.support import ROOT, WAIT_S
from tests.folders import short_folder
from tests.gateway.cluster.test_faults import is_same
from tests.gateway.support import Answer, Raw
from tests.late import Late, needs_ray

ray = Late("ray")
pytestmark = [pytest.mark.daemon, needs_ray]
IS_FULL = os.environ.get("UMA_FUZZ") == "full"
N_NODES = 2
N_PARALLEL = 4  # answers that a daemon computes at once
N_MOST = 100 if IS_FULL else 24  # requests at once; each token of each passes several of Ray's processes
N_MANY = 60 if IS_FULL else 24
SLOW = [
    "--engine",
    "fake",
    "--model",
    "step-20ms",
    "--calibrate",
    "off",
    "--parallel",
    str(N_PARALLEL),
    "--n-ctx",
    "16384",
    "--log-level",
    "error",
]
SMALL = ["--engine", "fake", "--calibrate", "off", "--log-level", "error"]
LOOK_S = 0.1  # between two looks, because a request passes several of Ray's processes: each look costs 20 ms of a core
SELDOM_S = 0.5  # where seconds pass before what is waited for
# what no test reads: one monitor searches all logs without end, and the other one would start machines
HEAD = {"num_cpus": 2, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
# Ray counts and reports every call, for a dashboard that these tests do not have
QUIET = {
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PROMPT = "the beginning that every request of this test has in common, "
eventually = functools.partial(support.eventually, every_s=LOOK_S)


class Serving:
    """The cluster, over HTTP."""

    def __init__(self, cluster: Any, nodes: list[Any], port: int, settings: Any) -> None:
        self.cluster = cluster
        self.settings = settings
        self.nodes = nodes
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        with Raw(self.port) as raw:
            raw.sock.settimeout(WAIT_S)
            raw.send(method, path, body, headers)
            return Answer(raw.rest())

    def complete(self, prompt: str, n: int = 20, **body: Any) -> Answer:
        return self.ask(
            "POST", "/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **body}
        )

    def units(self) -> dict[str, dict[str, Any]]:
        """Return the status of every daemon."""
        answer = self.ask("GET", "/uma/status")
        return answer.json["units"] if answer.status == 200 else {}

    def rows(self) -> list[dict[str, Any]]:
        return self.ask("GET", "/uma/cluster").json["units"]

    def reach(self, n: int = N_NODES, model: str = "slow") -> None:
        eventually(
            lambda: sum(row["is_open"] and row["model"] == model for row in self.rows()) >= n,
            f"never {n} daemons of {model}",
            every_s=SELDOM_S,
        )


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    from ray import serve
    from ray.cluster_utils import Cluster

    from uma_gateway.cluster import niceness
    from uma_gateway.cluster.app import APPLICATION, application
    from uma_gateway.cluster.settings import parse

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        before = os.environ.copy()
        os.environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "RAY_DEDUP_LOGS": "0", "RAY_TMPDIR": str(folder)}
        os.environ |= QUIET | {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
        os.environ["UMA_CACHE_DIR"] = str(folder / "cache")
        niceness.use(os.environ)
        stack.callback(lambda: (os.environ.clear(), os.environ.update(before)))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        cluster = Cluster(initialize_head=True, head_node_args=HEAD)
        stack.callback(cluster.shutdown)
        nodes = [cluster.add_node(num_cpus=1) for _ in range(N_NODES - 1)]
        ray.init(address=cluster.address, log_to_driver=False, namespace="tests")
        stack.callback(ray.shutdown)
        settings = parse(
            {
                "models": [
                    {"name": "slow", "daemon": SLOW, "replicas": N_NODES, "memory_mb": 100},
                    {"name": "other", "daemon": SMALL, "replicas": 0, "idle_s": 1.0, "memory_mb": 100},
                    {"name": "third", "daemon": SMALL, "replicas": 0, "idle_s": 0.0, "memory_mb": 100},
                    {"name": "giant", "daemon": SMALL, "replicas": 0, "memory_mb": 1000},
                ],
                "port": port,
                "memory_mb": 200,
                "lost_s": 8.0,  # a busy machine may stop a daemon for 3 s
                "drain_s": 20.0,
                "gateway": {"log": {"access": False}},
            }
        )
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        stack.callback(serve.shutdown)
        serve.run(application(settings, N_NODES), name=APPLICATION, route_prefix="/")
        found = Serving(cluster, nodes, port, settings)
        found.reach()
        yield found


def stream(
    serving: Serving, number: int, answers: dict[int, tuple[str, str, dict[str, Any]]], n: int, **body: Any
) -> None:
    """Send one request. Return how it ended: (text, end, error)."""
    answer = serving.complete(f"{number} {PROMPT}", n, stream=True, **body)
    text, end, error = "", "nothing", {}
    for event in answer.events if answer.status == 200 else [answer.json]:
        if "error" in event:
            end, error = str(event["error"]["code"]), event["error"]
            continue
        for choice in event["choices"]:
            text += choice["text"]
            end = choice["finish_reason"] or end
    answers[number] = text, end, error


def flood(
    serving: Serving, n_requests: int, n: int = 30, **body: Any
) -> tuple[list[threading.Thread], dict[int, tuple[str, str, dict[str, Any]]]]:
    answers: dict[int, tuple[str, str, dict[str, Any]]] = {}
    threads = [
        threading.Thread(target=stream, args=(serving, i, answers, n), kwargs=body, daemon=True)
        for i in range(n_requests)
    ]
    for thread in threads:
        thread.start()
    return threads, answers


def joined(threads: list[threading.Thread], answers: dict[int, Any]) -> dict[int, Any]:
    for thread in threads:
        thread.join(WAIT_S)
    assert len(answers) == len(threads), "some requests never ended"
    return answers


@pytest.fixture(scope="module")
def whole(serving: Serving) -> dict[int, str]:
    """Return the correct answer to each request. All daemons together compute them."""
    threads, answers = flood(serving, N_MOST, 30)
    joined(threads, answers)
    assert {number: (end, error) for number, (_, end, error) in answers.items() if end != "length"} == {}
    return {number: text for number, (text, _, _) in answers.items()}


def test_the_gateway_is_that_of_one_machine(serving: Serving) -> None:
    chat = serving.ask(
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "model": "slow", "ignore_eos": True},
    )
    assert chat.status == 200 and chat.json["usage"]["completion_tokens"] == 4
    message = serving.ask(
        "POST", "/v1/messages", {"model": "slow", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    )
    assert message.status == 200 and message.json["type"] == "message"
    assert serving.ask("GET", "/health").status == 200
    assert b"<html" in serving.ask("GET", "/", None, {"accept": "text/html"}).body
    # a busy machine answers 503 for a moment; clients also ask again
    eventually(lambda: serving.ask("GET", "/v1/models").status != 503, "no daemon lists its model")
    listed = serving.ask("GET", "/v1/models")
    assert listed.status == 200 and listed.json["data"][0]["id"] == "slow", listed.body
    assert serving.ask("GET", "/health", headers={"host": "evil.example"}).status in (400, 403)


def test_all_daemons_answer_and_are_shown(serving: Serving, whole: dict[int, str]) -> None:
    units = serving.units()
    assert len(units) == N_NODES
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert all(os.getpriority(os.PRIO_PROCESS, status["pid"]) <= ours for status in units.values())
    text = serving.ask("GET", "/metrics").body.decode()
    ready = [line for line in text.splitlines() if line.startswith("uma_ready{")]
    assert len(ready) == N_NODES and all('model="slow"' in line and line.endswith(" 1") for line in ready)
    served = [line for line in text.splitlines() if line.startswith("uma_tokens_generated_total{")]
    assert all(float(line.rsplit(" ", 1)[1]) > 0 for line in served)
    assert b"<html" in serving.ask("GET", "/cluster").body


def test_a_chat_stays_where_it_began(serving: Serving) -> None:
    text = PROMPT * 8
    shares = []
    for _ in range(3):
        # a daemon that seems busy loses the prompt to a daemon that would read it sooner
        eventually(
            lambda: all(max(row.get("load_ms", {"": 0}).values()) < 1 for row in serving.rows()),
            "they never seemed idle",
        )
        answer = serving.complete(text, 5).json
        shares.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] / answer["usage"]["prompt_tokens"])
        text += answer["choices"][0]["text"] + " and what then?"
    assert min(shares[1:]) > 0.8


def test_a_model_is_loaded_when_it_is_asked_for_and_evicted_when_it_is_idle(serving: Serving) -> None:
    answer = serving.complete("hello", 4, model="other")
    assert answer.status == 200 and answer.json["model"] == "other"
    assert {entry["id"] for entry in serving.ask("GET", "/v1/models").json["data"]} == {"slow", "other"}
    eventually(
        lambda: not any(row["model"] == "other" for row in serving.rows()), "it was never evicted", every_s=SELDOM_S
    )
    assert serving.complete("hello", 4, model="other").status == 200, "and loaded again"


def test_a_model_that_fits_nowhere_is_refused_and_an_unknown_one_is_not_found(serving: Serving) -> None:
    refused = serving.complete("hello", 4, model="giant")
    assert (refused.status, refused.error["code"]) == (503, "insufficient_memory")
    unknown = serving.complete("hello", 4, model="nobody")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


@pytest.mark.fuzz
def test_a_daemon_that_crashes_is_started_again(serving: Serving) -> None:
    name, status = next((name, status) for name, status in serving.units().items() if name.endswith("/slow"))
    os.kill(status["pid"], signal.SIGKILL)
    eventually(lambda: serving.units().get(name, status)["pid"] != status["pid"], "it was not started again")
    serving.reach()


def kill_middle(serving: Serving, victim: int) -> None:
    """Kill a daemon while it has streams that have begun and others that have not."""
    eventually(lambda: max(row.get("requests", 0) for row in serving.rows()) > N_PARALLEL, "nothing runs")
    time.sleep(0.2)
    os.kill(victim, signal.SIGKILL)


@pytest.mark.fuzz  # the moment of the kill is not controlled; test_faults.py does the same over sockets
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_replica_killed_in_the_middle_of_many_streams(
    serving: Serving, whole: dict[int, str], is_resumed: bool
) -> None:
    victim = next(status["pid"] for name, status in serving.units().items() if name.endswith("/slow"))
    threads, answers = flood(serving, N_MOST, 30, **({"resume": True} if is_resumed else {}))
    kill_middle(serving, victim)
    joined(threads, answers)
    ends = Counter(end for _, end, _ in answers.values())
    assert {
        n: (text, whole[n]) for n, (text, end, _) in answers.items() if end == "length" and not is_same(text, whole[n])
    } == {}
    if is_resumed:
        assert ends == {"length": N_MOST}
    else:
        assert ends["length"] + ends["replica_lost"] == N_MOST and 1 <= ends["replica_lost"] <= N_PARALLEL, ends
        for number, (text, end, error) in answers.items():
            if end == "replica_lost":
                assert text and whole[number].startswith(text) and error["characters_sent"] == len(text)
    serving.reach()


def test_a_node_that_is_killed_takes_only_its_own_streams_along(serving: Serving, whole: dict[int, str]) -> None:
    threads, answers = flood(serving, N_MANY, 30, resume=True)
    eventually(lambda: max(row.get("requests", 0) for row in serving.rows()) > N_PARALLEL, "nothing runs")
    serving.cluster.remove_node(serving.nodes.pop(), allow_graceful=False)
    joined(threads, answers)
    assert all(end == "length" and is_same(text, whole[number]) for number, (text, end, _) in answers.items())
    counts = serving.ask("GET", "/uma/cluster").json["counts"]
    assert counts["replayed"] + counts["resumed"] > 0, "which of the two depends on how far its streams were"
    serving.nodes.append(serving.cluster.add_node(num_cpus=1))
    serving.reach()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_node_that_is_cut_off_ends_in_errors_within_the_time(serving: Serving, whole: dict[int, str]) -> None:
    """Its actor is stopped: connections stay open, but nothing comes. Ray declares it dead only much later."""
    name, status = next(item for item in serving.units().items() if item[0].endswith("/slow"))
    actor = parent_of(status["pid"])
    threads, answers = flood(serving, N_MANY, 30)
    eventually(
        lambda: next((row.get("requests", 0) for row in serving.rows() if row["unit"] == name), 0) >= N_PARALLEL,
        "nothing runs there",
    )
    time.sleep(0.2)
    os.kill(actor, signal.SIGSTOP)
    try:
        joined(threads, answers)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(actor, signal.SIGCONT)
    ends = Counter(end for _, end, _ in answers.values())
    assert ends["length"] + ends["replica_lost"] == N_MANY and ends["replica_lost"] <= N_PARALLEL, ends
    assert all(is_same(text, whole[number]) for number, (text, end, _) in answers.items() if end == "length")
    serving.reach()


@pytest.mark.fuzz
def test_a_node_that_leaves_loses_nothing(serving: Serving, whole: dict[int, str]) -> None:
    """It gets no new requests, and the requests that it has end properly."""
    threads, answers = flood(serving, N_MANY, 30)
    eventually(lambda: max(row.get("requests", 0) for row in serving.rows()) > N_PARALLEL, "nothing runs")
    drained = max(serving.rows(), key=lambda row: row.get("requests", 0))["unit"]
    assert serving.ask("POST", "/uma/cluster/drain", {"unit": drained}).json["state"] == "draining"
    joined(threads, answers)
    assert {number: (text, end) for number, (text, end, _) in answers.items()} == {
        i: (whole[i], "length") for i in range(N_MANY)
    }
    serving.ask("POST", "/uma/cluster/undrain", {"unit": drained})
    serving.reach()


def test_nothing_is_left_over(serving: Serving) -> None:
    eventually(lambda: not any(row.get("requests", 0) for row in serving.rows()), "requests are left over")


@pytest.mark.fuzz
def test_a_replica_that_serve_takes_away_finishes_what_it_has(serving: Serving, whole: dict[int, str]) -> None:
    from ray import serve

    from uma_gateway.cluster.app import APPLICATION, application

    threads, answers = flood(serving, N_MANY, 30)
    eventually(lambda: max(row.get("requests", 0) for row in serving.rows()) > N_PARALLEL, "nothing runs")
    serve.run(application(serving.settings, N_NODES - 1), name=APPLICATION, route_prefix="/")
    joined(threads, answers)
    assert {number: (text, end) for number, (text, end, _) in answers.items()} == {
        i: (whole[i], "length") for i in range(N_MANY)
    }
    eventually(lambda: len(serving.units()) == N_NODES - 1, "it did not leave")
