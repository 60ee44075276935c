"""Constrained answers over the wire, from a real model."""

from __future__ import annotations

import json
import re
import threading

import jsonschema
import pytest

from tests.daemon.examples import EXAMPLES
from tests.daemon.support import DRAFT, Stream, text_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_the_documented_example_and_every_kind(serve_model, engine):
    daemon = serve_model("--engine", engine)
    (documented,) = EXAMPLES["constraint"].requests
    with daemon.connect() as wire:
        wire.send(id="e", **documented)
        eos = wire.until_final("e")[-1]
        assert eos["reason"] == "stop"
        jsonschema.validate(json.loads(eos["text"]), documented["constraint"]["json_schema"])
        for seed, temperature in ((1, 0), (2, 1)):
            common = {"prompt": "The shell is", "max_tokens": 250, "seed": seed, "temperature": temperature}
            wire.send(id="s", constraint={"json_schema": SCHEMA}, **common)
            jsonschema.validate(json.loads(text_of(wire.until_final("s"))), SCHEMA)
            wire.send(id="r", constraint={"regex": "[A-Z][a-z]{2,5} is [0-9]+"}, **common)
            assert re.fullmatch("[A-Z][a-z]{2,5} is [0-9]*", text_of(wire.until_final("r")))
            wire.send(id="c", constraint={"choices": ["yes", "no", "yes and no"]}, **common)
            assert text_of(wire.until_final("c")) in ("yes", "no", "yes and no")
            wire.send(id="l", constraint={"lark": 'start: "<" word ("," word)? ">"\nword: /[a-z]{3}/'}, **common)
            assert re.fullmatch("<[a-z]{3}(,[a-z]{3})?>", text_of(wire.until_final("l")))
            wire.send(id="g", constraint={"gbnf": 'root ::= "<" x ">"\nx ::= "(" x ")" | [a-c]{1,3} "cd"'}, **common)
            assert re.fullmatch(r"<\(*([a-c]+cd\)*>|)", text_of(wire.until_final("g")))
            wire.send(
                id="t",
                constraint={"regex": "[0-9]{2}#", "triggers": [{"type": "pattern", "value": "[a-z]$", "after": True}]},
                **common,
            )
            assert re.fullmatch("(?s).*?[a-z][0-9]{2}#", text_of(wire.until_final("t")))
            then = {"regex": " is [0-9]{2}#", "triggers": [{"type": "word", "value": " th", "after": True}]}
            wire.send(id="w", constraint=then, **common | {"logit_bias": [[" the", 30], [" th", 20]]})
            assert text_of(wire.until_final("w")).endswith("#"), "no ` the`, which goes on as the grammar refuses"
            wire.send(id="p", constraint={"regex": "is a [a-z]{4}", "prefix": "is a"}, **common)
            assert re.fullmatch(" [a-z]{4}", text_of(wire.until_final("p")))
    assert set(daemon.ask("props")["capabilities"]["constraints"]) == {
        "json_schema",
        "json",
        "regex",
        "choices",
        "gbnf",
        "lark",
    }
    found = daemon.ask("metrics")["metrics"]["constraint_cache_total"]
    assert found["hit"] >= 5 and found["miss"] >= 7, "the second time they are found compiled"


def test_what_cannot_be_enforced_is_refused_by_name(serve_model):
    daemon = serve_model("--engine", "llama")
    bad = [
        (
            {"json_schema": {"type": "object", "properties": {"a": {"not": {}}}}},
            {"keyword": "not", "path": "/properties/a/not"},
        ),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, {"keyword": "uniqueItems"}),
        ({"json_schema": {"format": "color"}}, {"keyword": "format"}),
        ({"json_schema": {"pattern": "(?=a)"}}, {"keyword": "pattern"}),
        ({"json_schema": False}, {"field": "constraint.json_schema"}),
        ({"regex": "("}, {"field": "constraint.regex"}),
        ({"regex": ""}, {"field": "constraint.regex"}),
        ({"lark": "start: nothing"}, {"field": "constraint.lark"}),
        ({"regex": "a", "prefix": "b"}, {"field": "constraint.prefix"}),
        ({"regex": "a", "triggers": [{"type": "pattern", "value": "("}]}, {"field": "constraint.triggers"}),
        ({"regex": "a", "triggers": [{"type": "token", "value": "<|none|>"}]}, {"field": "constraint.triggers"}),
        ({"regex": "a", "triggers": [{"type": "word"}]}, {"field": "constraint.triggers[0].value"}),
        ({"regex": "a", "json": True}, {"field": "constraint.regex"}),
        ({}, {"field": "constraint.json_schema"}),
        ({"jsonschema": {}}, {"field": "constraint.jsonschema"}),
    ]
    with daemon.connect() as wire:
        for constraint, detail in bad:
            wire.send(id="x", prompt="a", constraint=constraint)
            (error,) = wire.until_final("x")
            assert error["event"] == "error" and error["name"] in ("constraint_refused", "bad_request"), error
            assert detail.items() <= error["detail"].items(), (constraint, error)
        wire.send(id="y", prompt="a", max_tokens=3)
        assert wire.until_final("y")[-1]["event"] == "eos", "the connection goes on"


def test_a_model_that_replaces_another_gets_grammars_of_its_own(serve_model):
    daemon = serve_model("--engine", "llama")
    schema = {"json_schema": SCHEMA}
    first = Stream(daemon.path, constraint=schema, max_tokens=250, ignore_eos=False)
    assert first.end()["reason"] == "stop"
    beside = threading.Thread(target=lambda: daemon.ask("reload", model=str(DRAFT)))
    beside.start()
    streams = [
        Stream(daemon.path, prompt=f"The {i}", constraint=schema, max_tokens=250, ignore_eos=False) for i in range(4)
    ]
    for stream in streams:
        assert stream.end()["reason"] == "stop"
        jsonschema.validate(json.loads(stream.text), SCHEMA)
    beside.join()
