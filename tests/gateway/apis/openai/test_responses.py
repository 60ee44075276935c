"""`/v1/responses`: items, stream events, and conversations that are continued by id."""

from __future__ import annotations

import json

import pytest

from tests.gateway.promised import adapter_of
from uma_gateway.apis.openai.items import to_messages
from uma_gateway.keys import entry, new_key

ITEM = "openai.types.responses:ResponseItem"
STREAM_EVENT = "openai.types.responses:ResponseStreamEvent"


def respond(gateway, given="hello", headers=None, **body):
    return gateway.post("/v1/responses", headers, input=given, **{"temperature": 0, "max_output_tokens": 8, **body})


def text_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def test_a_thought_is_a_part_that_is_added_before_its_text(work_gateway):
    """OpenAI's JavaScript client raises an error if text is added to a part that was not announced."""
    events = respond(work_gateway, "What is 3 + 4? /think", stream=True, max_output_tokens=300).events
    thought = events[-1]["response"]["output"][0]
    told = [event for event in events if event.get("item_id") == thought["id"]]
    kinds = list(dict.fromkeys(event["type"] for event in told))
    assert kinds == [
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
    ]
    assert {event["content_index"] for event in told} == {0}
    assert (told[0]["part"], told[-1]["part"]) == ({"type": "reasoning_text", "text": ""}, thought["content"][0])


def test_a_thought_is_told_as_the_summary_that_was_asked_for(work_gateway):
    """Most clients show only the summary: the AI SDK (so also opencode) and LangChain."""
    asked = {"reasoning": {"summary": "auto"}, "max_output_tokens": 300}
    events = respond(work_gateway, "What is 3 + 4? /think", stream=True, **asked).events
    response = events[-1]["response"]
    thought = response["output"][0]
    told = [event for event in events if event.get("item_id") == thought["id"]]
    assert list(dict.fromkeys(event["type"] for event in told)) == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    for event in told:
        adapter_of(STREAM_EVENT).validate_python(event)
        assert event["summary_index"] == 0
    said = "".join(event.get("delta", "") for event in told)
    assert said and thought["summary"] == [{"type": "summary_text", "text": said}]
    assert (thought["content"], thought["encrypted_content"], response["reasoning"]["summary"]) == ([], None, "auto")
    whole = respond(work_gateway, "What is 3 + 4? /think", **asked).json["output"][0]
    assert whole["summary"] == thought["summary"]


@pytest.mark.parametrize("reasoning", [{}, {"summary": "auto"}])
def test_a_thought_that_its_client_carries_is_read_again(work_gateway, reasoning):
    """With `store` false, clients send back only the thoughts that have `encrypted_content`."""
    answer = respond(
        work_gateway,
        "What is 3 + 4? /think",
        reasoning=reasoning,
        include=["reasoning.encrypted_content"],
        store=False,
        max_output_tokens=300,
    )
    thought = answer.json["output"][0]
    said = (thought["content"] or thought["summary"])[0]["text"]
    sent = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    assert to_messages([sent]) == [{"role": "assistant", "content": "", "reasoning_content": said}]


def test_a_whole_response(gateway):
    response = respond(gateway, metadata={"a": "b"}, instructions="Be brief.").json
    assert response["id"].startswith("resp_") and response["object"] == "response"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    (item,) = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert item["content"][0]["type"] == "output_text" and len(text_of(response)) == 8
    usage = response["usage"]
    assert usage["output_tokens"] == 8 and usage["total_tokens"] == usage["input_tokens"] + 8
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert response["metadata"] == {"a": "b"} and response["instructions"] == "Be brief."


def test_a_response_tells_what_held_for_it(gateway):
    response = respond(gateway, temperature=None, top_p=None, text={"verbosity": "low"}).json
    assert (response["temperature"], response["top_p"]) == (0.8, 0.95)
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert respond(gateway, temperature=0).json["temperature"] == 0


def test_stream_events_come_in_their_order_and_say_what_the_whole_says(gateway):
    answer = respond(gateway, stream=True)
    events = answer.events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [line[7:] for line in answer.body.decode().split("\n") if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    kinds = list(dict.fromkeys(names))
    assert kinds == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *(
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ),
        "response.incomplete",
    ]
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert deltas == done["text"] == text_of(events[-1]["response"]) == text_of(respond(gateway).json)
    ids = {event["item_id"] for event in events if "item_id" in event}
    assert ids == {events[-1]["response"]["output"][0]["id"]}
    assert events[0]["response"]["id"] == events[-1]["response"]["id"]
    assert events[0]["response"]["status"] == "in_progress" and "[DONE]" not in answer.data


def test_a_cut_thought_is_told_alike_whole_and_streamed(work_gateway):
    asked = {"given": "What is 3 + 4? /think", "max_output_tokens": 8}
    streamed = respond(work_gateway, stream=True, **asked).events[-1]["response"]["output"]
    whole = respond(work_gateway, **asked).json["output"]
    for output in (streamed, whole):
        assert [(item["type"], item["status"]) for item in output] == [("reasoning", "incomplete")]


def test_a_conversation_goes_on_by_id(gateway):
    first = respond(gateway).json
    second = respond(gateway, "go on", previous_response_id=first["id"]).json
    spelled_out = respond(
        gateway,
        [
            {"role": "user", "content": "hello"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text_of(first)}]},
            {"role": "user", "content": [{"type": "input_text", "text": "go on"}]},
        ],
    ).json
    assert (
        text_of(second) == text_of(spelled_out)
        and second["usage"]["input_tokens"] == spelled_out["usage"]["input_tokens"]
    )
    third = respond(gateway, "more", previous_response_id=second["id"]).json
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] + 8


def test_instructions_are_not_carried_over(gateway):
    first = respond(gateway, instructions="a" * 500).json
    second = respond(gateway, "go on", previous_response_id=first["id"]).json
    assert second["usage"]["input_tokens"] < 200


def test_kept_responses_are_read_and_deleted(gateway):
    response = respond(gateway).json
    path = f"/v1/responses/{response['id']}"
    assert gateway.get(path).json == response
    listed = gateway.get(f"{path}/input_items").json["data"]
    (item,) = listed
    assert item["id"].startswith("msg_") and gateway.get(f"{path}/input_items").json["data"] == listed
    told = {name: item[name] for name in ("type", "role", "status", "content")}
    content = [{"type": "input_text", "text": "hello"}]
    assert told == {"type": "message", "role": "user", "status": "completed", "content": content}
    assert gateway.ask("DELETE", path).json == {"id": response["id"], "object": "response", "deleted": True}
    assert gateway.get(path).status == 404 == gateway.ask("DELETE", path).status
    gone = respond(gateway, previous_response_id=response["id"])  # as in OpenAI: its SDK raises BadRequestError
    assert (gone.status, gone.error["code"]) == (400, "previous_response_not_found")


def test_input_items_are_listed_in_pages(gateway):
    given = [
        {"role": "user", "content": "weather?"},
        {"id": "fc_mine", "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
    ]
    path = f"/v1/responses/{respond(gateway, given).json['id']}/input_items"
    listed = gateway.get(f"{path}?order=asc").json
    kinds = ["message", "function_call", "function_call_output", "message", "message"]
    assert [item["type"] for item in listed["data"]] == kinds and listed["data"][1]["id"] == "fc_mine"
    assert listed["data"][3]["content"][0] == {
        "type": "output_text", "text": "It rains.", "annotations": [], "logprobs": [],
    }  # fmt: skip
    assert gateway.get(path).json["data"] == listed["data"][::-1] and listed["has_more"] is False
    page = gateway.get(f"{path}?order=asc&limit=2&after={listed['data'][1]['id']}").json
    assert (page["data"], page["has_more"]) == (listed["data"][2:4], True)
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    for query, param in (
        ("order=up", "order"),
        ("limit=0", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("after=none", "after"),
    ):
        answer = gateway.get(f"{path}?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


def test_a_wrong_method_is_told_all_that_are_right(gateway):
    answer = gateway.post("/v1/responses/resp_x")
    assert answer.status == 405 and answer.headers["allow"] == "DELETE, GET, HEAD"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_tokens_are_counted_before_anything_is_asked(gateway, path):
    messages = [{"role": "user", "content": "hello there"}]
    fields = {"input": messages, "messages": messages}
    counted = gateway.post(f"{path}/input_tokens", **fields).json
    usage = gateway.post(path, **fields).json["usage"]
    n_read = usage.get("input_tokens") or usage["prompt_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": n_read}


def test_truncation_leaves_out_the_oldest_that_does_not_fit(gateway, fake):
    n_ctx = fake.ask("props")["n_ctx_seq"]
    turns = [
        {"role": role, "content": text + "x" * (n_ctx // 4)}
        for role, text in (("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"))
    ]
    given = [{"role": "developer", "content": "Be brief."}, *turns, {"role": "user", "content": "five"}]
    assert respond(gateway, given).error["code"] == "context_length_exceeded"
    cut = respond(gateway, given, truncation="auto").json
    spelled_out = respond(gateway, [given[0], *given[3:]]).json
    assert cut["usage"]["input_tokens"] == spelled_out["usage"]["input_tokens"] and cut["truncation"] == "auto"
    assert text_of(cut) == text_of(spelled_out)
    whole = respond(gateway, "hello", truncation="auto").json
    assert whole["usage"]["input_tokens"] == respond(gateway, "hello").json["usage"]["input_tokens"]
    assert respond(gateway, "x" * n_ctx * 2, truncation="auto").error["code"] == "context_length_exceeded"


def test_a_response_that_shall_not_be_kept_is_not(gateway):
    response = respond(gateway, store=False).json
    assert gateway.get(f"/v1/responses/{response['id']}").status == 404


def test_another_key_s_responses_are_nobody_else_s(serve, before, folder):
    keys = {name: new_key() for name in ("alice", "bob")}
    path = folder / "keys.yaml"
    path.write_text("".join(entry(name, key) for name, key in keys.items()))
    gateway = before(serve(), "--api-key-file", str(path))
    headers = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
    response = respond(gateway, headers=headers["alice"]).json
    assert gateway.ask("GET", f"/v1/responses/{response['id']}", None, headers["bob"]).status == 404
    reference = [{"type": "item_reference", "id": response["output"][0]["id"]}, {"role": "user", "content": "more"}]
    asked = {name: respond(gateway, reference, headers=headers[name]).status for name in headers}
    assert asked == {"alice": 200, "bob": 404}
    assert respond(gateway, headers=headers["bob"], previous_response_id=response["id"]).status == 400
    assert respond(gateway, headers=headers["alice"], previous_response_id=response["id"]).status == 200


def test_a_stream_has_llama_servers_figures(gateway):
    """If they are requested: figures for the prompt and for each piece, and for the whole in the last event."""
    ask = {"given": "This is a test. " * 100, "stream": True}
    events = respond(gateway, **ask, return_progress=True, timings_per_token=True).events
    told = [event for event in events if "prompt_progress" in event]
    assert told and {event["type"] for event in told} == {"response.in_progress"}
    assert told[-1]["prompt_progress"]["processed"] == told[-1]["prompt_progress"]["total"] > 1000
    pieces = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [event["timings"]["predicted_n"] for event in pieces] == list(range(1, 9))
    assert events[-1]["timings"] == events[-1]["response"]["timings"]
    silent = respond(gateway, **ask).events
    assert [event["type"] for event in silent if "timings" in event] == ["response.incomplete"]
    assert not any("prompt_progress" in event for event in silent)


def test_a_failure_in_mid_stream_is_a_failed_response(gateway, levers):
    levers(statuses=["OK"] * 4 + ["FATAL"])
    events = respond(gateway, stream=True, max_output_tokens=50).events
    assert events[-1]["type"] == "response.failed"
    adapter_of(STREAM_EVENT).validate_json(json.dumps(events[-1]), strict=True)
    error = events[-1]["response"]["error"]
    assert events[-1]["response"]["status"] == "failed"
    assert (error["code"], error["reason"]) == ("server_error", "decode_failed")


def test_log_probabilities_where_they_are_included(gateway):
    response = respond(gateway, include=["message.output_text.logprobs"], top_logprobs=2).json
    part = response["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
    events = respond(gateway, include=["message.output_text.logprobs"], stream=True).events
    told = [
        entry["token"]
        for event in events
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    assert "".join(told) == part["text"]
    kept = events[-1]["response"]["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in kept["logprobs"]) == kept["text"] == part["text"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"given": None}, 400, "input"),
        ({"given": []}, 400, "input"),
        ({"given": [{"type": "reasoning", "summary": []}]}, 400, "input"),
        ({"given": [7]}, 400, "input[0]"),
        ({"given": [{"type": "novel"}]}, 400, "input[0].type"),
        ({"given": [{"role": "robot", "content": "x"}]}, 400, "input[0].role"),
        (
            {"given": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            501,
            "input[0].content",
        ),
        ({"given": [{"type": "item_reference", "id": "x"}]}, 404, "input[0]"),
        ({"given": [{"type": "item_reference"}]}, 400, "input[0].id"),
        ({"given": [{"role": "user", "content": "x", "id": 5}]}, 400, "input[0].id"),
        (
            {"given": [{"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}]},
            400,
            "input[0].arguments",
        ),
        ({"background": True}, 501, "background"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 900}]}, 501, "context_management"),
        ({"moderation": {"model": "omni-moderation-latest"}}, 501, "moderation"),
        ({"min_keep": -2}, 400, "min_keep"),
        ({"conversation": "c"}, 404, "conversation"),
        ({"truncation": "some"}, 400, "truncation"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, "text.format.json_schema.schema"),
        ({"tool_choice": {"type": "web_search"}}, 501, "tool_choice"),
        ({"previous_response_id": "resp_none"}, 400, "previous_response_id"),
    ],
)
def test_a_wrong_field_is_named(gateway, body, status, param):
    answer = respond(gateway, **body)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body


def test_tools_that_run_elsewhere_are_left_out(gateway):
    answer = respond(gateway, tools=[{"type": "web_search"}, {"type": "local_shell"}])
    assert answer.status == 200 and answer.json["tools"] == [{"type": "web_search"}, {"type": "local_shell"}]


def test_a_kept_response_is_continued_without_new_items(gateway):
    first = respond(gateway).json
    answer = gateway.post("/v1/responses", previous_response_id=first["id"], max_output_tokens=3)
    assert answer.status == 200 and answer.json["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert gateway.get(f"/v1/responses/{answer.json['id']}/input_items").json["data"] == []


def test_items_that_were_kept_can_be_referred_to(gateway):
    """The AI SDK refers to the assistant's messages in this way."""
    first = respond(gateway).json
    (asked,) = gateway.get(f"/v1/responses/{first['id']}/input_items").json["data"]
    references = [{"type": "item_reference", "id": asked["id"]}, {"id": first["output"][0]["id"]}]
    again = [*references, {"role": "user", "content": "more"}]
    whole = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "more"}]
    by_reference, by_value = (respond(gateway, given).json for given in (again, whole))
    assert by_reference["usage"]["input_tokens"] == by_value["usage"]["input_tokens"]
    listed = gateway.get(f"/v1/responses/{by_reference['id']}/input_items?order=asc").json["data"]
    assert listed[:2] == [asked, first["output"][0]]


def test_a_kept_response_is_neither_streamed_again_nor_cancelled(gateway):
    """OpenAI's client would read a whole response as a stream without events."""
    path = f"/v1/responses/{respond(gateway).json['id']}"
    assert (gateway.get(f"{path}?stream=true").status, gateway.get(f"{path}?stream=false").status) == (501, 200)
    answer = gateway.post(f"{path}/cancel")
    assert (answer.status, answer.error["param"]) == (400, "background")
    assert gateway.post("/v1/responses/resp_none/cancel").status == 404


def test_compacting_a_conversation_is_refused_in_words(gateway):
    """OpenAI's agents can ask for it after each turn. `compact` is no response's id."""
    answer = gateway.post("/v1/responses/compact", model="any", input="hello")
    assert answer.status == 501 and "compact" in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"


def test_llama_server_s_shorter_paths(gateway):
    fields = {"input": "hello", "temperature": 0, "max_output_tokens": 8}
    assert text_of(gateway.post("/responses", **fields).json) == text_of(respond(gateway).json)
    assert gateway.post("/responses/input_tokens", input="hello").json["input_tokens"] > 0
    assert gateway.post("/responses").error["param"] == "input"


SAY = {"type": "custom", "name": "say", "description": "Says a text"}


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_a_mode_of_tool_choice_may_be_an_object(gateway, mode):
    """Clients that also speak to Anthropic write it so, and chat completions read it."""
    answer = respond(gateway, tools=[SAY], tool_choice={"type": mode})
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "name": "say"}])
def test_a_custom_tool_is_given_a_text(work_gateway, choice):
    fields = {"tools": [SAY], "tool_choice": choice, "max_output_tokens": 200}
    response = respond(work_gateway, "Say hello.", **fields).json
    (call,) = [item for item in response["output"] if item["type"] == "custom_tool_call"]
    assert call["name"] == "say" and call["call_id"] and not call["input"].startswith("{")
    events = respond(work_gateway, "Say hello.", stream=True, **fields).events
    assert events[-1]["response"]["output"][-1]["input"] == call["input"]
    parts = [event for event in events if event["type"].startswith("response.custom_tool_call_input.")]
    assert [part.get("delta", part.get("input")) for part in parts] == [call["input"]] * 2
    item_ids = {event["item"]["id"] for event in events if event["type"].startswith("response.output_item.")}
    assert {part["item_id"] for part in parts} <= item_ids
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "said"}
    assert respond(work_gateway, [result], previous_response_id=response["id"], tools=[SAY]).status == 200


def test_a_custom_tool_with_a_grammar_is_left_out(gateway):
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-c]+"}
    assert respond(gateway, tools=[{**SAY, "format": form}]).status == 200
    assert respond(gateway, tools=[{**SAY, "format": form}], tool_choice="required").error["param"] == "tool_choice"
    assert respond(gateway, tools=[{"type": "custom"}]).error["param"] == "tools[0].name"


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_tools_in_a_namespace_are_called(work_gateway, kind):
    tool = {"type": kind, "name": "say", "description": "Says a text"}
    tools = [{"type": "namespace", "name": "mouth", "description": "Speech", "tools": [tool]}, {**tool, "name": "go"}]
    choice = {"type": kind, "name": "mouth__say"}
    fields = {"tools": tools, "tool_choice": choice, "max_output_tokens": 200, "temperature": 0}
    answer = work_gateway.post("/v1/responses", input="Say hello", **fields)
    (call,) = [item for item in answer.json["output"] if "call" in item["type"]]
    assert (call["name"], call["namespace"]) == ("say", "mouth")
    events = work_gateway.post("/v1/responses", input="Say hello", stream=True, **fields).events
    items = [event["item"] for event in events if event["type"].startswith("response.output_item.")]
    assert {(item["name"], item["namespace"]) for item in items if "call" in item["type"]} == {("say", "mouth")}
    result = {
        "type": f"{kind}_call_output".replace("custom", "custom_tool"),
        "call_id": call["call_id"],
        "output": "ok",
    }
    conversation = [{"role": "user", "content": "Say hello"}, call, result]
    assert to_messages(conversation)[1]["tool_calls"][0]["function"]["name"] == "mouth__say"
    assert work_gateway.post("/v1/responses", input=conversation, tools=tools, max_output_tokens=5).status == 200


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_tools_that_an_item_adds_are_called(tiny_gateway, kind):
    """Codex sends all its tools so, under the names of OpenAI's newest models."""
    tool = {"type": kind, "name": "say", "description": "Says a text"}
    space = {"type": "namespace", "name": "mouth", "description": "Speech", "tools": [tool]}
    added = {"type": "additional_tools", "role": "developer", "tools": [space, {"type": "web_search"}]}
    asked = [added, {"role": "user", "content": "Say hello"}]
    fields = {"tool_choice": {"type": kind, "name": "mouth__say"}, "max_output_tokens": 300, "temperature": 0}
    response = tiny_gateway.post("/v1/responses", input=asked, **fields).json
    (call,) = [item for item in response["output"] if "call" in item["type"]]
    assert (call["name"], call["namespace"]) == ("say", "mouth") and ("input" in call) == (kind == "custom")
    later = {"input": [added, {"role": "user", "content": "Again"}], "previous_response_id": response["id"]}
    answer = tiny_gateway.post("/v1/responses", **later, **fields)
    assert [item["name"] for item in answer.json["output"] if "call" in item["type"]] == ["say"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [(3, "tools"), ([3], "input[1].tools[0].type"), ([SAY | {"name": ""}], "input[1].tools[0].name")],
)
def test_a_wrong_tool_that_an_item_adds_is_named(gateway, tools, param):
    answer = respond(gateway, [{"role": "user", "content": "x"}, {"type": "additional_tools", "tools": tools}])
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "function"}, "tools[1].name"),
        ({"type": "function", "name": "f", "parameters": []}, "tools[1].parameters"),
        ({"type": "function", "function": "f"}, "tools[1].name"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "function", "name": ""}]}, "tools[1].tools[0].name"),
    ],
)
def test_a_wrong_tool_is_named_by_its_own_place(gateway, tool, param):
    """Tools that are left out count too."""
    answer = respond(gateway, tools=[{"type": "web_search"}, tool])
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("tools", [3, [3], [{"type": "web_search"}], [{"type": "function"}]])
def test_a_malformed_namespace_is_refused(gateway, tools):
    answer = gateway.post("/v1/responses", input="x", tools=[{"type": "namespace", "name": "n", "tools": tools}])
    assert answer.status == 400 and answer.error["param"].startswith("tools")
