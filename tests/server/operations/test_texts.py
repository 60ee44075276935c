"""`tokenize`, `detokenize`, `count` and `apply_template` over the socket."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.engine.fake.engine import FakeEngine
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.operations import texts

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


@pytest.fixture
def client(server):
    with server.connect() as client:
        yield client


def test_text_becomes_tokens(client):
    assert client.ask(type="tokenize", id=7, content="hé") == {
        "tokens": [*"hé".encode()],
        "id": 7,
        "event": "reply",
        "type": "tokenize",
    }
    assert client.ask(type="tokenize", content="a", add_special=True)["tokens"] == [1, 97]
    assert client.ask(type="tokenize", content="")["tokens"] == []


def test_pieces_are_text_or_the_bytes_of_a_part_of_a_character(client):
    reply = client.ask(type="tokenize", content="aé", add_special=True, with_pieces=True)
    assert reply["pieces"] == ["[B]", "a", [0xC3], [0xA9]]
    reply = client.ask(type="detokenize", tokens=[1, 97, 0xC3], with_pieces=True)
    assert (reply["content"], reply["pieces"]) == ("[B]a\ufffd", ["[B]", "a", [0xC3]])
    reply = client.ask(type="detokenize", tokens=[1, 97], with_pieces=True, unparse_special=False)
    assert (reply["content"], reply["pieces"]) == ("a", ["", "a"])


def test_tokens_become_the_text_that_they_came_from(client):
    text = 'Grüße,\n"Welt" \u2028 𝄞' * 1000
    assert client.ask(type="detokenize", tokens=client.ask(type="tokenize", content=text)["tokens"])["content"] == text


def test_an_empty_text_becomes_no_tokens_and_a_text_again(client):
    assert client.ask(type="tokenize", content="", with_pieces=True)["tokens"] == []
    reply = client.ask(type="detokenize", tokens=[], with_pieces=True)
    assert (reply["content"], reply["pieces"]) == ("", [])


def test_a_token_that_the_model_does_not_have(client):
    error = client.ask(type="detokenize", id="x", tokens=[97, 256])
    assert (error["id"], error["name"], error["detail"]["field"]) == ("x", "bad_request", "tokens")
    assert "255" in error["message"]


@pytest.mark.parametrize("given", [{"prompt": "twelve bytes"}, {"tokens": [5, 6, 7]}, {"messages": CHAT}])
def test_count_tells_what_generate_would_read(client, given):
    n_tokens = client.ask(type="count", **given)["n_tokens"]
    client.send(id="a", stream=False, max_tokens=1, **given)
    assert client.until_final("a")[-1]["usage"]["prompt_tokens"] == n_tokens > 0


@pytest.mark.parametrize("given", [{}, {"prompt": "a", "tokens": [1]}])
def test_count_wants_one_input(client, given):
    assert client.ask(type="count", **given)["name"] == "bad_request"


def test_a_chat_becomes_a_prompt_that_gives_the_same_tokens(server, client):
    server.model = FakeEngine()  # its tokeniser adds BOS
    by_messages = client.ask(type="count", messages=CHAT)["n_tokens"]
    for template in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        server.model.chat_template = lambda template=template: template
        prompt = client.ask(type="apply_template", messages=CHAT)["prompt"]
        assert prompt == "be brief"
        assert client.ask(type="count", prompt=prompt) == client.ask(type="count", messages=CHAT)
    assert by_messages > 9


def test_the_generation_prompt_can_be_left_out(client):
    assert client.ask(type="apply_template", messages=CHAT)["prompt"] == "[B]<system>be brief<user>hi<a>"
    assert (
        client.ask(type="apply_template", messages=CHAT, add_generation_prompt=False)["prompt"]
        == "[B]<system>be brief<user>hi"
    )


def test_no_template_is_a_coded_error(server, client):
    server.text.template = None
    assert client.ask(type="apply_template", messages=CHAT)["name"] == "template_failed"
    assert client.ask(type="count", messages=CHAT)["name"] == "template_failed"


@pytest.mark.parametrize(
    "given", [{"type": "tokenize"}, {"type": "detokenize"}, {"type": "apply_template", "messages": []}]
)
def test_what_is_required_is_told(client, given):
    assert client.ask(**given)["name"] == "bad_request"


def test_nothing_waits_for_a_long_text(server, client):
    started, release = server.text.block("paste")
    client.send(type="tokenize", id="long", content="paste")
    assert started.wait(20)
    assert client.ask(type="status", id="s")["state"] == "ready"
    with server.connect() as other:
        other.send(id="g", prompt="x", max_tokens=1)
        assert other.until_final("g")[-1]["event"] == "eos"
    release.set()
    assert client.event()["id"] == "long"


def test_one_whose_client_left_answers_nobody(server):
    started, release = server.text.block("paste")
    with server.connect() as client:
        client.send(type="tokenize", content="paste")
        client.send(type="tokenize", content="waits")
        assert started.wait(20)
    server.eventually(lambda: not server.app.clients)
    release.set()
    server.eventually(lambda: server.app.intake.n_jobs == 0)


def test_a_drain_does_not_refuse_them_but_a_missing_model_does(server, client):
    server.closed = UmaError(ErrorCode.DRAINING)
    assert client.ask(type="tokenize", content="a")["tokens"] == [97]
    server.model = None
    assert client.ask(type="tokenize", content="a")["name"] == "model_not_loaded"


def test_a_bug_of_the_tokeniser_is_a_coded_error(server, client):
    server.text.tokenize = lambda *_: 1 / 0
    assert client.ask(type="tokenize", id=1, content="a")["code"] == "E_INTERNAL_003"
    assert client.ask(type="status", id=2)["event"] == "reply"


def test_a_text_past_the_cap_is_refused(serve):
    with serve(limits={"max_prompt_bytes": 100, "trusted_prompt_bytes": 100}).connect() as client:
        assert client.ask(type="tokenize", content="x" * 101)["name"] == "prompt_too_large"
        assert client.ask(type="detokenize", tokens=[65] * 26)["name"] == "prompt_too_large"
        assert (
            client.ask(type="apply_template", messages=[{"role": "user", "content": "x" * 101}])["name"]
            == "prompt_too_large"
        )
        assert len(client.ask(type="tokenize", content="x" * 100)["tokens"]) == 100


def test_an_answer_past_what_a_reader_may_leave_unread_is_refused(serve):
    """If it were sent, the client would be dropped as a slow one."""
    with serve(ipc={"tx_hard_bytes": 4096, "tx_soft_bytes": 1024}).connect() as client:
        error = client.ask(type="tokenize", content="x" * 2000, with_pieces=True)
        assert (error["name"], error["detail"]["limit"]) == ("prompt_too_large", 4096)
        assert len(client.ask(type="tokenize", content="x" * 200, with_pieces=True)["tokens"]) == 200


def test_too_many_at_once_are_refused(serve):
    server = serve(limits={"max_sessions": 1})
    started, release = server.text.block("paste")
    with server.connect() as client:
        client.send(type="tokenize", id=0, content="paste")
        client.send(type="tokenize", id=1, content="paste")
        assert started.wait(20)
        for id in range(2, 6):
            client.send(type="tokenize", id=id, content="paste")
        refused = [client.event(), client.event()]
        assert [event["name"] for event in refused] == ["overloaded"] * 2
        release.set()
        assert sorted(client.event()["id"] for _ in range(4)) == [0, 1, 2, 3]


def test_stopping_answers_what_waits(serve):
    server = serve()
    started, release = server.text.block("paste" * 4000)
    with server.connect() as client:
        client.send(type="tokenize", id=1, content="paste" * 4000)
        client.send(type="tokenize", id=2, content="later" * 4000)
        assert started.wait(20)
        server.eventually(lambda: server.app.intake.n_jobs == 2)
        server.loop.stop()
        threading.Timer(0.1, release.set).start()
        assert {event["id"]: event.get("name") for event in (client.event(), client.event())} == {
            1: None,
            2: "shutting_down",
        }


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(st.integers(), st.text(), st.lists(st.integers() | st.text() | st.lists(st.integers()))),
        min_size=1,
    ),
    st.integers(1, 4),
)
def test_slices_make_the_same_json(fields, n_each):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "SLICE", n_each)
        assert json.loads(b"{" + texts.fields_json(fields) + b"}") == fields
