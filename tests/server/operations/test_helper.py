"""Large requests are read in a separate process: the result is the same, and a failure of that process costs one
request.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from uma_core.config.options import EngineOptions
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.engine.llama.model import LlamaModel, Parts
from uma_core.errors import ErrorCode, UmaError
from uma_core.models import default_model_path
from uma_core.protocol.messages import Source, Unfit
from uma_core.server.operations import helper as helper_module
from uma_core.server.operations.helper import Helper
from uma_core.server.operations.large import Digest, Local

WAIT_S = 60.0
CHAT = [
    {"role": "user", "content": "héllo"},
    {"role": "assistant", "content": "yes", "name": "x"},
    {"role": "user", "content": "?"},
]


def source(**fields) -> Source:
    return Source(json.dumps(fields).encode(), False, 0)


@pytest.fixture(scope="module")
def helper():
    made = Helper()
    yield made
    made.close()


@pytest.fixture(scope="module")
def fake():
    return FakeEngine(FakeModel())


@pytest.mark.parametrize(
    "payload",
    [
        b'{"id":"a","prompt":"hi","max_tokens":3,"stop":["x"],"slo":{"target_ttft_ms":1.5},"metadata":{"k":"v"}}',
        '{"id":7,"messages":[{"role":"user","content":"h\u00e9"}],"logit_bias":[[5,-1.5]]}'.encode(),
        b'{"tokens":[1,2,3]}',
        b'{"type":"tokenize","id":1,"content":"abc"}',
        b'{"type":"status"}',
        b'{"id":"a","prompt":"hi","max_tokn":3}',
        b'{"id":"a","prompt":5}',
        b'{"type":"explode","id":3}',
        b"[]",
        b"{",
        b'{"prompt":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_a_request_is_decoded_as_in_the_daemon(helper, payload):
    found, expected = helper.digest(payload), Local().digest(payload)
    if isinstance(expected, Unfit):
        assert isinstance(found, Unfit)
        assert (found.wire_id, found.error.to_dict()) == (expected.wire_id, expected.error.to_dict())
    else:
        assert isinstance(found, Digest)
        assert found == expected
        assert all(found.args.get(name) is None for name in ("prompt", "tokens", "messages", "content"))


@pytest.mark.parametrize("given", [{"prompt": "abc \u00e9"}, {"messages": CHAT}, {"tokens": [5, 6, 7]}])
def test_tokens_are_those_of_the_daemon(helper, fake, given):
    found, expected = helper.encode(fake, source(**given)), Local().encode(fake, source(**given))
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.message_ends == expected.message_ends


def test_a_prompt_line_is_its_own_source(helper, fake):
    assert helper.encode(fake, Source(b"plain {text}", True, 12)).tokens.tolist() == fake.tokenize(
        "plain {text}", True, True
    )


def test_a_models_own_vocabulary_is_read_there(helper):
    """So is its own template, if it has one."""
    model = LlamaModel(str(default_model_path()), EngineOptions(), None, Parts.VOCABULARY)
    text = SimpleNamespace(info=SimpleNamespace(engine="graph", model_path=model.path, fingerprint=model.fingerprint))
    prompt = "The shell reads commands and " * 50
    assert helper.encode(text, source(prompt=prompt)).tokens.tolist() == model.tokenize(prompt, True, True)


@pytest.mark.parametrize("op", ["tokenize", "detokenize", "count", "apply_template"])
def test_operations_on_text(helper, fake, op):
    given = {
        "tokenize": {"content": "abc", "with_pieces": True},
        "detokenize": {"tokens": [97, 98]},
        "count": {"prompt": "ab"},
    }
    asked = source(type=op, **given.get(op, {"messages": CHAT}))
    assert helper.answer(fake, op, asked, 1 << 20) == Local().answer(fake, op, asked, 1 << 20)


def test_refusals_come_through(helper, fake):
    with pytest.raises(UmaError) as caught:
        helper.answer(fake, "tokenize", source(type="tokenize", content="x" * 1000), 100)
    assert caught.value.error is ErrorCode.PROMPT_TOO_LARGE
    assert caught.value.detail["limit"] == 100


def test_another_file_than_the_loaded_one_is_not_trusted(helper, fake, tmp_path):
    """The file was replaced after the daemon loaded it, so the daemon reads with its own vocabulary."""
    path = tmp_path / "m.gguf"
    path.write_bytes(default_model_path().read_bytes())
    for engine_path in (path, tmp_path / "gone.gguf"):
        fake_info = SimpleNamespace(engine="llama", model_path=str(engine_path), fingerprint="another")
        text = SimpleNamespace(info=fake_info, tokenize=fake.tokenize)
        assert helper.encode(text, source(prompt="abc")).tokens.tolist() == fake.tokenize("abc", True, True)


def test_its_end_costs_nothing_and_a_request_that_ends_it_only_itself(fake, monkeypatch):
    helper = Helper()
    try:
        helper.prepare(fake)
        os.kill(helper._process.pid, signal.SIGKILL)
        assert helper.encode(fake, source(prompt="ab")).tokens.tolist() == fake.tokenize("ab", True, True)
        start = helper._start

        def start_and_kill():
            connection = start()
            os.kill(helper._process.pid, signal.SIGKILL)
            return connection

        monkeypatch.setattr(helper, "_start", start_and_kill)
        os.kill(helper._process.pid, signal.SIGKILL)
        error = _refusal(helper, fake)
        assert error.error is ErrorCode.INTERNAL
        assert "ended its process" in error.message
        monkeypatch.undo()
        assert helper.encode(fake, source(prompt="ab")).tokens.tolist() == fake.tokenize("ab", True, True)
    finally:
        helper.close()


def _refusal(helper: Helper, fake) -> UmaError:
    try:
        helper.encode(fake, source(prompt="x" * 3_000_000))
    except UmaError as error:
        return error
    raise AssertionError("it was read")


def test_what_takes_too_long_is_ended(fake, monkeypatch):
    monkeypatch.setattr(helper_module, "ANSWER_S", 0.2)
    helper = Helper()
    try:
        helper._start()
        os.kill(helper._process.pid, signal.SIGSTOP)
        assert "took too long" in _refusal(helper, fake).message
        assert helper._process is None
    finally:
        helper.close()


@pytest.mark.parametrize("n_reads", [0, 1, 2])
def test_an_answer_for_which_there_was_no_memory_is_not_taken_for_the_next_ones(fake, monkeypatch, n_reads):
    """Before, the next request got this one's tokens, or waited for bytes that never came. `n_reads`: parts of the
    answer that were read.
    """
    helper, read, left = Helper(), helper_module._exactly, [n_reads]

    def fails_once(*args):
        left[0] -= 1
        if left[0] == -1:
            raise MemoryError
        return read(*args)

    monkeypatch.setattr(helper_module, "_exactly", fails_once)
    monkeypatch.setattr(helper_module, "ANSWER_S", 10.0)
    with pytest.raises(MemoryError):
        helper.encode(fake, source(prompt="somebody else's text"))
    assert helper.encode(fake, source(prompt="mine")).tokens.tolist() == fake.tokenize("mine", True, False)
    helper.close()


def test_where_no_process_can_be_started_the_daemon_reads_itself(fake, monkeypatch):
    monkeypatch.setattr(helper_module.sys, "executable", "/nowhere/python")
    helper = Helper()
    assert helper.digest(b'{"prompt":"a"}') == Local().digest(b'{"prompt":"a"}')
    assert helper.encode(fake, source(prompt="ab")).tokens.tolist() == fake.tokenize("ab", True, True)
    helper.close()


def test_it_ends_silently_with_a_daemon_that_was_killed(capfd):
    """Nobody reads the helper's answer any more, and that is no error of the helper."""
    here, there = socket.socketpair()
    flag = helper_module.Flag()
    helper_module.send(here, helper_module.DIGEST, (), b'{"prompt":"a"}')
    here.close()
    command = [sys.executable, "-I", "-c", helper_module.BOOT, json.dumps(sys.path), str(there.fileno()), str(flag.fd)]
    with there:
        ended = subprocess.run(command, pass_fds=(there.fileno(), flag.fd), timeout=WAIT_S, check=False)
    assert (ended.returncode, capfd.readouterr().err) == (0, "")


def test_closing_gives_up_what_is_being_read(fake):
    helper = Helper()
    helper.prepare(fake)
    process = helper._process
    os.kill(process.pid, signal.SIGSTOP)
    outcome: list = []
    asked = threading.Thread(target=lambda: outcome.append(_refusal(helper, fake)))
    asked.start()
    helper.close()
    asked.join(WAIT_S)
    assert outcome[0].error is ErrorCode.SHUTTING_DOWN
    assert process.poll() is not None


@pytest.mark.parametrize("is_crowded", [False, True])
def test_it_reads_in_turns_and_sleeps_without_work(fake, is_crowded):
    """Pausing does not change the result, and no timer runs while there is no work."""
    helper = Helper()
    try:
        helper.is_crowded.set(is_crowded)
        words = "word " * 20_000
        assert helper.encode(fake, source(prompt=words)).tokens.tolist() == fake.tokenize(words, True, True)
        status = Path(f"/proc/{helper._process.pid}/status").read_text()
        wakes = int(status.split("nonvoluntary_ctxt_switches:")[0].split("voluntary_ctxt_switches:")[1])
        threading.Event().wait(0.3)
        status = Path(f"/proc/{helper._process.pid}/status").read_text()
        assert int(status.split("nonvoluntary_ctxt_switches:")[0].split("voluntary_ctxt_switches:")[1]) - wakes <= 5
    finally:
        helper.close()
