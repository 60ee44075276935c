"""Ollama's endpoints: with its own Python client where that covers them, and field by field."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Any

import pytest

from tests.gateway.support import GatewayProcess
from tests.late import Late
from uma_core.engine.fake.text import EOG
from uma_gateway.apis.ollama import Answer, _stream, chat_part
from uma_gateway.chat.diff import Diff

ollama = Late("ollama")

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(gateway: GatewayProcess) -> ollama.Client:
    return ollama.Client(gateway.url)


def lines(answer) -> list[dict]:
    return [json.loads(line) for line in answer.body.decode().splitlines()]


def test_a_whole_chat(client):
    answer = client.chat("any:latest", USER, options={"num_predict": 6, "temperature": 0, "num_ctx": 8192})
    assert answer.done and answer.done_reason == "length" and answer.message.role == "assistant"
    assert len(answer.message.content) == 6 == answer.eval_count and answer.prompt_eval_count > 0
    assert answer.total_duration >= answer.eval_duration > 0


def test_a_streamed_chat_says_what_the_whole_one_says(client, gateway):
    options = {"num_predict": 9, "temperature": 0}
    whole = client.chat("any", USER, options=options)
    parts = list(client.chat("any", USER, options=options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    raw = gateway.post("/api/chat", model="any", messages=USER, options=options)
    assert raw.headers["content-type"] == "application/x-ndjson"  # the default is a stream
    assert all({"model", "created_at", "message", "done"} <= line.keys() for line in lines(raw))


def test_generate_with_and_without_the_template(client):
    templated = client.generate("any", "hello", system="be brief", options={"num_predict": 4, "temperature": 0})
    raw = client.generate("any", "hello", raw=True, options={"num_predict": 4, "temperature": 0})
    assert len(templated.response) == 4 == len(raw.response)
    assert raw.prompt_eval_count < templated.prompt_eval_count
    assert (
        "".join(
            part.response for part in client.generate("any", "hello", raw=True, stream=True, options={"num_predict": 4})
        )
        != ""
    )


@pytest.mark.parametrize("template", ["{{ .Prompt }}", "{{.Prompt}}", "{{- .Prompt -}}\n"])
def test_a_template_of_the_prompt_alone_writes_what_a_raw_prompt_is(gateway, template):
    fields = {"model": "any", "prompt": "def f(", "stream": False, "options": {"num_predict": 1}}
    raw, plain = (gateway.post("/api/generate", **fields, **more) for more in ({"raw": True}, {"template": template}))
    assert plain.status == 200 and plain.json["prompt_eval_count"] == raw.json["prompt_eval_count"]
    refused = gateway.post("/api/generate", **fields, template=template, system="be brief")
    assert refused.status == 400 and "`template`" in refused.json["error"]


def test_a_raw_prompt_s_answer_has_its_form_too(tiny_gateway):
    fields = {"raw": True, "stream": False, "format": {"const": 7}, "options": {"num_predict": 20}}
    assert tiny_gateway.post("/api/generate", model="any", prompt="Hello", **fields).json["response"] == "7"


def test_a_message_that_does_not_begin_as_its_form_does_is_refused_by_its_name(tiny_gateway):
    messages = [*USER, {"role": "assistant", "content": "The "}]
    form = {"type": "object", "properties": {"a": {"type": "integer"}}}
    refused = tiny_gateway.post("/api/chat", messages=messages, format=form, stream=False)
    assert refused.status == 400 and "`messages`" in refused.json["error"], refused.json


def test_stop_and_unlimited_answers_end(client):
    text = client.chat("any", USER, options={"num_predict": 30, "temperature": 0}).message.content
    stopped = client.chat("any", USER, options={"num_predict": 30, "temperature": 0, "stop": [text[5:7]]})
    assert stopped.message.content == text[: text.index(text[5:7])] and stopped.done_reason == "stop"


def test_an_empty_conversation_only_loads(client):
    assert client.chat("any", []).done_reason == "load"
    assert client.generate("any", "").done_reason == "load"


@pytest.mark.parametrize("keep_alive", [0, "0", "0s", 0.0, "0h0m0s", "00.0ms0"])
def test_no_time_to_stay_asks_to_unload(client, gateway, keep_alive):
    assert client.generate("any", "", keep_alive=keep_alive).done_reason == "unload"
    assert client.chat("any", [], keep_alive=keep_alive).done_reason == "unload"
    # the last one took 2^n steps, in which the gateway answered nobody
    for other in ("10m", "0x", "", "0.5s", "0" * 100_000 + "x"):
        assert client.generate("any", "", keep_alive=other).done_reason == "load"
    assert client.chat("any", USER, keep_alive=0, options={"num_predict": 1}).done_reason == "length"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/chat", {"messages": USER}),
        ("/api/chat", {"messages": []}),
        ("/api/generate", {"prompt": "hello"}),
        ("/api/generate", {"prompt": ""}),
        ("/api/embed", {"input": "hello"}),
        ("/api/embed", {"input": []}),
    ],
)
def test_the_name_of_the_model_is_given_back(tiny_gateway, path, fields):
    answer = tiny_gateway.post(path, model="llama3:latest", options={"num_predict": 1}, **fields)
    assert [line["model"] for line in lines(answer)] == ["llama3:latest"] * len(lines(answer)) != []


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_every_token(gateway, path, stream):
    fields = {"messages": USER, "prompt": "hello", "stream": stream, "options": {"num_predict": 6, "temperature": 0}}
    told = lines(gateway.post(path, logprobs=True, top_logprobs=2, **fields))
    text = "".join(line["message"]["content"] if "message" in line else line["response"] for line in told)
    entries = [entry for line in told for entry in line.get("logprobs", ())]
    assert "".join(entry["token"] for entry in entries) == text and len(entries) == 6
    assert all(entry["bytes"] == list(entry["token"].encode()) and entry["logprob"] <= 0 for entry in entries)
    assert all(
        [len(entry["top_logprobs"]), *entry["top_logprobs"][0]] == [2, "token", "logprob", "bytes"] for entry in entries
    )
    assert not any("logprobs" in line for line in lines(gateway.post(path, **fields)))


def test_its_client_reads_log_probabilities(client):
    answer = client.chat("any", USER, logprobs=True, options={"num_predict": 3, "ignore_eos": True})
    assert len(answer.logprobs) == 3 and not answer.logprobs[0].top_logprobs


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_of_tools_counts(work_gateway, stream):
    names = ("get_weather", "set_timer")
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
    fields = {"tools": tools, "messages": USER, "stream": stream, "options": {"num_predict": 60, "temperature": 0}}

    def called(choice):
        told = lines(work_gateway.post("/api/chat", tool_choice=choice, **fields))
        return [call["function"]["name"] for line in told for call in line["message"].get("tool_calls", ())]

    assert called("required") and not called("none")
    assert called({"type": "function", "name": "set_timer"})[0] == "set_timer"  # as the AI SDK's provider writes it
    assert called({"type": "function", "function": {"name": "get_weather"}})[0] == "get_weather"


def test_a_last_message_of_the_assistant_is_continued(work_gateway):
    fields = {"stream": False, "options": {"num_predict": 12, "temperature": 0}}
    question = {"role": "user", "content": "Say: The sky is blue."}
    begun = {"role": "assistant", "content": "The sky is"}
    told = work_gateway.post("/api/chat", messages=[question, begun], **fields).json
    asked = work_gateway.post(
        "/v1/chat/completions", messages=[question, begun], max_tokens=12, temperature=0, continue_final_message=True,
        add_generation_prompt=False,
    ).json  # fmt: skip
    assert told["message"]["content"] == asked["choices"][0]["message"]["content"] != ""
    assert told["prompt_eval_count"] == asked["usage"]["prompt_tokens"]


def test_numbers_may_be_written_as_fractions(gateway):
    options = {"top_k": 40.0, "seed": 1.0, "num_predict": 5.0}
    assert gateway.post("/api/chat", messages=USER, stream=False, options=options).json["eval_count"] == 5


def test_an_answer_without_a_token_tells_how_long_its_prompt_took(gateway):
    """Clients show the rate; before, Open WebUI had none."""
    ends = {"logit_bias": {str(EOG): 100}, "temperature": 0}
    ended = gateway.post("/api/chat", messages=USER, stream=False, options=ends).json
    assert ended["eval_count"] == ended["eval_duration"] == 0
    assert 0 < ended["prompt_eval_duration"] <= ended["total_duration"]


def test_biases_may_be_a_text_of_pairs(gateway):
    """Open WebUI passes on its user's text in this form."""

    def said(**options) -> str:
        options |= {"num_predict": 6, "temperature": 0}
        return gateway.post("/api/chat", messages=USER, stream=False, options=options).json["message"]["content"]

    assert said(logit_bias="97:90, 98:-100") == said(logit_bias={"97": 90, "98": -100}) == "aaaaaa"
    assert said(logit_bias="") == said() != "aaaaaa"


def test_the_served_model_is_listed_shown_running_and_needs_no_pull(client, gateway):
    (listed,) = client.list().models
    assert listed.size > 0 and listed.digest and listed.details.format == "gguf" and listed.details.family
    raw = gateway.get("/api/tags").json["models"][0]
    assert raw["name"] == raw["model"] and raw["modified_at"].endswith("Z")
    shown = client.show(listed.model)
    arch = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{arch}.context_length"] > 0 and "completion" in shown.capabilities
    assert shown.modelinfo["general.basename"] == listed.model
    # Continue and others read the configured context here, and send conversations that fit it
    assert shown.parameters.split() == ["num_ctx", str(shown.modelinfo[f"{arch}.context_length"])]
    (running,) = client.ps().models
    assert running.model == listed.model
    assert running.expires_at.year > datetime.date.today().year + 200  # `ollama ps` shows that as forever
    assert client.pull(listed.model).status == "success"
    assert tuple(map(int, gateway.get("/api/version").json["version"].split("."))) >= (0, 14, 0)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/api/pull", {"model": "llama3"}, 501, "served"),
        ("/api/create", {"model": "x"}, 501, "managed"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 501, "images"),
        ("/api/chat", {"messages": "x"}, 400, "messages"),
        ("/api/chat", {"messages": [{"content": "x"}]}, 400, "role"),
        ("/api/chat", {"messages": [{"role": "wizard", "content": "x"}]}, 400, "wizard"),
        ("/api/chat", {"messages": USER, "top_logprobs": 21}, 400, "top_logprobs"),
        ("/api/chat", {"messages": USER, "format": 3}, 400, "format"),
        ("/api/chat", {"messages": USER, "think": "much"}, 400, "think"),
        ("/api/chat", {"messages": USER, "think": []}, 400, "think"),
        ("/api/chat", {"messages": USER, "options": {"temperature": "hot"}}, 400, "temperature"),
        ("/api/chat", {"messages": USER, "options": {"logit_bias": "none"}}, 400, "logit_bias"),
        ("/api/generate", {"prompt": "x", "template": "y"}, 501, "template"),
        ("/api/generate", {"prompt": "x", "system": "y", "raw": True}, 400, "system"),
        ("/api/nothing", {}, 404, "/api/nothing"),
    ],
)
def test_errors_are_a_text_that_names_what_is_wrong(gateway, path, body, status, word):
    answer = gateway.post(path, **body)
    assert answer.status == status and list(answer.json) == ["error"] and word in answer.json["error"]


@pytest.mark.parametrize("think", [True, False, "low", "medium", "high", "max"])
def test_the_model_may_be_told_how_much_to_think(gateway, think):
    answer = gateway.post("/api/chat", messages=USER, think=think, stream=False, options={"num_predict": 1})
    assert answer.status == 200


def test_an_error_in_a_stream_is_its_last_line_and_raised_by_the_client(gateway, client, levers):
    levers(statuses=["OK"] * 4 + ["FATAL"])
    with pytest.raises(ollama.ResponseError):
        list(client.chat("any", USER, stream=True))


def test_tool_results_are_matched_with_their_calls():
    from uma_gateway.apis.ollama import openai_messages

    calls = [
        {"function": {"name": name, "arguments": {"city": city}}}
        for name, city in (("weather", "Oslo"), ("time", "Rome"))
    ]
    made = openai_messages(
        [
            {"role": "user", "content": "both?"},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
            {"role": "tool", "tool_name": "time", "content": "9:00"},
            {"role": "tool", "content": "rain"},
        ]
    )
    weather, time = made[1]["tool_calls"]
    assert json.loads(weather["function"]["arguments"]) == {"city": "Oslo"} and made[1]["reasoning_content"] == "hm"
    assert (
        made[2]["tool_call_id"] == time["id"]
        and made[3]["tool_call_id"] == weather["id"]
        and made[3]["name"] == "weather"
    )


def test_results_of_one_tool_called_twice_are_told_apart_by_their_ids():
    from uma_gateway.apis.ollama import openai_messages

    calls = [{"id": name, "function": {"name": "weather", "arguments": {"city": name}}} for name in ("oslo", "rome")]
    results = [
        {"role": "tool", "tool_name": "weather", "tool_call_id": name, "content": name} for name in ("rome", "oslo")
    ]
    made = openai_messages([{"role": "assistant", "content": "", "tool_calls": calls}, *results])
    assert [(message["tool_call_id"], message["content"]) for message in made[1:]] == [("rome",) * 2, ("oslo",) * 2]


class Scripted:
    """An exchange with its generation and its parser. Tokens come one by one, one to a batch."""

    writer = None

    def __init__(self, diffs: list[list[Diff]], **end: Any) -> None:
        self.facts: dict = {}
        self.sent: list[list[dict]] = []  # the lines of each batch
        self._diffs = iter(diffs)
        timing, usage = {"total_ms": 1.0}, {"prompt_tokens": 1, "completion_tokens": 1}
        tokens = [{"event": "token", "text": "x"}] * (len(diffs) - 1)
        self._events = iter([*tokens, {"event": "eos", "reason": "stop", "timing": timing, "usage": usage, **end}])

    async def start_ndjson(self) -> None:
        pass

    async def write(self, data: bytes) -> None:
        self.sent.append([json.loads(line) for line in data.splitlines()])

    async def finish(self, data: bytes = b"") -> None:
        assert not data

    async def events(self) -> list[dict]:
        return [next(self._events)]

    def feed(self, text: str, is_final: bool = False) -> list[Diff]:
        return next(self._diffs)


def test_a_call_is_told_once_its_arguments_are_there():
    begun = [Diff(content="Hm."), Diff(tool=0, tool_id="a", tool_name="f")]
    scripted = Scripted(
        [
            [*begun, Diff(tool=0, tool_arguments='{"x":{"y":1}')],
            [Diff(tool=0, tool_arguments="}")],
            [Diff(tool=1, tool_id="b", tool_name="g"), Diff(tool=1, tool_arguments='{"z":')],
            [Diff(tool=2, tool_id="c", tool_name="h")],
            [],
        ]
    )
    asyncio.run(_stream(scripted, scripted, Answer("m", chat_part), scripted))
    told = [
        [[(call["function"]["index"], call["id"]) for call in line["message"].get("tool_calls", ())] for line in batch]
        for batch in scripted.sent
    ]
    assert told == [[[]], [[(0, "a")]], [[(1, "b")]], [[(2, "c")], []]]
    assert scripted.sent[1][0]["message"]["tool_calls"][0]["function"]["arguments"] == {"x": {"y": 1}}
    assert [line["done"] for batch in scripted.sent for line in batch] == [False, False, False, False, True]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_in_a_call_s_arguments_has_no_call(tiny_gateway, stream):
    text = {"type": "string", "minLength": 90}
    schema = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    tools = [{"type": "function", "function": {"name": "write", "parameters": schema}}]
    fields = {"messages": USER, "tools": tools, "tool_choice": "required", "stream": stream}
    told = lines(tiny_gateway.post("/api/chat", **fields, options={"num_predict": 30, "temperature": 0}))
    assert told[-1]["done_reason"] == "length" and not any("tool_calls" in line["message"] for line in told)


@pytest.mark.parametrize(
    ("end", "told"),
    [({"reason": "length"}, ["f"]), ({"stop": {"text": "x"}}, ["f"]), ({}, ["f", "g"])],
    ids=["limit", "stop", "whole"],
)
@pytest.mark.parametrize("begun", ["", '{"room":'])
def test_a_call_that_was_cut_off_is_not_told(begun, end, told):
    whole = [Diff(tool=0, tool_id="a", tool_name="f", tool_arguments="{}")]
    scripted = Scripted([whole, [Diff(tool=1, tool_id="b", tool_name="g", tool_arguments=begun)], []], **end)
    asyncio.run(_stream(scripted, scripted, Answer("m", chat_part), scripted))
    lines = [line["message"] for batch in scripted.sent for line in batch]
    assert [call["function"]["name"] for line in lines for call in line.get("tool_calls", ())] == told
