"""Tools, forms and thinking through OpenAI's client, on a small model that was trained for them, and on a model that
was not.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.daemon.support import eventually
from tests.gateway.openai_client import client_of
from tests.gateway.support import Raw, n_busy
from tests.late import Late

openai = Late("openai")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Set a timer",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
}
TOOLS = [WEATHER, TIMER]
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(work_gateway):
    with client_of(work_gateway) as client:
        yield client


def chat(client, messages=ASKED, **fields):
    return client.chat.completions.create(
        **{"model": "any", "messages": messages, "max_tokens": 150, "temperature": 0, **fields}
    )


def streamed(client, messages=ASKED, **fields):
    """Put the chunks together: (content, reasoning, calls as (id, name, arguments), finish reason)."""
    content, reasoning, calls, reason = "", "", {}, None
    for chunk in chat(client, messages, stream=True, **fields):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            entry = calls.setdefault(call.index, ["", "", ""])
            entry[0] += call.id or ""
            entry[1] += call.function.name or ""
            entry[2] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return content, reasoning, [tuple(calls[i]) for i in sorted(calls)], reason


def calls_of(completion):
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in completion.choices[0].message.tool_calls or ()
    ]


def test_nothing_is_said_before_a_call_that_is_required(tiny_gateway):
    """Even a model that was not trained to call tools must not talk first: it would talk until it ran out of tokens."""
    with client_of(tiny_gateway) as client:
        for choice in ("required", {"type": "function", "function": {"name": "set_timer"}}):
            ask = {
                "model": "any",
                "messages": [{"role": "user", "content": "Hello"}],
                "tools": [TIMER],
                "tool_choice": choice,
                "max_tokens": 300,
            }
            for chunk in client.chat.completions.create(**ask, stream=True):
                delta = chunk.choices[0].delta
                assert not delta.content
                if delta.tool_calls:  # it may call again and again: a later call may be cut by the limit of tokens
                    break
            assert delta.tool_calls[0].function.name == "set_timer"


def test_the_model_calls_a_tool_and_its_answer_is_none(client):
    whole = chat(client, tools=TOOLS)
    assert calls_of(whole) == [("get_weather", {"city": "Paris"})]
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls[0].id.startswith("call_") and choice.message.tool_calls[0].type == "function"
    content, _, calls, reason = streamed(client, tools=TOOLS)
    assert (content, reason) == ("", "tool_calls")
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [("get_weather", {"city": "Paris"})]
    assert all(call_id.startswith("call_") for call_id, _, _ in calls)


def test_a_named_tool_is_the_one_that_is_called(client):
    choice = {"type": "function", "function": {"name": "set_timer"}}
    whole = chat(client, tools=TOOLS, tool_choice=choice)
    ((name, arguments),) = calls_of(whole)
    assert name == "set_timer" and isinstance(arguments["minutes"], int)
    (call,) = streamed(client, tools=TOOLS, tool_choice=choice)[2]
    assert call[1] == "set_timer" and isinstance(json.loads(call[2])["minutes"], int)


def test_functions_of_older_programs_are_called(client):
    """OpenAI's form from before tools: one call, in its own field, and its result from the role function."""
    functions = [tool["function"] for tool in TOOLS]
    whole = chat(client, functions=functions).choices[0]
    call = whole.message.function_call
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert (whole.finish_reason, whole.message.content, whole.message.tool_calls) == ("function_call", None, None)
    parts = [choice for chunk in chat(client, functions=functions, stream=True) for choice in chunk.choices]
    called = [part.delta.function_call for part in parts if part.delta.function_call]
    assert "".join(part.name or "" for part in called) == "get_weather"
    assert "".join(part.arguments or "" for part in called) == call.arguments
    assert parts[-1].finish_reason == "function_call" and not any(part.delta.tool_calls for part in parts)
    named = chat(client, functions=functions, function_call={"name": "set_timer"}).choices[0].message.function_call
    assert named.name == "set_timer"
    assert chat(client, functions=functions, function_call="none").choices[0].message.function_call is None
    history = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "function_call": {"name": call.name, "arguments": call.arguments}},
        {"role": "function", "name": call.name, "content": '{"temperature": 21, "sky": "sunny"}'},
    ]
    assert chat(client, history, functions=functions).choices[0].message.content


@pytest.mark.parametrize("wish", [{}, {"parallel_tool_calls": True}])
def test_a_named_tool_is_called_once(work_gateway, client, wish):
    """As in OpenAI: Instructor raises an error if there are more calls. This model would call the tool three times."""
    unit = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    more = {"unit": {**unit, "default": "celsius"}, "include_forecast": {"type": "boolean", "default": False}}
    place = {
        "city": {"type": "string", "default": "Vienna"},
        "country": {"type": "string"},
        "unit": unit,
        "options": {"$ref": "#/$defs/W", "description": "x"},
    }
    options = {"title": "W", "type": "object", "additionalProperties": False, "properties": more}
    parameters = {"type": "object", "properties": place, "required": ["country", "unit"], "$defs": {"W": options}}
    function = {"name": "get_current_weather", "description": "d", "parameters": parameters}
    asked, tools = "Weather in Berlin, Germany in fahrenheit?", [{"type": "function", "function": function}]
    named = {"type": "function", "function": {"name": "get_current_weather"}}
    ask = [{"role": "user", "content": asked}]
    assert len(calls_of(chat(client, ask, tools=tools, tool_choice=named, max_tokens=300, **wish))) == 1
    fields = {"tool_choice": {"type": "function", "name": "get_current_weather"}, "max_output_tokens": 300, **wish}
    newer = {"input": asked, "tools": [{"type": "function", **function}], "temperature": 0, **fields}
    output = work_gateway.post("/v1/responses", **newer).json["output"]
    assert [item["type"] for item in output] == ["function_call"]
    options = {"temperature": 0, "num_predict": 300}
    ollama = {"messages": ask, "tools": tools, "tool_choice": named, "stream": False, "options": options, **wish}
    assert len(work_gateway.post("/api/chat", **ollama).json["message"]["tool_calls"]) == 1


def test_a_required_call_comes_though_nothing_calls_for_it(client):
    hello = [{"role": "user", "content": "Hello!"}]
    for choice in (
        "required",
        "any",
        {"type": "any"},
    ):  # Mistral's clients use the second name, others Anthropic's form
        assert calls_of(chat(client, hello, tools=TOOLS, tool_choice=choice))
    for choice in ("auto", {"type": "auto"}):
        assert not calls_of(chat(client, hello, tools=TOOLS, tool_choice=choice))


def test_none_means_that_no_tool_is_called(client):
    choice = chat(client, tools=TOOLS, tool_choice="none").choices[0]
    assert choice.message.tool_calls is None and "tool_call" not in choice.message.content


def test_allowed_tools_are_the_only_ones(client):
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "set_timer"}}]},
    }
    assert {name for name, _ in calls_of(chat(client, tools=TOOLS, tool_choice=allowed))} == {"set_timer"}


def test_a_conversation_with_a_call_and_its_result_goes_on(client):
    call = chat(client, tools=TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": '{"sky": "clear", "degrees": 21}'}
    answer = chat(client, [*ASKED, call.model_dump(exclude_none=True), result], tools=TOOLS).choices[0]
    assert answer.message.content and answer.message.tool_calls is None


def test_a_schema_is_kept_whatever_the_model_would_say(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for name in ("Ann, 30 years old", "a ship, 7 m long"):
        messages = [{"role": "user", "content": f"Write a JSON record of {name}."}]
        record = json.loads(chat(client, messages, response_format=form).choices[0].message.content)
        assert isinstance(record["name"], str) and isinstance(record["age"], int) and set(record) == {"name", "age"}
        assert json.loads(streamed(client, messages, response_format=form)[0]) == record


def test_json_object_is_any_object(client):
    ask = [{"role": "user", "content": "Write a JSON record of Ann, 30 years old."}]
    answer = chat(client, ask, response_format={"type": "json_object"}, max_tokens=400)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize("form", [{"type": "json_object", "value": PERSON}, {"type": "json", "value": PERSON}])
def test_a_schema_is_kept_as_hugging_face_clients_write_it(client, form):
    ask = [{"role": "user", "content": "Write a JSON record of a ship, 7 m long."}]
    record = json.loads(chat(client, ask, response_format=form).choices[0].message.content)
    assert set(record) == {"name", "age"} and isinstance(record["age"], int)
    with pytest.raises(openai.BadRequestError, match="conflicts"):
        chat(client, ask, response_format={**form, "schema": PERSON})


def test_the_sdk_parses_into_its_own_types(client):
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        name: str
        age: int

    ask = [{"role": "user", "content": "Write a JSON record of Ann, 30 years old."}]
    parsed = client.chat.completions.parse(
        model="any", messages=ask, response_format=Person, max_tokens=150, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)
    response = client.responses.parse(model="any", input=ask, text_format=Person, max_output_tokens=150, temperature=0)
    assert isinstance(response.output_parsed, Person)


def test_a_strict_schema_that_cannot_be_enforced_is_refused(client):
    schema = {
        **PERSON,
        "properties": {
            **PERSON["properties"],
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        },
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, response_format=form)
    assert caught.value.code == "schema_unsupported"


@pytest.mark.parametrize(
    "form",
    [
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "required"},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
    ],
)
def test_a_budget_for_thinking_beside_a_form_is_no_error(client, form):
    budget = {"reasoning_budget_tokens": 1024}
    plain, limited = (chat(client, extra_body=extra, **form).choices[0].message for extra in ({}, budget))
    assert (limited.content, calls_of_message(limited)) == (plain.content, calls_of_message(plain))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"guided_choice": ["left", "right"]}, r"left|right"),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, r"[0-9]{3}"),
        ({"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, r"yes|no"),
        ({"regex": "[0-9]{3}"}, r"[0-9]{3}"),
        ({"guided_json": {"const": 7}, "reasoning_effort": "none"}, r"\s*7\s*"),
    ],
)
def test_an_answer_has_the_form_that_vllm_s_clients_ask_for(client, form, expected):
    message = chat(client, extra_body=form).choices[0].message
    assert re.fullmatch(expected, message.content) and not getattr(message, "reasoning_content", None)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "seven", "schema": {"const": "seven"}}}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS},
    ],
)
def test_a_spent_budget_ends_the_thought_and_the_answer_keeps_its_form(client, form):
    ask = [{"role": "user", "content": THINKS}]
    free, limited = (
        chat(client, ask, max_tokens=300, extra_body=extra, **form) for extra in ({}, {"reasoning_budget_tokens": 5})
    )
    n_free, n_limited = (each.usage.completion_tokens_details.reasoning_tokens for each in (free, limited))
    assert n_free > 8 >= n_limited > 0
    message = limited.choices[0].message
    assert message.reasoning_content and "think>" not in (message.content or "")
    if "tool_choice" in form:
        assert message.tool_calls and json.loads(message.tool_calls[0].function.arguments)
    if "response_format" in form:
        assert message.content.strip() == '"seven"'


def test_a_spent_budget_says_what_it_is_told_to(client):
    budget = {"reasoning_budget_tokens": 5, "reasoning_budget_message": " That is enough."}
    message = chat(client, [{"role": "user", "content": THINKS}], max_tokens=300, extra_body=budget).choices[0].message
    assert message.reasoning_content.endswith(" That is enough.") and message.content


def test_a_text_s_form_conflicts_with_tools(client):
    with pytest.raises(openai.BadRequestError, match="guided_choice"):
        chat(client, tools=TOOLS, extra_body={"guided_choice": ["a"]})


def calls_of_message(message):
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def test_thinking_is_apart_from_the_answer(client):
    ask = [{"role": "user", "content": "What is 3 + 4? /think"}]
    message = chat(client, ask, max_tokens=300).choices[0].message
    assert message.reasoning_content and "<think>" not in message.content and "</think>" not in message.content
    content, reasoning, _, _ = streamed(client, ask, max_tokens=300)
    assert (content, reasoning) == (message.content, message.reasoning_content)


THINKS = "What is 3 + 4? /think"


def test_log_probabilities_are_those_of_the_content(client):
    """A thought, its tags, and the tags of a call have none."""
    ask = [{"role": "user", "content": THINKS}]
    fields = {"logprobs": True, "max_tokens": 300}
    (choice,) = chat(client, ask, **fields).choices
    assert choice.message.reasoning_content and choice.message.content
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    parts = [each for chunk in chat(client, ask, stream=True, **fields) for each in chunk.choices if each.logprobs]
    assert all(part.delta.content for part in parts)
    told = [entry.token for part in parts for entry in part.logprobs.content]
    assert told == [entry.token for entry in choice.logprobs.content]
    called = chat(client, tools=TOOLS, logprobs=True).choices[0]
    assert called.message.tool_calls
    assert "".join(entry.token for entry in called.logprobs.content) == (called.message.content or "")


def test_log_probabilities_of_a_response_are_those_of_its_text(client):
    fields = {"model": "any", "input": THINKS, "max_output_tokens": 300, "temperature": 0}
    fields["include"] = ["message.output_text.logprobs"]
    whole = client.responses.create(**fields)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    part = whole.output[-1].content[0]
    assert "".join(entry.token for entry in part.logprobs) == part.text
    *_, last = client.responses.create(**fields, stream=True)
    assert last.response.output[-1].content[0].logprobs == part.logprobs


def test_responses_with_tools_and_reasoning(client):
    tools = [{"type": "function", **WEATHER["function"]}, {"type": "web_search"}]
    whole = client.responses.create(
        model="any", input="What is the weather in Paris?", tools=tools, max_output_tokens=150, temperature=0
    )
    (call,) = [item for item in whole.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    with client.responses.stream(
        model="any", input="What is the weather in Paris?", tools=tools, max_output_tokens=150, temperature=0
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert deltas == done.arguments == final.output[-1].arguments
    result = [{"type": "function_call_output", "call_id": final.output[-1].call_id, "output": "sunny"}]
    more = client.responses.create(
        model="any", input=result, previous_response_id=final.id, tools=tools, max_output_tokens=60, temperature=0
    )
    assert more.output_text
    thought = client.responses.create(model="any", input="What is 3 + 4? /think", max_output_tokens=300, temperature=0)
    assert [item.type for item in thought.output] == ["reasoning", "message"]


# ---- on a model that was not trained for tools


def test_a_schema_is_enforced_on_any_model(tiny_gateway):
    with client_of(tiny_gateway) as client:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        record = json.loads(chat(client, response_format=form, max_tokens=200).choices[0].message.content)
        assert set(record) == {"name", "age"}


def test_a_cancelled_call_frees_the_daemon(tiny_gateway, tiny):
    with Raw(tiny_gateway.port) as raw:
        body = {
            "messages": ASKED,
            "tools": TOOLS,
            "tool_choice": "required",
            "stream": True,
            "max_tokens": 2000,
            "min_tokens": 1500,
        }
        raw.send("POST", "/v1/chat/completions", body)
        raw.until(b"data: ")
    eventually(lambda: n_busy(tiny) == 0)


@pytest.mark.parametrize("older", [False, True], ids=["tools", "functions"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_that_a_stop_text_cuts_is_not_told_as_a_complete_one(tiny_gateway, stream, older):
    """Clients read a call's arguments as JSON where the answer ended with calls."""
    unit = {"type": "object", "properties": {"unit": {"enum": ["C"]}}, "required": ["unit"]}
    function = {**WEATHER["function"], "parameters": unit}
    asked = (
        {"functions": [function], "function_call": {"name": "get_weather"}}
        if older
        else {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    )
    called = "function_call" if older else "tool_calls"
    for stop, reason in ((None, called), ("</tool_call>", called), ("}", "stop"), ("unit", "stop"), ('"C', "stop")):
        answer = tiny_gateway.chat(**asked, max_tokens=200, temperature=0, stop=stop, stream=stream)
        if not stream:
            assert answer.json["choices"][0]["finish_reason"] == reason, stop
            assert answer.json["choices"][0]["message"][called]
        else:
            assert [e["choices"][0]["finish_reason"] for e in answer.events if e["choices"]][-1] == reason, stop
