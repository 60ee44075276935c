"""Options that constrain an answer: what is sent, and what is refused before anything is sent."""

from __future__ import annotations

import json

import pytest

from tests.ctl.test_generate import hello


@pytest.fixture
def files(tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "deep.json").write_text('{"items":' * 100_000 + "{}" + "}" * 100_000)
    (tmp_path / "g.gbnf").write_text('root ::= "a"')
    (tmp_path / "g.lark").write_text('start: "a"')
    return tmp_path


@pytest.mark.parametrize("module", ["cli", "ctl"])
@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        (["--json-schema", "schema.json"], {"json_schema": {"type": "integer"}}),
        (["--json-object"], {"json": True}),
        (["--regex", "a+"], {"regex": "a+"}),
        (["--choices", "yes", "--choices", "no"], {"choices": ["yes", "no"]}),
        (["--grammar", "g.gbnf"], {"gbnf": 'root ::= "a"'}),
        (["--lark", "g.lark"], {"lark": 'start: "a"'}),
    ],
)
def test_each_becomes_the_field(serve, files, module, options, constraint, request):
    server = serve(hello)
    options = [str(files / option) if (files / option).exists() else option for option in options]
    run = request.getfixturevalue(module)
    done = run(*(["generate"] if module == "ctl" else []), "--prompt", "p", *options)
    assert done.returncode == 0, done.stderr
    assert server.received[0]["constraint"] == json.loads(json.dumps(constraint))


def test_every_turn_of_a_chat_is_held_to_it(serve, ctl, files):
    server = serve(hello)
    done = ctl("chat", "--json-schema", str(files / "schema.json"), input="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert [message["constraint"] for message in server.received] == [{"json_schema": {"type": "integer"}}] * 2


def test_none_is_sent_where_none_is_asked_for(serve, ctl):
    server = serve(hello)
    assert ctl("generate", "p").returncode == 0
    assert "constraint" not in server.received[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--regex", "a", "--json-object"], "give one of"),
        (["--json-schema", "broken.json"], "not JSON"),
        (["--json-schema", "deep.json"], "nested too deeply"),
        (["--lark", "none.lark"], "none.lark"),
    ],
)
def test_wrong_usage_is_said_and_nothing_is_sent(serve, ctl, files, options, said):
    server = serve(hello)
    done = ctl("generate", "p", *[str(files / option) if "." in option else option for option in options])
    assert done.returncode == 1 and said in done.stderr and not server.received
