"""The gateway as a process: what it shows of the daemon, how it starts, and what happens when either goes away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.support import ROOT, eventually, running
from tests.engine.encoders import ENCODERS, write
from tests.gateway.support import Answer, GatewayProcess, Raw, n_busy


def test_health_and_models(gateway, fake):
    assert gateway.get("/health").json == {"status": "ok"}
    models = gateway.get("/v1/models").json
    (model,) = models["data"]
    n_ctx = fake.ask("props")["n_ctx_seq"]
    assert (model["id"], model["object"], model["context_length"], model["max_model_len"]) == (
        "fake",
        "model",
        n_ctx,
        n_ctx,
    )
    assert model["meta"]["n_ctx"] == n_ctx
    (shown,), (tagged,) = models["models"], gateway.get("/api/tags").json["models"]
    assert shown["details"] == tagged["details"] and shown["details"]["parameter_size"]
    assert gateway.get("/v1/models/fake").json["id"] == "fake"
    missing = gateway.get("/v1/models/gpt-4")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


def test_props(gateway, fake):
    props = gateway.get("/props").json
    assert props["total_slots"] == 4
    assert props["chat_template"] == fake.ask("props")["chat_template"]
    assert (props["bos_token"], props["eos_token"]) == ("<bos>", "<eog>")


@pytest.mark.parametrize(("mode", "drafts"), [("off", False), ("lookup", True)])
def test_slots_say_whether_answers_are_drafted(serve, before, mode, drafts):
    slots = before(serve("--speculate", mode)).get("/slots").json
    assert [slot["speculative"] for slot in slots] == [drafts] * 4


def test_unknown_paths_and_methods_have_the_family_s_form(gateway):
    missing = gateway.get("/v1/nothing")
    assert (missing.status, missing.error["type"], missing.error["code"]) == (404, "not_found_error", "not_found")
    other = gateway.get("/nothing")
    assert (other.status, other.error["code"]) == (404, 404)
    wrong = gateway.get("/v1/chat/completions")
    assert wrong.status == 405 and "POST" in wrong.headers["allow"]


def test_every_answer_has_a_request_id_and_a_given_one_is_kept(gateway):
    assert gateway.get("/health").headers["x-request-id"].startswith("req_")
    assert gateway.get("/health", x_request_id="my-trace.7").headers["x-request-id"] == "my-trace.7"
    assert gateway.get("/health", x_request_id="not an id!").headers["x-request-id"].startswith("req_")


def test_the_request_id_and_the_account_are_seen_in_the_daemon_s_sessions(gateway, fake, levers):
    levers(step_ms=20)
    with Raw(gateway.port) as raw:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000, "stream": True}
        raw.send("POST", "/v1/chat/completions", body, {"x-request-id": "seen-1"})
        raw.until(b"delta")
        (row,) = eventually(lambda: fake.ask("sessions")["sessions"])
        assert (row["request_id"], row["account"]) == ("seen-1", "http")
    eventually(lambda: n_busy(fake) == 0)


def test_while_nothing_is_taken_health_has_llama_servers_form_of_errors(serve, before):
    daemon = serve()
    gateway: GatewayProcess = before(daemon)
    daemon.ask("drain", then="stay")
    health = gateway.get("/health")
    assert health.status == 503 and health.json["status"]
    assert (health.json["error"]["code"], health.json["error"]["type"]) == (503, "unavailable_error")
    assert health.json["status"] in health.json["error"]["message"]
    daemon.ask("undrain")
    assert gateway.get("/v1/health").json == {"status": "ok"}


def test_without_a_daemon_it_says_so_and_comes_back_by_itself(serve, before, folder):
    gateway: GatewayProcess = before(str(folder / "uma.sock"))
    gateway.logs(
        f"cannot be reached on {folder / 'uma.sock'}: it is not running; the gateway will use it as soon as it answers"
    )
    for answer in (gateway.get("/health"), gateway.get("/v1/models"), gateway.chat()):
        assert answer.status == 503 and int(answer.headers["retry-after-ms"]) > 0
    assert gateway.chat().error["code"] == "daemon_unavailable"
    daemon = serve()
    assert gateway.chat(max_tokens=3).status == 200
    assert gateway.get("/health").status == 200
    assert gateway.log.count("as soon as it answers") == 1, "it is said once"
    daemon.stop()
    assert gateway.chat().status == 503
    serve()
    assert gateway.chat(max_tokens=3).status == 200, "the daemon was restarted, the gateway not"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/chat/completions/input_tokens",
        "/v1/responses/input_tokens",
        "/v1/messages/count_tokens",
        "/apply-template",
        "/api/pull",
    ],
)
def test_the_first_request_to_another_model_is_read_for_that_model(before, folder, path):
    """The gateway still had the description of the encoder that was served before, however long ago."""
    body = {"messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 3}
    body |= {"model": "fake"} if path == "/api/pull" else {}
    with running(folder, "--model", write(ENCODERS["bert"], folder / "bert.gguf"), "--threads", "1") as encoder:
        gateway: GatewayProcess = before(encoder)
        assert gateway.post(path, **body).status in (400, 501)
    with running(folder, "--engine", "fake"):
        assert gateway.post(path, **body).status == 200


def test_who_waits_for_the_start_is_no_warning(before, folder):
    gateway = before(str(folder / "none.sock"))
    assert gateway.get("/health").status == gateway.get("/v1/models").status == 503

    def logged(path: str) -> str:
        lines = [line for line in gateway.log.splitlines() if "uma_gateway.access" in line and path in line]
        return lines[0] if lines else ""

    assert " INFO " in eventually(lambda: logged("/health 503"), "it is logged after the answer")
    assert " WARNING " in eventually(lambda: logged("/v1/models 503"))


def test_a_draining_daemon_is_told_as_503_with_a_time_to_come_back(serve, before):
    daemon = serve()
    gateway = before(daemon)
    daemon.ask("drain")
    answer = gateway.chat()
    assert (answer.status, answer.error["code"]) == (503, "draining")
    assert int(answer.headers["retry-after"]) >= 1 and int(answer.headers["retry-after-ms"]) >= 1
    assert gateway.get("/health").status == 503
    daemon.ask("undrain")
    assert gateway.chat(max_tokens=2).status == 200


def test_a_killed_gateway_leaves_nothing_busy(serve, before):
    daemon = serve()
    gateway = before(daemon)
    daemon.pull(step_ms=20)
    raws = [Raw(gateway.port) for _ in range(3)]
    for raw in raws:
        raw.send(
            "POST",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000, "stream": True},
        )
        raw.until(b"delta")
    gateway.process.kill()
    eventually(lambda: n_busy(daemon) == 0, "the daemon still computes for nobody")
    assert daemon.generate("hello", max_tokens=2)[-1]["reason"] == "length"
    for raw in raws:
        raw.sock.close()


def test_told_to_stop_it_finishes_running_answers(serve, before):
    daemon = serve()
    gateway = before(daemon)
    daemon.pull(step_ms=10)
    with Raw(gateway.port) as raw:
        raw.send(
            "POST",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "stream": True},
        )
        raw.until(b"delta")
        gateway.signal(signal.SIGTERM)
        assert b"[DONE]" in raw.rest()
    assert gateway.wait() in (0, -signal.SIGTERM)


def test_an_open_dashboard_does_not_keep_it_from_stopping(serve, before):
    gateway = before(serve(), "--drain-s", "600")
    with Raw(gateway.port) as raw:
        raw.send("GET", "/uma/events")
        raw.until(b"data: ")
        gateway.signal(signal.SIGTERM)
        raw.rest()
        assert gateway.wait() in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", rb'data: \{"error":\{.*"code":"draining"'),
        ("/v1/messages", rb'event: error\ndata: \{"type":"error"'),
        ("/api/chat", rb'\n\{"error":"the gateway is stopping'),
    ],
)
def test_an_answer_that_outlasts_the_drain_ends_with_an_error(serve, before, path, end):
    daemon = serve()
    daemon.pull(step_ms=20)
    gateway = before(daemon, "--drain-s", "0.2")
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2000,
        "ignore_eos": True,
        "options": {"num_predict": 2000, "ignore_eos": True},
    }
    with Raw(gateway.port) as streamed, Raw(gateway.port) as whole:
        streamed.send("POST", path, {**body, "stream": True})
        whole.send("POST", path, {**body, "stream": False})
        streamed.until(b'"content' if path != "/v1/messages" else b"text_delta")
        eventually(lambda: n_busy(daemon) == 2)
        gateway.signal(signal.SIGTERM)
        assert re.search(end, streamed.rest())
        answer = Answer(whole.rest())
    assert (answer.status, answer.headers.get("retry-after")) == (503, "1") or answer.status == 529, answer.raw
    assert gateway.wait() in (0, -signal.SIGTERM)
    assert "Traceback" not in gateway.log
    eventually(lambda: n_busy(daemon) == 0)


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):  # refused, or reset
        return True
    return False


def test_a_request_whose_body_comes_after_the_drain_begins_no_answer(serve, before):
    daemon = serve()
    daemon.pull(step_ms=20)
    gateway = before(daemon, "--drain-s", "0")
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2000}).encode()
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", body[:10], {"content-length": str(len(body))})
        eventually(lambda: gateway.get("/health").status == 200)
        gateway.signal(signal.SIGTERM)
        eventually(lambda: not listens(gateway.port))
        raw.sock.sendall(body[10:])
        answer = Answer(raw.rest())
    assert (answer.status, answer.error["code"]) == (503, "draining"), answer.raw
    assert gateway.wait() in (0, -signal.SIGTERM)
    assert "Traceback" not in gateway.log


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_what_will_never_be_answered_is_not_asked_for_again(gateway, path):
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    answer = gateway.post(path, messages=[{"role": "user", "content": image}], max_tokens=5)
    assert (answer.status, answer.headers["x-should-retry"]) == (501, "false")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--host", "0.0.0.0"), "serve.host"),
        (("--tls-cert", "x.pem"), "serve.tls_key"),
        (("--port", "99999"), "serve.port"),
        (("--cors-origins", "*"), "access.cors_origins"),
        (("--api-key-file", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (("--prot", "1"), "--prot"),
        (("--json",), "--json goes with --print-config"),
    ],
)
def test_a_wrong_configuration_ends_the_start_with_a_reason(folder, args, named):
    gateway = GatewayProcess(folder, str(folder / "uma.sock"), *args)
    assert gateway.wait() == 1
    assert named in gateway.log and "E_CONFIG_001" in gateway.log and len(gateway.log.splitlines()) == 1


def test_another_address_is_served_with_keys_or_when_insecure(before, folder):
    before(str(folder / "s"), "--host", "0.0.0.0", "--insecure")
    before(str(folder / "s"), "--host", "0.0.0.0", environ={"UMA_GATEWAY_API_KEY": "secret"})


def test_variables_and_files_configure_it(folder, before):
    config = folder / "gateway.yaml"
    config.write_text("serve:\n  model_alias: my-model\nlimits:\n  max_body_mb: 0.001\n")
    gateway = before(
        str(folder / "s"), "--config", str(config), environ={"UMA_GATEWAY_API_KEY": "secret", "UMA_GATEWAY_PORT": "0"}
    )
    assert gateway.get("/v1/models").status == 401
    answer = gateway.chat("x" * 5000, headers={"authorization": "Bearer secret"})
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_it_finds_the_daemon_by_the_variable_that_every_client_reads(before, fake):
    assert before("", environ={"UMA_SOCK": str(fake.path)}).get("/health").status == 200


def test_it_leaks_no_descriptors(gateway, fake):
    gateway.chat(max_tokens=2)
    n = gateway.descriptors()
    for _ in range(30):
        gateway.chat(max_tokens=2)
        gateway.chat(max_tokens=-5)
        assert gateway.chat(model=[]).status == 400
    eventually(lambda: gateway.descriptors() <= n, f"{gateway.descriptors()} descriptors, {n} before")
    assert os.path.exists(fake.path)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", b"\n\n"),
        ("/v1/completions", b"\n\n"),
        ("/v1/responses", b"\n\n"),
        ("/v1/messages", b"\n\n"),
        ("/completion", b"\n\n"),
        ("/api/chat", b"\n"),
        ("/api/generate", b"\n"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_each_message_of_a_stream_is_a_chunk_of_its_own(gateway, path, end, count):
    """Some clients take each chunk for one message."""
    asked = {"messages": [{"role": "user", "content": "hello"}], "input": "hello"}
    asked |= {} if "responses" in path else {"prompt": "hello"}
    answer = gateway.post(path, stream=True, n=count, max_tokens=40, options={"num_predict": 40}, **asked)
    assert answer.status == 200 and len(answer.chunks) > 3, answer.body
    assert all(chunk.endswith(end) and chunk.count(end) == 1 for chunk in answer.chunks)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of another process are set on Linux only")
def test_a_moment_without_descriptors_spoils_no_later_chat(folder, serve, before):
    """The template is tried in a separate process, and there were no descriptors for its pipes."""
    gateway = before(str(folder / "uma.sock"))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (gateway.descriptors() + 4, most))
    serve()
    answer = gateway.chat(max_tokens=2)
    assert answer.status == 503 and "retry-after" in answer.headers, answer.body
    resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (most, most))
    assert gateway.chat(max_tokens=2).status == 200
    assert "Traceback" not in gateway.log


ONE_THREAD = """import threading
allowed = [threading.Thread.start]
def start(thread):
    if not allowed:
        raise RuntimeError("can't start new thread")
    allowed.pop()(thread)
threading.Thread.start = start
"""


def test_a_gateway_that_is_allowed_too_few_threads_says_so(tmp_path: Path) -> None:
    """libuv would end the process without a message. In this test only the log gets a thread."""
    (tmp_path / "sitecustomize.py").write_text(ONE_THREAD)
    command = [sys.executable, "-m", "uma_gateway", "--socket", str(tmp_path / "none.sock"), "--port", "0"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "E_MODEL_004 insufficient_memory: the system allows no thread" in done.stderr


@pytest.mark.parametrize("words", ["--print-config", "--print-config --json", "--check-config", "key bob", "--help"])
def test_a_full_standard_output_is_one_line(words: str) -> None:
    command = f"{sys.executable} -m uma_gateway {words} >/dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "uma-gateway: cannot write to standard output: No space left on device"
    assert "Traceback" not in done.stderr


def test_cluster_alone_shows_its_commands() -> None:
    command = [sys.executable, "-m", "uma_gateway", "cluster"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    assert "Usage: uma-gateway cluster" in done.stdout and "Show nodes and models." in done.stdout


def test_closed_standard_streams_are_no_sockets(tmp_path: Path) -> None:
    """What a library writes to standard error would otherwise go to a client."""
    script = "import os, sys; from uma_gateway.cli import main; sys.argv[1:] = ['key', 'bob']; main(); "
    script += (
        f"open({str(tmp_path / 'fds')!r}, 'w').write(' '.join(os.readlink(f'/proc/self/fd/{{n}}') for n in range(3)))"
    )
    subprocess.run(["sh", "-c", f'exec {sys.executable} -c "$0" <&- >&- 2>&-', script], timeout=60, check=True)
    assert (tmp_path / "fds").read_text() == "/dev/null /dev/null /dev/null"


@pytest.mark.parametrize("where", ["a port in use", "no name"])
def test_an_address_where_nothing_can_listen_ends_the_start_with_a_reason(folder, where):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        given = ("--port", port) if where == "a port in use" else ("--host", "no.such.name.invalid", "--insecure")
        gateway = GatewayProcess(folder, str(folder / "s"), *given)
        assert gateway.wait() == 1
    assert "E_CONFIG_001" in gateway.log and "nothing can listen on" in gateway.log, gateway.log
    assert ("choose another port (--port, UMA_GATEWAY_PORT)" in gateway.log) == (where == "a port in use"), gateway.log
    assert len(gateway.log.splitlines()) == 1, gateway.log


def test_a_port_in_use_is_one_line_beside_a_daemon_too(serve, folder):
    """The gateway is already talking with the daemon by then."""
    daemon = serve()
    with socket.create_server(("127.0.0.1", 0)) as other:
        for _ in range(4):
            gateway = GatewayProcess(folder, daemon.path, "--port", str(other.getsockname()[1]))
            assert gateway.wait() == 1
            assert len(gateway.log.splitlines()) == 1, gateway.log
