"""Anthropic's own client, unmodified, on the simulated engine and on a small model that calls tools."""

from __future__ import annotations

import json

import pytest

from tests.daemon.support import eventually
from tests.gateway.apis.anthropic.test_request import (
    ASKED,
    COLD,
    HELLO,
    SEARCH,
    TIMER,
    WEATHER,
    ask,
    searched,
)
from tests.gateway.support import GatewayProcess, Raw, n_busy
from tests.late import Late
from uma_gateway.apis.anthropic.messages import Shape, StreamWriter, blocks
from uma_gateway.chat.diff import Diff
from uma_gateway.parsing import Message

anthropic = Late("anthropic")


def client_of(gateway: GatewayProcess, **options) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, **{"api_key": "none", "max_retries": 0, **options})


@pytest.fixture
def client(gateway):
    with client_of(gateway) as client:
        yield client


@pytest.fixture
def work_client(work_gateway):
    with client_of(work_gateway) as client:
        yield client


def test_parts_that_follow_each_other_are_blocks_of_their_own():
    writer = StreamWriter(Shape("m", []))
    diffs = [
        Diff(reasoning="Hm"),
        Diff(reasoning="."),
        Diff(content="\n\n"),
        Diff(content="Yes"),
        Diff(content="\n"),
        Diff(tool=0, tool_id="a", tool_name="f", tool_arguments='{"x"'),
        Diff(tool=0, tool_arguments=":1}"),
        Diff(tool=1, tool_id="b", tool_name="g", tool_arguments="{}"),
    ]
    counts = {"prompt_tokens": 5, "cached_tokens": 2, "completion_tokens": 7, "reasoning_tokens": 3}
    eos = {"reason": "stop", "usage": counts}
    raw = writer.start() + writer.diffs(diffs) + writer.end(eos)
    names = [line[7:] for line in raw.decode().split("\n") if line.startswith("event: ")]
    assert names.count("content_block_start") == names.count("content_block_stop") == 4
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    events = [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: ")]
    thought_ends = next(i for i, event in enumerate(events) if event["type"] == "content_block_stop")
    assert events[thought_ends - 1]["delta"] == {"type": "signature_delta", "signature": "unsigned"}
    assert sum(event.get("delta", {}).get("type") == "signature_delta" for event in events) == 1
    assert b'"text":"\\n\\nYes"' in raw and b'"stop_reason":"tool_use"' in raw and b'"cache_read_input_tokens":2' in raw
    assert [event["usage"]["output_tokens_details"] for event in events if "usage" in event] == [{"thinking_tokens": 3}]


def test_a_whole_thought_has_a_signature_too():
    """Clients send a thought without a signature back as text, and the model would read it as a part of its answer."""
    thought, text = blocks(Message("Yes", "Hm."))
    assert thought == {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"}
    assert text["text"] == "Yes"


def test_whole_and_streamed(client):
    whole = client.messages.create(**ask())
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12 and whole.role == "assistant"
    with client.messages.stream(**ask()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 12
    assert final.usage.cache_read_input_tokens > 0


def test_the_first_event_counts_the_prompt(client, gateway):
    """LangChain.js reads the count there, and only there."""
    with client.messages.stream(**ask()) as stream:
        counted = [event.message.usage for event in stream if event.type == "message_start"]
        final = stream.get_final_message().usage
    (start,) = counted
    assert start.input_tokens + start.cache_read_input_tokens == final.input_tokens + final.cache_read_input_tokens > 0
    assert (start.input_tokens, start.output_tokens) == (final.input_tokens, 0)
    raw = gateway.post("/v1/messages", **{**ask(), "extra_body": None}, stream=True)
    assert [event["type"] for event in raw.events].count("message_start") == 1
    assert raw.events[0]["type"] == "message_start"


def test_an_error_about_stop_sequences_names_them(gateway):
    for sequences in (["x"] * 33, ["x" * 1025]):
        assert "`stop_sequences" in gateway.post("/v1/messages", **ask(stop_sequences=sequences)).error["message"]


def test_stop_sequences(client):
    text = client.messages.create(**ask(max_tokens=40)).content[0].text
    stopped = client.messages.create(**ask(max_tokens=40, stop_sequences=[text[9:12]]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[9:12])
    assert stopped.content[0].text == text[: text.index(text[9:12])]


def test_counted_tokens_are_those_that_are_read(client):
    fields = {"model": "any", "messages": HELLO, "system": "Be brief."}
    n_tokens = client.messages.count_tokens(**fields).input_tokens
    read_tokens = client.messages.create(**fields, max_tokens=1).usage
    assert n_tokens == read_tokens.input_tokens + read_tokens.cache_read_input_tokens


def test_billing_lines_leave_the_cache_as_it_is(client):
    def n_cached(line):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={line};"},
            {"type": "text", "text": "Be brief and kind. " * 20},
        ]
        counts = client.messages.create(**ask(system=system)).usage
        return counts.cache_read_input_tokens, counts.input_tokens

    n_cached("first")
    again, new = n_cached("second")
    assert again > 10 * new


def test_errors_are_the_clients_own(client, gateway):
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.post("/v1/messages", body={"model": "any", "messages": HELLO}, cast_to=object)
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**ask(messages=[{"role": "user", "content": "long " * 20_000}]))
    assert "prompt is too long" in str(caught.value)
    assert caught.value.body["type"] == "error" and caught.value.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"temperature": 1.5}, 400, "temperature"),
        ({"temperature": -0.1}, 400, "temperature"),
        ({"thinking": {"type": "enabled"}}, 400, "budget_tokens"),
        ({"mcp_servers": [{}]}, 501, "mcp_servers"),
        ({"container": "container_1"}, 501, "container"),
        ({"thread": {"type": "create"}}, 400, "thread"),
        ({"compaction": {"type": "summarize"}}, 501, "compaction"),
    ],
)
def test_a_wrong_field_is_named_and_the_request_too(gateway, fields, status, word):
    answer = gateway.post("/v1/messages", **{**ask(), **fields})
    assert answer.status == status and word in answer.error["message"]
    assert answer.json["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert "request-id" not in gateway.post("/v1/chat/completions", **fields).headers


def test_its_clients_own_loop_calls_a_tool_and_answers(work_client):
    """The client asks to keep its conversation on the server, and is told that it is not kept."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return "Sunny"

    runner = work_client.beta.messages.tool_runner(
        model="any", max_tokens=100, messages=ASKED, tools=[get_weather], extra_body=COLD
    )
    assert runner.until_done().stop_reason == "end_turn"
    assert asked == ["Paris"]


def test_a_thread_is_refused_in_words_that_the_client_knows(gateway):
    answer = gateway.post("/v1/messages", **ask(), thread={"type": "continue", "previous_message_id": "msg_1"})
    assert answer.error["details"] == {"error_code": "thread_unsupported_request"}
    assert gateway.post("/v1/messages", **ask(), thread=None).status == 200


def test_an_error_in_mid_stream_names_its_request(gateway, levers):
    levers(statuses=["OK"] * 4 + ["FATAL"])
    answer = gateway.post("/v1/messages", **{**ask(max_tokens=50), "stream": True})
    assert answer.events[-1]["type"] == "error"
    assert answer.events[-1]["request_id"] == answer.headers["request-id"]


def test_its_client_lists_the_model(client, gateway):
    (model,) = client.models.list(limit=20)
    assert (model.type, model.display_name, model.lifecycle) == ("model", model.id, "active")
    assert model.created_at.year > 2020 and model.max_input_tokens == model.max_tokens > 0
    assert client.models.retrieve(model.id) == model
    assert "display_name" not in gateway.get("/v1/models").json["data"][0]


def test_its_client_knows_the_request(client):
    assert client.messages.create(**ask())._request_id.startswith("req_")


def test_a_stream_that_its_reader_leaves_is_cancelled(gateway, fake, levers):
    levers(step_ms=20)
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/messages", {**ask(max_tokens=2000), "stream": True})
        raw.until(b"content_block_delta")
    eventually(lambda: n_busy(fake) == 0)


def test_tools_are_called_and_their_results_read(work_client):
    fields = {"model": "any", "max_tokens": 150, "extra_body": COLD, "tools": [WEATHER, TIMER]}
    called = work_client.messages.create(**fields, messages=ASKED)
    (call,) = [block for block in called.content if block.type == "tool_use"]
    assert called.stop_reason == "tool_use" and (call.name, call.input) == ("get_weather", {"city": "Paris"})
    with work_client.messages.stream(**fields, messages=ASKED) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [(block.name, block.input) for block in final.content if block.type == "tool_use"] == [
        ("get_weather", {"city": "Paris"})
    ]
    assert "input_json" in kinds and final.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21 degrees"}
    messages = [*ASKED, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert work_client.messages.create(**fields, messages=messages).stop_reason in (
        "end_turn",
        "max_tokens",
        "tool_use",
    )


def test_a_budget_for_thinking_beside_tools_or_a_schema_is_no_error(work_client):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    fields = {"model": "any", "max_tokens": 300, "extra_body": COLD, "thinking": thinking}
    called = work_client.messages.create(**fields, messages=ASKED, tools=[WEATHER, TIMER])
    assert [block.name for block in called.content if block.type == "tool_use"] == ["get_weather"]
    form = {"format": {"type": "json_schema", "schema": {"const": "seven"}}}
    question = [{"role": "user", "content": "What is 3 + 4? /think"}]
    held = work_client.messages.create(**{**fields, "extra_body": {**COLD, "output_config": form}}, messages=question)
    assert held.content[-1].text.strip() == '"seven"'


@pytest.mark.parametrize("last", ["", []])
def test_an_empty_last_message_is_answered_as_any_other(client, last):
    empty = {"role": "assistant", "content": last}
    said = [client.messages.create(**ask(messages=each)).content for each in (HELLO, [*HELLO, empty])]
    assert said[0] == said[1]


def test_a_named_tool_is_called_whatever_the_question(work_client):
    choice = {"type": "tool", "name": "set_timer"}
    called = work_client.messages.create(
        **ask(messages=ASKED, max_tokens=150, tools=[WEATHER, TIMER], tool_choice=choice)
    )
    assert [block.name for block in called.content if block.type == "tool_use"] == ["set_timer"]
    assert isinstance(called.content[-1].input["minutes"], int)


def test_its_client_is_answered_where_a_search_found_a_tool(work_client):
    messages = [*ASKED, *searched("get_weather")]
    tools = [SEARCH, {**WEATHER, "defer_loading": True}]
    (call,) = work_client.messages.create(
        **ask(tools=tools, messages=messages, max_tokens=150, tool_choice={"type": "tool", "name": "get_weather"})
    ).content
    assert (call.type, call.name) == ("tool_use", "get_weather")
