"""`uma-gateway cluster …`: start, show, drain and stop a cluster.

The command line imports it only for these commands.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException

from uma_core.errors import ErrorCode, UmaError
from uma_gateway.cluster import niceness, replicas
from uma_gateway.cluster.app import APPLICATION, NODES, application, n_alive
from uma_gateway.cluster.settings import ClusterSettings

CONNECT_S = 10.0  # for a machine that does not answer: one that does connects or refuses at once
LOOK_S = 0.2  # between two looks whether the application has ended, or which nodes there are
ABOUT_S = 10.0  # for the reports of all nodes
NOT_THERE = "no cluster runs there: start one with `uma-gateway cluster up`"
NO_RAY = "no Ray runs here, and one that this command starts would end with it: run `ray start --head` first"


def connect(address: str, is_started: bool = False, absent: str = NOT_THERE) -> None:
    """Connect to the Ray cluster at an address, or to this machine's. `is_started`: start one here if there is none;
    otherwise `absent` is the message of the error.

    Raises: UmaError.
    """
    if ray.is_initialized():
        return
    _check_listener(address)
    try:
        try:
            ray.init(address=address or "auto", log_to_driver=False, namespace=APPLICATION)
        except ConnectionError:
            if address:
                raise
            if not is_started:
                raise _config_invalid(absent) from None
            niceness.use(os.environ)
            ray.init(log_to_driver=False, namespace=APPLICATION, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UmaError(
            ErrorCode.CONFIG_INVALID, f"the Ray cluster cannot be reached: {' '.join(str(error).split())[:300]}"
        ) from None


def _check_listener(address: str) -> None:
    """Check that something listens at host:port: Ray would look for it for minutes, deaf to signals.

    Raises: UmaError.
    """
    host, _, port = address.rpartition(":")
    # Ray knows what else an address may be, and reads a loopback address as this machine's own
    if not host or "/" in host or not port.isdecimal() or host == "localhost" or host.startswith("127."):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        text = f"the Ray cluster cannot be reached at {address}: {getattr(error, 'strerror', None) or error}"
        raise UmaError(ErrorCode.CONFIG_INVALID, text) from None


def _config_invalid(message: str) -> UmaError:
    return UmaError(ErrorCode.CONFIG_INVALID, message)


def up(settings: ClusterSettings, is_foreground: bool, tell: Any) -> int:
    """Start the application, or apply these settings to a running one.

    In the foreground: run until told to stop, then stop the application.
    """
    connect(settings.address, is_foreground, NO_RAY)
    n_nodes = _wanted(settings)
    _check_address(settings)
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": settings.host, "port": settings.port})
        serve.run(application(settings, n_nodes), name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"the cluster does not run: {_why(error)}") from None
    tell(f"{n_nodes} node{'s' * (n_nodes != 1)}, listening on http://{settings.host}:{settings.port}")
    _tell_of_niceness(tell)
    if not is_foreground:
        return 0
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    tell("stopping: running answers get their time")
    stopped.clear()
    _stop(stopped)
    return 0


def _stop(hurried: threading.Event) -> None:
    """Stop the application, then Serve. Serve's own shutdown would end its proxy first, and with it every answer.
    `hurried`: is set if the running answers get no more time.
    """
    with contextlib.suppress(RayError, RayServeException):  # another program has stopped Serve
        serve.delete(APPLICATION, _blocking=False)
        while APPLICATION in serve.status().applications and not hurried.wait(LOOK_S):
            pass
    serve.shutdown()


def _why(error: RuntimeError) -> str:
    """Return in one line why Serve did not start the application. Serve's error names only a deployment; the
    deployment's message ends with the error that its actor raised.
    """
    with contextlib.suppress(Exception):
        for deployment in serve.status().applications[APPLICATION].deployments.values():
            if lines := deployment.message.strip().splitlines():
                return str(lines[-1])
    return " ".join(str(error).split())


def _check_address(settings: ClusterSettings) -> None:
    """Check that a running Serve listens where the settings say, because it keeps its address as long as it runs.
    Otherwise a cluster without keys, which should listen on loopback only, could be reached by others.

    Raises: UmaError.
    """
    running = _get_global_client(raise_if_no_controller_running=False)
    if running is None:
        return
    host, port = running.http_config.host, running.http_config.port
    if (host, port) != (settings.host, settings.port):
        text = f"a cluster runs already and listens on http://{host}:{port} until `uma-gateway cluster down`"
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{text}: give that `host` and `port`, or stop it first")


def _tell_of_niceness(tell: Any) -> None:
    with contextlib.suppress(Exception):  # a slow node must not keep the cluster from serving
        for row in _about():
            if row.get("niceness", 0) > 0:
                tell(
                    f"node {row['node'][:12]} runs at niceness {row['niceness']}, behind other processes: "
                    f"start Ray there with {niceness.NICENESS}=0"
                )


def _wanted(settings: ClusterSettings) -> int:
    alive = n_alive()
    return min(settings.nodes, alive) if settings.nodes else alive


def down(address: str) -> None:
    """Stop the cluster. Raises: UmaError if no cluster runs."""
    connect(address)
    if _get_global_client(raise_if_no_controller_running=False) is None:
        raise _config_invalid(NOT_THERE)
    _stop(threading.Event())


def _handle(method: str) -> Any:
    return serve.get_deployment_handle(NODES, APPLICATION).options(method_name=method)


def status(address: str) -> list[dict[str, Any]]:
    """Return what every node reports about itself. Raises: UmaError if no cluster runs."""
    connect(address)
    with contextlib.suppress(Exception):
        return _about()
    raise _config_invalid(NOT_THERE)


def _about() -> list[dict[str, Any]]:
    """Return what every node reports. Of a node that does not answer in time only its names are known."""
    handle = _handle("about")
    deadline = time.monotonic() + ABOUT_S
    handle.remote("")  # with the first call Serve tells this process which nodes there are
    while not (nodes := replicas.running(NODES)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    asked = {name: handle.remote(name) for name in nodes}
    return [_reply(name, nodes[name], response, deadline) for name, response in asked.items()]


def _reply(name: str, node: str, response: Any, deadline: float) -> dict[str, Any]:
    with contextlib.suppress(RayError, RayServeException, TimeoutError):
        reply = response.result(timeout_s=max(LOOK_S, deadline - time.monotonic()))
        if reply["name"] == name:  # otherwise this node has left, and another one has answered
            return dict(reply)
    return {"name": name, "node": node, "is_lost": True, "models": {}}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'node':14} {'model':24} {'state':10} {'requests':>8} {'idle s':>8} {'restarts':>8}"]
    for row in rows:
        if not row["models"]:
            lines.append(f"{row['node'][:12]:14} {'does not answer' if row.get('is_lost') else '-'}")
        for name, model in row["models"].items():
            figures = f"{model['requests']:8} {model['idle_s']:8.0f} {model['restarts']:8}"
            lines.append(f"{row['node'][:12]:14} {name[:24]:24} {model['state']:10} {figures}")
    return "\n".join(lines)


def as_json(rows: list[dict[str, Any]]) -> str:
    return json.dumps(rows, indent=2)
