"""The HTTP gateway as the daemon's child: one command gives a working endpoint, and nothing is left when the daemon
ends.

Most tests fork the gateway, which costs no import. Those in which it matters whose child it is, and what it inherits,
start it as users do, and variables are checked by a process that is started as users' is.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.daemon.supervisor import start_with_descriptor
from tests.daemon.support import ENDLESS, WAIT_S, DaemonProcess, eventually, free_port, is_alive, running
from tests.daemon.with_forked_gateway import pid_path
from tests.folders import short_folder
from uma_core.config.options import HttpOptions
from uma_core.errors import UmaError
from uma_core.server.lifecycle.http_options import check_http
from uma_gateway.keys import entry, new_key


def ask(port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except OSError:
        return 0, None
    finally:
        connection.close()


def gateway_of(daemon: DaemonProcess) -> int:
    """Return the process of the gateway that was forked last for this daemon."""
    return int(pid_path(daemon.path).read_text())


def children(daemon: DaemonProcess) -> list[int]:
    text = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def answers(port: int) -> bool:
    return ask(port, "GET", "/health")[0] == 200


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def serve_forking(serve: Callable[..., DaemonProcess]) -> Callable[..., DaemonProcess]:
    """Like `serve`, with a gateway that is forked."""
    return partial(serve, forks_gateway=True)


def test_one_command_gives_a_working_endpoint(serve, port):
    daemon = serve("--http", str(port), **ENDLESS)
    eventually(lambda: answers(port), f"no endpoint: {daemon.log}")
    status, chat = ask(port, "POST", "/v1/completions", {"prompt": "hello", "max_tokens": 4})
    assert status == 200 and len(chat["choices"][0]["text"]) == 4
    assert daemon.status()["http"] == {"host": "127.0.0.1", "port": port, "is_running": True, "restarts": 0}
    (pid,) = children(daemon)
    daemon.stop()
    eventually(lambda: not is_alive(pid), "the gateway outlived the daemon")


def test_it_finds_a_socket_that_a_supervisor_passed(folder, port):
    path = str(folder / "passed.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        environ = {name: text for name, text in os.environ.items() if name != "UMA_SOCK"}
        process = start_with_descriptor(listening.fileno(), "--http", str(port), env=environ)
        try:
            eventually(lambda: answers(port), "the gateway does not find the daemon")
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=WAIT_S)
    assert f"listens on a passed socket, {path}".encode() in log


def test_it_is_started_again_when_it_ends(serve_forking, port):
    daemon = serve_forking("--http", str(port))
    eventually(lambda: answers(port))
    pid = gateway_of(daemon)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon.status()["http"]["restarts"] == 1 and answers(port), "it did not come back")
    assert daemon.generate("hello", max_tokens=2)[-1]["reason"] == "length"
    daemon.logs("the HTTP gateway ended with status -9")


def test_a_killed_daemon_takes_it_along(serve, port):
    daemon = serve("--http", str(port))
    eventually(lambda: answers(port))
    (pid,) = children(daemon)
    daemon.process.kill()
    eventually(lambda: not is_alive(pid), "the gateway outlived the daemon")


def test_a_reload_of_the_daemon_lets_it_read_its_keys_again(serve_forking, folder, port):
    names = ("alice", "bob")
    keys = {name: new_key() for name in names}
    path, config = folder / "keys.yaml", folder / "gateway.yaml"
    path.write_text(entry("alice", keys["alice"]))
    config.write_text(f"access: {{api_key_file: {path}}}\n")
    daemon = serve_forking("--http", str(port), "--http-config", str(config))
    eventually(lambda: answers(port))

    def statuses() -> list[int]:
        headers = [{"authorization": f"Bearer {keys[name]}"} for name in names]
        return [ask(port, "GET", "/v1/models", headers=each)[0] for each in headers]

    assert statuses() == [200, 401]
    path.write_text(entry("bob", keys["bob"]))
    daemon.ask("reload")
    eventually(lambda: statuses() == [401, 200], "its keys are the old ones")
    path.write_text("- name: bob\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.logs("the keys stay as they are")
    assert statuses() == [401, 200] and daemon.status()["http"]["restarts"] == 0


def test_a_reload_starts_moves_and_ends_it(serve_forking, folder, port):
    config = folder / "config.yaml"
    config.write_text("http: {}\n")
    daemon = serve_forking("--config", str(config))
    assert "http" not in daemon.status()
    for number in (port, free_port()):
        config.write_text(f"http:\n  port: {number}\n")
        daemon.ask("reload")
        eventually(lambda number=number: answers(number), f"no endpoint: {daemon.log}")
    eventually(lambda: not answers(port))
    config.write_text("http: {}\n")
    daemon.ask("reload")
    eventually(lambda: not is_alive(gateway_of(daemon)))
    assert "http" not in daemon.status()


def test_one_that_hangs_does_not_keep_a_reload_from_moving_it(serve_forking, folder, port):
    config, other = folder / "config.yaml", free_port()
    (folder / "gateway.yaml").write_text("limits: {drain_s: 0}\n")
    config.write_text(f"http: {{port: {port}, config: {folder / 'gateway.yaml'}}}\n")
    daemon = serve_forking("--config", str(config))
    daemon.pull(gives_up_soon=True)
    eventually(lambda: answers(port), f"no endpoint: {daemon.log}")
    pid = gateway_of(daemon)
    os.kill(pid, signal.SIGSTOP)
    config.write_text(f"http: {{port: {other}}}\n")
    daemon.ask("reload")
    daemon.logs("the HTTP gateway was told to stop and hangs: killing it")
    eventually(lambda: answers(other), f"no endpoint: {daemon.log}")
    assert not is_alive(pid)


def test_one_that_hangs_does_not_keep_the_daemon_from_ending(serve_forking, port):
    daemon = serve_forking("--http", str(port))
    daemon.pull(gives_up_soon=True)
    eventually(lambda: answers(port), f"no endpoint: {daemon.log}")
    pid = gateway_of(daemon)
    os.kill(pid, signal.SIGSTOP)
    daemon.ask("drain", then="exit")
    assert daemon.wait() == 0 and not is_alive(pid)


def test_its_own_file_configures_it(serve_forking, folder, port):
    config = folder / "gateway.yaml"
    config.write_text("access:\n  api_key: secret\n")
    serve_forking("--http", str(port), "--http-config", str(config))
    eventually(lambda: ask(port, "GET", "/v1/models")[0] == 401)


def test_a_gateway_that_cannot_start_again_ends_nothing_and_says_why(serve_forking, folder, port):
    config = folder / "gateway.yaml"
    config.write_text("access: {}\n")
    daemon = serve_forking("--http", str(port), "--http-config", str(config))
    eventually(lambda: answers(port))
    config.write_text("access: {nope: 1}\n")
    pid = gateway_of(daemon)
    os.kill(pid, signal.SIGKILL)
    daemon.logs("access.nope is not an option")
    assert daemon.generate("hello", max_tokens=2)[-1]["reason"] == "length"
    assert daemon.state() == "ready"


def test_a_port_that_another_program_has_is_refused_at_the_start_and_by_a_reload(serve_forking, folder, port):
    config = folder / "config.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        daemon = DaemonProcess(folder, "--engine", "fake", "--http", str(port))
        assert daemon.wait() == 1
        daemon.logs(f"nothing can listen on 127.0.0.1, port {port}")
        daemon.logs("choose another port (--http, UMA_HTTP)")
        config.write_text("http: {}\n")
        daemon = serve_forking("--config", str(config))
        config.write_text(f"http:\n  port: {port}\n")
        refusal = daemon.ask("reload")
        assert refusal["name"] == "config_invalid" and str(port) in refusal["message"]
        assert daemon.generate("hello", max_tokens=2)[-1]["reason"] == "length"
    daemon.ask("reload")
    eventually(lambda: answers(port), f"no endpoint: {daemon.log}")


class Serving(NamedTuple):
    daemon: DaemonProcess
    config: Path  # the daemon's file
    port: int  # of the gateway


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    """A daemon whose gateway serves. Tests may only try reloads that are refused."""
    with short_folder() as own:
        port, config = free_port(), own / "config.yaml"
        config.write_text(f"http: {{port: {port}}}\n")
        with running(own, "--engine", "fake", "--config", str(config), forks_gateway=True) as daemon:
            eventually(lambda: answers(port), f"no endpoint: {daemon.log}")
            yield Serving(daemon, config, port)


def check_refused(folder: Path, serving: Serving, path: Path, named: str) -> None:
    """Check that this file of the gateway starts no daemon, and that a running one keeps its gateway."""
    args = ("--engine", "fake", "--http", str(free_port()), "--http-config", str(path))
    failed = DaemonProcess(folder, *args, forks_gateway=True)
    assert failed.wait() == 1
    failed.logs(named)
    daemon, config, port = serving
    config.write_text(f"http: {{port: {port}, config: '{path}'}}\n")
    refusal = daemon.ask("reload")
    assert refusal["name"] == "config_invalid" and named in refusal["message"]
    assert answers(port) and daemon.status()["http"]["restarts"] == 0


@pytest.mark.parametrize("kind", ["pipe", "folder", "nowhere", "damaged", "descriptor"])
def test_a_file_that_would_keep_ending_it_is_refused_at_the_start_and_by_a_reload(serving, folder, kind):
    path = folder / "gateway.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "damaged":
        path.write_text("access: {")
    elif kind == "descriptor":
        path = Path("/dev/fd/63")
    check_refused(folder, serving, path, f"{path} is a descriptor of the daemon" if kind == "descriptor" else str(path))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nope: {a: 1}", "nope is not an option"),
        ("serve: {nope: 1}", "serve.nope is not an option"),
        ("limits: {max_json_depth: 99999}", "limits.max_json_depth must be"),
        ("access: {api_key_file: /nowhere/keys.yaml}", "/nowhere/keys.yaml"),
    ],
)
def test_a_file_with_wrong_options_is_refused_at_the_start_and_by_a_reload(serving, folder, text, named):
    path = folder / "gateway.yaml"
    path.write_text(f"{text}\n")
    check_refused(folder, serving, path, named)


@pytest.mark.parametrize(
    ("flags", "variables", "named"),
    [
        ((), {"UMA_GATEWAY_MAX_JSON_DEPTH": "deep"}, ["limits.max_json_depth"]),
        ((), {"UMA_GATEWAY_API_KEY_FILE": "/nowhere/keys.yaml"}, ["/nowhere/keys.yaml"]),
        (
            ("--http-host", "0.0.0.0"),
            {},
            [
                "give keys (UMA_GATEWAY_API_KEY_FILE",  # a variable: the daemon has no flag
                "to serve everybody (http.host)",  # the user did not write --host
            ],
        ),
    ],
)
def test_variables_and_addresses_that_would_keep_ending_it_are_refused_at_the_start(
    folder, port, flags, variables, named
):
    daemon = DaemonProcess(folder, "--engine", "fake", "--http", str(port), *flags, environ=variables)
    assert daemon.wait() == 1
    for text in named:
        daemon.logs(text)


def test_without_its_libraries_it_is_refused_with_what_to_install(port, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UmaError, match=r"pip install '\.\[http\]' in the source tree"):
        check_http(HttpOptions(port=port))


def test_files_in_the_working_directory_are_not_its_libraries(folder, port, monkeypatch):
    """The daemon may be started in a folder where anybody may write, such as /tmp."""
    (folder / "click.py").write_text("raise SystemExit('this ran')")
    (folder / "wrong.yaml").write_text("absent: 1")
    monkeypatch.chdir(folder)
    with pytest.raises(UmaError, match="absent is not an option"):
        check_http(HttpOptions(port=port, config="wrong.yaml"))


def test_a_port_that_becomes_free_soon_is_waited_for(serve_forking, port):
    """The port belongs to the gateway of a daemon that was killed a moment ago."""
    taken = socket.create_server(("127.0.0.1", port))
    threading.Timer(0.5, taken.close).start()
    serve_forking("--http", str(port))
    eventually(lambda: answers(port))


def test_a_terminal_s_ctrl_c_drains_with_the_gateway_still_there(serve, port):
    daemon = serve("--http", str(port), start_new_session=True)
    eventually(lambda: answers(port))
    daemon.pull(step_ms=10)
    stream = daemon.stream(max_tokens=100).begun()
    os.killpg(daemon.process.pid, signal.SIGINT)
    eventually(lambda: ask(port, "POST", "/v1/completions", {"prompt": "x"})[0] == 503)
    assert stream.end()["reason"] == "length"
    assert daemon.wait() == 0
