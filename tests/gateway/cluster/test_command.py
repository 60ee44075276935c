"""`uma-gateway cluster` without a running cluster."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.late import Late, needs_ray
from uma_core.errors import UmaError
from uma_gateway.cli import main
from uma_gateway.cluster.settings import parse

ray = Late("ray")
COMMAND = "uma_gateway.cluster.command"
command = Late(COMMAND)
pytestmark = needs_ray

SETTINGS = {"models": [{"name": "m", "daemon": []}]}


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str = "", **_: Any) -> None:
        assert address == "auto", "a Ray cluster is started"
        raise ConnectionError("none is found")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for Ray Serve in a cluster of two nodes. `there`: what runs of it; `rows`: what the nodes report."""
    serve = SimpleNamespace(start=lambda **_: None, run=lambda *_, **__: None, there=None, rows=[])
    monkeypatch.setattr(f"{COMMAND}.connect", lambda *_, **__: None)
    monkeypatch.setattr(f"{COMMAND}.n_alive", lambda: 2)
    monkeypatch.setattr(f"{COMMAND}.serve", serve)
    monkeypatch.setattr(f"{COMMAND}._get_global_client", lambda **_: serve.there)
    monkeypatch.setattr(f"{COMMAND}._about", lambda: serve.rows)
    return serve


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command that fails says."""
    monkeypatch.setattr("sys.argv", ["uma-gateway", "cluster", *words])
    assert main() == 1
    return capsys.readouterr().err


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("name", ["status", "down"])
def test_without_a_cluster_it_says_so_and_starts_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert "no cluster runs there: start one with" in told(monkeypatch, capsys, name)


@pytest.mark.usefixtures("no_ray")
def test_up_does_not_leave_a_cluster_behind_that_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A Ray that a program starts ends with the program: with `--detach` nothing would be left that answers."""
    config = tmp_path / "cluster.yaml"
    config.write_text("models: [{name: m}]")
    words = ("up", "--config", str(config), "--detach")
    assert "run `ray start --head` first" in told(monkeypatch, capsys, *words)


def test_an_address_where_nothing_listens_is_not_given_to_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray looks for a cluster there for minutes, and Ctrl-C does not end it."""

    def refuse(place: tuple[str, int], timeout_s: float) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connection refused by {place[0]} {place[1]}")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray is asked"))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    error = told(monkeypatch, capsys, "status", "--address", "[fd00::1]:6379")
    assert "cannot be reached at [fd00::1]:6379: Connection refused by fd00::1 6379" in error


def test_the_proxy_goes_on_until_the_application_has_ended(
    monkeypatch: pytest.MonkeyPatch, serve: SimpleNamespace
) -> None:
    """Serve's shutdown ends its proxy at once, and with it every answer."""
    did: list[str] = []
    left = [{command.APPLICATION: "DELETING"}, {command.APPLICATION: "DELETING"}, {}]

    def status() -> SimpleNamespace:
        did.append("status")
        return SimpleNamespace(applications=left.pop(0))

    serve.there = object()
    serve.delete = lambda name, _blocking: did.append(f"delete {name} {_blocking}")
    serve.status, serve.shutdown = status, lambda: did.append("shutdown")
    monkeypatch.setattr(f"{COMMAND}.LOOK_S", 0.001)
    command.down("")
    assert did == [f"delete {command.APPLICATION} False", "status", "status", "status", "shutdown"]


def test_down_stops_a_cluster_that_has_ended_meanwhile(serve: SimpleNamespace) -> None:
    did: list[str] = []

    def status() -> None:
        raise ray.exceptions.RayActorError

    serve.there, serve.delete = object(), lambda *_, **__: None
    serve.status, serve.shutdown = status, lambda: did.append("shutdown")
    command.down("")
    assert did == ["shutdown"]


def test_up_names_the_nodes_that_run_behind_other_processes(serve: SimpleNamespace) -> None:
    serve.rows = [{"node": "early", "niceness": 0}, {"node": "late", "niceness": 15}]
    said: list[str] = []
    assert command.up(parse(SETTINGS), False, said.append) == 0
    [warning] = [line for line in said if "niceness" in line]
    assert "late" in warning and "RAY_worker_niceness=0" in warning


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 8081), ("0.0.0.0", 8080)])
def test_a_cluster_that_listens_elsewhere_is_not_brought_to_other_settings(
    serve: SimpleNamespace, host: str, port: int
) -> None:
    """Serve would go on to listen where it does, perhaps for everybody."""
    ran: list[str] = []
    serve.there = SimpleNamespace(http_config=SimpleNamespace(host=host, port=port))
    serve.start, serve.run = lambda **_: ran.append("start"), lambda *_, **__: ran.append("run")
    with pytest.raises(UmaError, match=rf"listens on http://{host}:{port} until"):
        command.up(parse(SETTINGS), False, ran.append)
    assert not ran


@pytest.mark.parametrize(
    ("message", "words"),
    [("Traceback\n  File\nUmaError: no key file\n", "UmaError: no key file"), ("", "Deploying failed: gateway")],
)
def test_up_tells_in_one_line_why_the_cluster_does_not_run(serve: SimpleNamespace, message: str, words: str) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise RuntimeError("Deploying failed:\ngateway")

    failed = {"nodes": SimpleNamespace(message=""), "gateway": SimpleNamespace(message=message)}
    status = SimpleNamespace(applications={command.APPLICATION: SimpleNamespace(deployments=failed)})
    serve.run, serve.status = run, lambda: status
    with pytest.raises(UmaError, match=words):
        command.up(parse(SETTINGS), False, print)


def test_a_node_that_hangs_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"models": {"m": {"state": "ready", "requests": 3, "idle_s": 0.0, "restarts": 0}}}

    class Asked:
        def __init__(self, name: str) -> None:
            self.name = name

        def result(self, timeout_s: float) -> dict[str, Any]:
            if self.name == "hung":
                raise TimeoutError
            return {"name": "well", "node": "well-node", **there}  # any node answers for one that has left

    monkeypatch.setattr(f"{COMMAND}.connect", lambda *_, **__: None)
    monkeypatch.setattr(f"{COMMAND}._handle", lambda method: SimpleNamespace(remote=Asked))
    nodes = {name: f"{name}-node" for name in ("well", "hung", "left")}
    monkeypatch.setattr("uma_gateway.cluster.replicas.running", lambda deployment: nodes)
    lines = [line.split() for line in command.table(command.status("")).splitlines()[1:]]
    assert lines == [
        ["well-node", "m", "ready", "3", "0", "0"],
        ["hung-node", "does", "not", "answer"],
        ["left-node", "does", "not", "answer"],
    ]
