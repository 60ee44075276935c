"""The clients against the real daemon on the embedded model: the first steps of a new user."""

from __future__ import annotations

import json
import re
import signal
import socket

import pytest

from tests.ctl.documented import PROTOCOL
from tests.ctl.test_docs_client import run
from tests.daemon.support import running
from tests.folders import short_folder
from uma_ctl.client import Client, fields_of

pytestmark = [pytest.mark.daemon, pytest.mark.model]


@pytest.fixture(scope="module")
def daemon():
    """The socket of a daemon that is ready."""
    with short_folder() as folder, running(folder, "--calibrate", "off") as daemon:
        yield daemon.path
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0


@pytest.fixture
def socket_path(daemon):
    return daemon


def test_a_ready_daemon_is_not_waited_for(ctl):
    assert ctl("status", "--wait", "ready").returncode == 0


def test_uma_cli_streams_text(cli):
    done = cli("--prompt", "Hello", "--max-tokens", "16")
    assert done.returncode == 0
    assert done.stdout.strip()


def test_generate_gives_the_same_text_with_and_without_streaming(ctl):
    streamed = ctl("generate", "--prompt", "The shell is", "--max-tokens", "24")
    whole = ctl("generate", "--prompt", "The shell is", "--max-tokens", "24", "--no-stream")
    assert streamed.stdout == whole.stdout != "\n"


def test_the_client_of_the_documentation(socket_path):
    done = run(socket_path, "Hello")
    assert done.returncode == 0
    assert re.search(r"\[(length|stop), \d+ tokens\]", done.stdout)


def test_tokens_of_a_text_and_back(ctl):
    text = "Say 'hé' to <|im_end|> 🙂"
    shown = ctl("tokenize", text)
    assert shown.returncode == 0
    assert re.search(r'^ *3  "<\|im_end\|>"$', shown.stdout, re.MULTILINE)
    assert re.search(r"^ *\d+  f0$", shown.stdout, re.MULTILINE)
    ids = ctl("tokenize", "--ids", input=text)
    assert len(ids.stdout.split()) == len(shown.stdout.splitlines()) == int(ctl("tokenize", "--count", text).stdout)
    assert ctl("detokenize", input=ids.stdout).stdout == text + "\n"
    assert ctl("detokenize", *ids.stdout.split(), "--no-special").stdout == text.replace("<|im_end|>", "") + "\n"
    assert ctl("detokenize", "9999999").returncode == 3
    assert ctl("detokenize", "many").returncode == 1


def test_a_chat_is_counted_as_it_is_read(socket_path):
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    with Client(socket_path) as client:
        *_, end = client.generate({"id": "a", "messages": chat, "max_tokens": 1})
        prompt = client.call("apply_template", messages=chat)["prompt"]
        counts = [client.call("count", **given)["n_tokens"] for given in ({"messages": chat}, {"prompt": prompt})]
    assert counts == [end["usage"]["prompt_tokens"]] * 2


def test_a_line_of_text_is_answered_by_text(socket_path):
    """Does the same as `printf 'Hello\n' | nc -U SOCKET`: write, half-close, read to the end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(socket_path)
        connection.sendall(b"Hello\n")
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert answer.decode().strip()
    assert answer.endswith(b"\n")
    assert not answer.startswith(b"[")


def test_chat_answers_and_ends_by_itself(ctl):
    done = ctl("chat", "--json", "--max-tokens", "200", input="What is grep?\n")
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[-1])["reason"] == "stop"


def test_bad_fields_are_refused_as_protocol_errors(ctl):
    done = ctl("generate", "--prompt", "x", "--stop", "")
    assert done.returncode == 3
    assert "stop" in done.stderr


def test_a_request_of_another_connection_is_cancelled(ctl, start):
    for seed in range(20):  # several tries, because an answer may end by itself before the cancel comes
        process = start(
            "uma_ctl.cli", "--prompt", "Hello", "--max-tokens", "2000", "--temp", "1.0", "--seed", str(seed), "--json"
        )
        assert json.loads(process.stdout.readline())["event"] == "token"
        is_cancelled = ctl("cancel", "r1").returncode == 0
        out, _ = process.communicate(timeout=60)
        if is_cancelled:
            break
    assert json.loads(out.splitlines()[-1])["reason"] == "cancelled"
    assert process.returncode == 2


def documented(section: str) -> set[str]:
    """Return the field names in the first column of a section's table; `a.x`, `y` stand for a.x and a.y."""
    body = PROTOCOL.split(f"## {section}\n")[1].split("\n## ")[0]
    names = set()
    for row in re.findall(r"^\| (`[^|]*) \|", body, re.MULTILINE):
        first, *rest = re.findall(r"`([^`]+)`", row)
        group = first.rpartition(".")[0]
        names |= {first, *(name if "." in name or not group else f"{group}.{name}" for name in rest)}
    return names


def produced(value: dict, prefix: str = "") -> set[str]:
    names = set()
    for key, item in value.items():
        key = "LANE" if prefix == "lanes." else key
        is_group = isinstance(item, dict) and f"{prefix}{key}" not in documented("The status dict")
        names |= produced(item, f"{prefix}{key}.") if is_group else {f"{prefix}{key}"}
    return names


def test_status_has_the_documented_fields_and_no_others(socket_path, cli):
    # the latencies exist only after an answer, and a verdict on them after twenty gaps
    assert cli("--prompt", "Hello", "--max-tokens", "40", "--ignore-eos").returncode == 0
    with Client(socket_path) as client:
        status = fields_of(client.call("status"))
    assert produced(status) == documented("The status dict") - {"drain", "http", "load_share"}
    assert status["state"] == "ready"
    assert status["model"]["is_demo"] is True


def test_sessions_have_the_documented_fields(socket_path, start):
    process = start("uma_ctl.cli", "--prompt", "Hello", "--max-tokens", "2000", "--temp", "1.0")
    assert process.stdout.read(1)
    with Client(socket_path) as client:
        while not (sessions := client.call("sessions")["sessions"]):  # the view is published between ticks
            assert process.poll() is None
    (session,) = sessions
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert set(session) == documented("The sessions list") - {
        "queue_position",
        "wait_ms",
        "waits_for",
        "waits_for_conn",
    }, "those are of queued and parked requests"
    assert session["pid"] == process.pid


def test_metrics_for_people_and_for_prometheus(ctl):
    assert "tokens_generated_total" in ctl("metrics").stdout
    assert re.search(r"^uma_ready 1$", ctl("metrics", "--prometheus").stdout, re.MULTILINE)


def test_a_failed_reload_changes_nothing_and_is_visible(ctl, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF and then nothing")
    done = ctl("reload", "--model", str(tmp_path / "bad.gguf"))
    assert done.returncode == 2
    assert "E_MODEL_002" in done.stderr
    shown = ctl("status").stdout
    assert "the last one failed: E_MODEL_002" in shown
    assert "uma-work" in shown


def test_drain_refuses_new_work_until_undrain(ctl, cli):
    assert ctl("drain").returncode == 0
    assert ctl("health").returncode == 2
    refused = cli("--prompt", "x")
    assert refused.returncode == 2
    assert "E_STATE_002 draining" in refused.stderr
    assert ctl("undrain").returncode == 0
    assert cli("--prompt", "x", "--max-tokens", "2").returncode == 0
