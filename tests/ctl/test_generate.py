"""`uma-cli` and `uma-ctl generate` against a scripted server: what they send, what they print, and how they end."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys

import pytest

from uma_ctl import generation
from uma_ctl.client import Client
from uma_ctl.errors import NoAnswer


def hello(peer, message):
    for text in ("Hel", "lo ", "wörld"):
        peer.token(message["id"], text)
    peer.eos(message["id"])


@pytest.mark.parametrize("module", ["cli", "ctl"])
def test_text_streams_to_standard_output_and_the_status_is_zero(serve, module, request):
    serve(hello)
    run = request.getfixturevalue(module)
    done = run(*(["generate"] if module == "ctl" else []), "--prompt", "Hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello wörld\n", "")


def test_the_prompt_may_stand_alone(serve, ctl):
    server = serve(hello)
    assert ctl("generate", "Once upon a time").stdout == "Hello wörld\n"
    assert server.received[0]["prompt"] == "Once upon a time"
    both = ctl("generate", "a", "--prompt", "b")
    assert both.returncode == 1 and "two prompts" in both.stderr


def test_options_become_request_fields_and_absent_ones_are_left_to_the_daemon(serve, cli):
    server = serve(hello)
    given = (
        "--max-tokens 7 --temp 0.5 --top-p 0.9 --top-k 5 --min-p 0.1 --seed 3 --repeat-penalty 1.1 --priority "
        "background --timeout 2.5"
    )
    assert cli("--prompt", "p", *given.split(), "--stop", "END", "--stop", "\n\n").returncode == 0
    assert cli("--prompt", "q").returncode == 0
    first, second = server.received
    first.pop("id"), second.pop("id")
    assert first == {
        "prompt": "p",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 3,
        "repeat_penalty": 1.1,
        "stop": ["END", "\n\n"],
        "priority": "background",
        "timeout_ms": 2500,
        "stream": True,
    }
    assert second == {"prompt": "q", "stream": True}


def test_a_timeout_of_less_than_a_millisecond_is_one(serve, cli):
    server = serve(hello)
    assert cli("--prompt", "p", "--timeout", "0.0004").returncode == 0
    assert server.received[0]["timeout_ms"] == pytest.approx(0.4)


def test_an_answer_can_be_kept_going(serve, ctl):
    server = serve(hello)
    assert ctl("generate", "Hi", "--ignore-eos", "--min-tokens", "50").returncode == 0
    assert (server.received[0]["ignore_eos"], server.received[0]["min_tokens"]) == (True, 50)


def test_adapters_are_named_with_or_without_a_scale(serve, ctl):
    server = serve(hello)
    assert ctl("generate", "Hi", "--lora", "tone", "--lora", "topic=-0.5").returncode == 0
    assert server.received[0]["lora"] == [{"id": "tone", "scale": 1.0}, {"id": "topic", "scale": -0.5}]
    refused = ctl("generate", "Hi", "--lora", "tone=much")
    assert refused.returncode == 1 and "ID=SCALE" in refused.stderr


def test_without_stream_the_text_comes_from_the_final_event(serve, cli):
    server = serve(lambda peer, message: peer.eos(message["id"], text="all of it"))
    done = cli("--prompt", "Hi", "--no-stream")
    assert (done.returncode, done.stdout) == (0, "all of it\n")
    assert server.received[0]["stream"] is False


def test_the_prompt_is_read_from_standard_input(serve, cli):
    server = serve(hello)
    assert cli(input="from a pipe\nof two lines\n").returncode == 0
    assert server.received[0]["prompt"] == "from a pipe\nof two lines\n"


def test_an_empty_prompt_is_wrong_usage(serve, cli):
    serve(hello)
    done = cli(input="")
    assert done.returncode == 1
    assert "prompt is empty" in done.stderr


def test_json_prints_every_event_as_a_line(serve, cli):
    serve(hello)
    done = cli("--prompt", "Hi", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["token", "token", "token", "eos"]
    assert "".join(event.get("text", "") for event in events) == "Hello wörld"


def refuse(code, name, **detail):
    return lambda peer, message: peer.refuse(message["id"], code, name, **detail)


def fail(peer, message):
    peer.eos(message["id"], "error", error={"code": "E_RUNTIME_001", "name": "decode_failed", "message": "x"})


@pytest.mark.parametrize(
    ("script", "status", "shown"),
    [
        (refuse("E_LIMIT_003", "overloaded", retry_after_ms=250), 2, "E_LIMIT_003 overloaded: no (retry after 250 ms)"),
        (refuse("E_PROTO_002", "bad_request", field="top_p"), 3, "E_PROTO_002 bad_request: no (field top_p)"),
        (refuse("E_MODEL_002", "model_load_failed"), 2, "E_MODEL_002"),
        (refuse("E_FUTURE_001", "unheard_of"), 2, "E_FUTURE_001 unheard_of"),
        (fail, 2, "E_RUNTIME_001"),
        (lambda peer, m: peer.eos(m["id"], "timeout"), 2, "not complete: timeout"),
        (lambda peer, m: peer.eos(m["id"], "draining"), 2, "not complete: draining"),
        (lambda peer, m: peer.eos(m["id"], "length"), 0, ""),
        (lambda peer, m: peer.refuse(None, "E_LIMIT_004", "too_many_sessions"), 2, "E_LIMIT_004"),
    ],
)
def test_every_end_has_its_exit_status(serve, cli, script, status, shown):
    serve(script)
    done = cli("--prompt", "Hi")
    assert done.returncode == status
    assert shown in done.stderr
    assert "Traceback" not in done.stderr


def hang_up_mid_stream(peer, message):
    peer.token(message["id"], "half an ans")
    peer.hang_up()


def half_a_frame(peer, message):
    peer.raw(struct.pack("<I", 100) + b'{"id":')
    peer.hang_up()


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (hang_up_mid_stream, "hung up"),
        (half_a_frame, "hung up"),
        (lambda peer, m: peer.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not speak this protocol"),
        (lambda peer, m: peer.raw(struct.pack("<I", 0)), "does not speak this protocol"),
        (lambda peer, m: peer.raw(struct.pack("<I", 4) + b"nope"), "not JSON"),
        (lambda peer, m: peer.raw(struct.pack("<I", 2) + b"[]"), "not an object"),
        (lambda peer, m: peer.raw(struct.pack("<I", 200_000) + b"[" * 200_000), "not JSON"),
    ],
)
def test_a_broken_server_is_a_protocol_error(serve, cli, script, shown):
    serve(script)
    done = cli("--prompt", "Hi")
    assert done.returncode == 3
    assert shown in done.stderr
    assert "Traceback" not in done.stderr


def test_what_came_before_the_break_is_kept(serve, cli):
    serve(hang_up_mid_stream)
    assert cli("--prompt", "Hi").stdout == "half an ans\n"


def test_an_absent_socket_is_told_with_what_to_do(cli, ctl):
    for run in (lambda: cli("--prompt", "Hi"), lambda: ctl("status")):
        done = run()
        assert done.returncode == 1
        assert "uma-core daemon" in done.stderr


def test_a_socket_that_nobody_listens_on(cli, socket_path):
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(socket_path)
    done = cli("--prompt", "Hi")
    assert done.returncode == 1
    assert "nobody listens" in done.stderr


def test_errors_are_json_with_json(serve, cli):
    serve(refuse("E_LIMIT_003", "overloaded", retry_after_ms=250))
    done = cli("--prompt", "Hi", "--json")
    assert json.loads(done.stdout)["code"] == "E_LIMIT_003"
    assert json.loads(done.stderr)["error"]["detail"] == {"retry_after_ms": 250}


def test_a_daemon_that_accepts_and_never_answers_does_not_hold_the_client_for_ever(serve, socket_path, monkeypatch):
    serve(lambda peer, message: None)
    monkeypatch.setattr(generation, "GRACE_S", 0.05)
    with Client(socket_path) as client, pytest.raises(NoAnswer):
        generation.run(client, {"prompt": "x", "timeout_ms": 50})


def stream_until_cancelled(peer, message):
    if message.get("type") == "cancel":
        peer.reply(message, found=True)
        peer.token(message["id"], " last words")
        peer.eos(message["id"], "cancelled")
    else:
        peer.token(message["id"], "on and on")


def test_ctrl_c_cancels_the_request_and_waits_for_its_end(serve, start):
    server = serve(stream_until_cancelled)
    process = start("uma_ctl.cli", "--prompt", "Hi")
    assert process.stdout.read(9) == "on and on"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == " last words\n"
    assert "not complete: cancelled" in err
    assert server.received[1] == {"type": "cancel", "id": server.received[0]["id"]}


def test_a_second_ctrl_c_leaves_at_once(serve, start):
    cancelled: list[dict] = []
    server = serve(
        lambda peer, message: cancelled.append(message) if "type" in message else peer.token(message["id"], "x")
    )
    process = start("uma_ctl.cli", "--prompt", "Hi")
    assert process.stdout.read(1) == "x"
    process.send_signal(signal.SIGINT)
    while not cancelled and process.poll() is None:
        server.peers[0].is_over.wait(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert server.peers[0].is_over.wait(20)


def test_a_closed_pipe_ends_quietly_and_hangs_up(serve, start):
    def endless(peer, message):
        while not peer.is_over.is_set():
            peer.token(message["id"], "x" * 1000)

    server = serve(endless)
    process = start("uma_ctl.cli", "--prompt", "Hi")
    process.stdout.read(10)
    process.stdout.close()
    process.wait(timeout=30)
    assert process.returncode == 141
    assert process.stderr.read() == ""
    assert server.peers[0].is_over.wait(20)


def test_bytes_that_are_no_text_reach_the_server_as_they_are(serve, environment):
    server = serve(hello)
    done = subprocess.run(
        [sys.executable, "-m", "uma_ctl.cli"], env=environment, input=b"caf\xe9", capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert server.received[0]["prompt"] == "caf\udce9"  # this is the byte 0xe9, which the daemon refuses as bad_utf8


def test_what_is_asked_of_answers_becomes_fields(serve, cli):
    server = serve(hello)
    given = ["--n", "2", "--logprobs", "3", "--banned", "foo", "--banned", "a b", "--reasoning-budget", "40"]
    assert cli("--prompt", "p", *given).returncode == 0
    assert cli("--prompt", "p", "--think", "<t>", "</t>").returncode == 0
    first, second = server.received
    assert (first["n"], first["logprobs"], first["banned_strings"]) == (2, 3, ["foo", "a b"])
    assert first["reasoning"] == {"start": "<think>", "end": "</think>", "budget_tokens": 40}
    assert second["reasoning"] == {"start": "<t>", "end": "</t>"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--image", "cat.png"], "images are not supported"),
        (["--n", "0"], "--n"),
        (["--logprobs", "21"], "--logprobs"),
        (["--reasoning-budget", "-1"], "--reasoning-budget"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_sent(serve, ctl, given, said):
    server = serve(hello)
    for command in (["generate", "p"], ["chat"]):
        done = ctl(*command, *given, input="")
        assert done.returncode == 1 and said in done.stderr
    assert not server.received


def two(peer, message):
    entry = {"id": 1, "bytes": list(b"Hi"), "logprob": -0.5, "top": [{"id": 1, "bytes": list(b"Hi"), "logprob": -0.5}]}
    for index, text in ((0, "Hi"), (1, "Oh"), (0, " you"), (1, "!\n")):
        peer.send(id=message["id"], event="token", text=text, token_id=1, index=index, logprobs=[entry])
    peer.send(id=message["id"], event="end", index=1, reason="length", usage={}, timing={})
    peer.send(id=message["id"], event="end", index=0, reason="stop", usage={}, timing={})
    peer.eos(message["id"], "length")


def test_each_of_several_answers_is_labelled(serve, ctl):
    serve(two)
    done = ctl("generate", "p", "--n", "2")
    assert (done.returncode, done.stdout) == (0, "[2] Oh!\n[1] Hi you\n")
    chat = ctl("chat", "--n", "2", input="hello\n")
    assert chat.stdout == "[2] Oh!\n[1] Hi you\n"


def test_of_several_answers_the_first_one_goes_on_with_the_chat(serve, ctl):
    server = serve(two)
    assert ctl("chat", "--n", "2", input="hello\nand?\n").returncode == 0
    assert server.received[1]["messages"][1] == {"role": "assistant", "content": "Hi you"}


def test_probabilities_go_to_standard_error(serve, ctl):
    serve(two)
    done = ctl("generate", "p", "--n", "2", "--logprobs", "1")
    assert done.stdout == "[2] Oh!\n[1] Hi you\n"
    assert done.stderr.splitlines()[:3] == ["[1]", "'Hi' 0.607  'Hi' 0.607", "'Hi' 0.607  'Hi' 0.607"]
