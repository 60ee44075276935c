"""`/v1/chat/completions` field by field, on the simulated engine: forms, limits, errors, ends."""

from __future__ import annotations

import json

import pytest

from tests.daemon.support import eventually
from tests.gateway.support import Raw, n_busy
from uma_core.protocol.ops import N_PREDICTION_MOST

USER = [{"role": "user", "content": "hello"}]


def test_a_whole_answer(gateway):
    answer = gateway.chat(max_tokens=7, temperature=0)
    assert answer.status == 200
    whole = answer.json
    assert whole["object"] == "chat.completion" and whole["id"].startswith("chatcmpl-")
    assert whole["system_fingerprint"].startswith("b")
    (choice,) = whole["choices"]
    assert choice["message"]["role"] == "assistant" and len(choice["message"]["content"]) == 7
    assert (choice["finish_reason"], choice["index"], choice["logprobs"]) == ("length", 0, None)
    usage = whole["usage"]
    assert usage["completion_tokens"] == 7 and usage["total_tokens"] == usage["prompt_tokens"] + 7
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    assert whole["timings"]["predicted_n"] == 7 and whole["timings"]["predicted_per_second"] > 0


def test_a_streamed_answer_says_what_the_whole_one_says(gateway):
    whole = gateway.chat(max_tokens=9, temperature=0).json["choices"][0]
    answer = gateway.chat(max_tokens=9, temperature=0, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.data[-1] == "[DONE]"
    events = answer.events
    assert len({event["id"] for event in events}) == 1
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""} and "timings" not in events[0]
    assert deltas[-1] == {} and events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    texts = [delta["content"] for delta in deltas[1:-1]]
    assert all(texts) and "".join(texts) == whole["message"]["content"]
    assert all("role" not in delta for delta in deltas[1:])
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert "usage" not in events[-1]


def test_usage_comes_in_a_last_chunk_where_it_is_asked_for(gateway):
    answer = gateway.chat(max_tokens=3, stream=True, stream_options={"include_usage": True})
    *chunks, last = answer.events
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3 and last["timings"]["predicted_n"] == 3
    assert all("usage" not in chunk for chunk in chunks)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("form", [{"type": "json_object"}, {"type": "json_object", "schema": PERSON}])
@pytest.mark.parametrize("begun", ["{", '{"name": "', "```json\n{", '{"name": "Bo", "age": 1'])
def test_json_that_is_begun_goes_on_as_that(work_gateway, begun, form):
    messages = [{"role": "user", "content": "Write JSON."}, {"role": "assistant", "content": begun}]
    fields = {"messages": messages, "temperature": 0, "max_tokens": 120}
    answer = work_gateway.chat(continue_final_message=True, response_format=form, **fields)
    assert answer.status == 200
    (choice,) = answer.json["choices"]
    written = json.loads((begun + choice["message"]["content"]).strip("`json\n "))
    assert choice["finish_reason"] == "stop" and ("schema" not in form or set(written) == {"name", "age"})
    other = work_gateway.post("/api/chat", format=form.get("schema", "json"), stream=False, **fields)
    assert other.status == 200 and other.json["message"]["content"]
    messages[-1]["content"] = [{"type": "text", "text": begun}]
    assert work_gateway.chat(continue_final_message=True, response_format=form, **fields).json["choices"] == [choice]


def test_what_is_no_beginning_of_the_form_is_refused(work_gateway):
    fields = {"messages": [*USER, {"role": "assistant", "content": "So"}], "response_format": {"type": "json_object"}}
    answer = work_gateway.chat(continue_final_message=True, **fields)
    assert (answer.status, answer.error["param"]) == (400, "messages")


BROKEN = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}
CALLED = {"type": "function", "function": {"name": "f", "parameters": BROKEN}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BROKEN}}},
            "response_format",
        ),
        ("/v1/chat/completions", {"json_schema": BROKEN}, "json_schema"),
        ("/v1/chat/completions", {"guided_regex": "("}, "guided_regex"),
        ("/v1/chat/completions", {"grammar": "root ::= nothing"}, "grammar"),
        ("/v1/chat/completions", {"tools": [CALLED], "tool_choice": "required"}, "tools"),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": BROKEN}}}, "text.format"),
        ("/v1/completions", {"guided_json": BROKEN}, "guided_json"),
        ("/v1/completions", {"prompt": [-1]}, "prompt"),
        ("/v1/completions", {"repetition_penalty": -1}, "repetition_penalty"),
        ("/completion", {"json_schema": BROKEN}, None),
        ("/completion", {"grammar": "root ::= nothing"}, None),
        ("/api/chat", {"format": BROKEN}, None),
    ],
)
def test_what_the_daemon_refuses_has_the_client_s_name(work_gateway, path, body, param):
    """The daemon has other names for some fields, such as `constraint` and `tokens`."""
    given = {"input": "x"} if "responses" in path else {"messages": USER} if "chat" in path else {"prompt": "x"}
    answer = work_gateway.post(path, **{**given, **body})
    assert answer.status == 400
    message = answer.json["error"] if path.startswith("/api") else answer.error["message"]
    assert "`constraint" not in message and "`tokens" not in message
    if param is not None:
        assert answer.error["param"] == param


@pytest.mark.parametrize("n", [1, 2])
def test_a_stop_text_is_part_of_the_answer_where_the_request_wants_it(gateway, n):
    """vLLM's clients ask for this if they look for `</search>` or the like at an answer's end."""
    fields = {"max_tokens": 30, "temperature": 0, "n": n, "include_stop_str_in_output": True}
    text = gateway.chat(**fields).json["choices"][0]["message"]["content"]
    stop = text[10:13]
    expected = text[: text.index(stop)] + stop
    choices = gateway.chat(**fields, stop=stop).json["choices"]
    assert [(choice["message"]["content"], choice["finish_reason"]) for choice in choices] == [(expected, "stop")] * n
    events = gateway.chat(**fields, stop=[stop], stream=True).events
    deltas = [choice for event in events for choice in event["choices"] if choice["index"] == n - 1]
    assert "".join(choice["delta"].get("content") or "" for choice in deltas) == expected
    plain = {"prompt": "Hello", **fields}
    text = gateway.post("/v1/completions", **plain).json["choices"][0]["text"]
    stop = text[10:13]
    expected = text[: text.index(stop)] + stop
    choices = gateway.post("/v1/completions", **plain, stop=stop).json["choices"]
    assert [choice["text"] for choice in choices] == [expected] * n
    events = gateway.post("/v1/completions", **plain, stop=stop, stream=True).events
    assert "".join(c["text"] for event in events for c in event["choices"] if c["index"] == n - 1) == expected


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(gateway):
    text = gateway.chat(max_tokens=30, temperature=0).json["choices"][0]["message"]["content"]
    stop = text[10:13]
    choice = gateway.chat(max_tokens=30, temperature=0, stop=stop).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    streamed = gateway.chat(max_tokens=30, temperature=0, stop=["no such text", stop, ""], stream=True).events
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in streamed) == text[: text.index(stop)]


def test_a_seed_repeats_an_answer(gateway):
    texts = [
        gateway.chat(max_tokens=20, temperature=1, seed=seed).json["choices"][0]["message"]["content"]
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert gateway.chat(max_tokens=2, seed=-1).status == 200, "llama-server's clients mean any"
    assert gateway.chat(max_tokens=2, seed=-(2**40)).status == 200, "OpenAI's seeds are 64-bit"


def test_neutral_fields_that_clients_send_by_habit_change_nothing(gateway):
    neutral = {
        "n": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "logprobs": False,
        "top_logprobs": None,
        "tools": [],
        "response_format": {"type": "text"},
        "stop": None,
        "user": "somebody",
        "store": False,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "reasoning_effort": None,
        "stream_options": None,
        "max_completion_tokens": None,
        "model": "gpt-4o",
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "verbosity": "low",
        "unknown_field_of_tomorrow": {"a": [1]},
        "service_tier": "auto",
        "min_keep": 0,
        "grammar_lazy": False,
        "allowed_token_ids": [],
        "bad_words": [],
        "include_stop_str_in_output": False,
        "truncate_prompt_tokens": -1,
        "chat_template": None,
        "prediction": {"type": "content", "content": "hello"},
    }
    plain = gateway.chat(max_tokens=5, temperature=0).json["choices"]
    answer = gateway.chat(max_tokens=5, temperature=0, **neutral)
    assert answer.status == 200, answer.body
    assert answer.json["choices"] == plain and answer.json["model"] == "gpt-4o"


@pytest.mark.parametrize(
    "content",
    ["hello", [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}], None, "x" * (N_PREDICTION_MOST + 1)],
    ids=["text", "parts", "none", "longer than a daemon takes"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prediction_changes_no_answer(gateway, content, stream):
    plain = gateway.chat(temperature=0, max_tokens=8, stream=stream)
    predicted = gateway.chat(
        temperature=0, max_tokens=8, stream=stream, prediction={"type": "content", "content": content}
    )
    assert predicted.status == 200 and said(predicted, stream) == said(plain, stream)
    assert gateway.chat(prediction={"type": "content", "content": 7}).error["param"] == "prediction"
    assert gateway.chat(prediction="hello").error["param"] == "prediction"


def said(answer, stream):
    choices = [choice for event in (answer.events if stream else [answer.json]) for choice in event["choices"]]
    return "".join((choice["delta"] if stream else choice["message"]).get("content") or "" for choice in choices)


def test_max_completion_tokens_goes_before_max_tokens(gateway):
    both = gateway.chat(max_completion_tokens=4, max_tokens=9, temperature=0).json  # a sampled answer may end earlier
    assert both["usage"]["completion_tokens"] == 4
    assert gateway.chat(max_tokens=3.0, temperature=0).json["usage"]["completion_tokens"] == 3


def test_content_in_parts_is_text(gateway):
    whole = gateway.chat("hel\nlo", max_tokens=9, temperature=0).json["choices"]
    for texts in (["hel\nlo"], ["hel", "lo"]):
        parts = [{"type": "text", "text": text} for text in texts]
        assert (
            gateway.chat(messages=[{"role": "user", "content": parts}], max_tokens=9, temperature=0).json["choices"]
            == whole
        )


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": None}, 400, "messages"),
        ({"messages": ["hello"]}, 400, "messages[0]"),
        ({"messages": [{"content": "hello"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            501,
            "messages[0].content",
        ),
        ({"messages": [{"role": "user", "content": ["hello"]}]}, 400, "messages[0].content"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": 1000}, 400, "temperature"),
        ({"top_p": 7}, 400, "top_p"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": "9"}, 400, "max_tokens"),
        ({"max_tokens": True}, 400, "max_tokens"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stop": [1]}, 400, "stop"),
        ({"seed": 1.5}, 400, "seed"),
        ({"n": 0}, 400, "n"),
        ({"n": 1000}, 400, "n"),
        ({"logit_bias": {"a": "much"}}, 400, "logit_bias[0]"),
        ({"top_logprobs": 3}, 400, "top_logprobs"),
        ({"top_logprobs": 99, "logprobs": True}, 400, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].function.name"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, 400, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, 400, "tool_choice"),
        ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema.schema"),
        ({"modalities": ["audio"]}, 501, "modalities"),
        ({"web_search_options": {}}, 501, "web_search_options"),
        ({"moderation": {"model": "omni-moderation-latest"}}, 501, "moderation"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, 501, "tools[0]"),
        ({"continue_final_message": "end"}, 400, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, 400, "add_generation_prompt"),
        ({"n_probs": 99}, 400, "n_probs"),
        ({"min_keep": "five"}, 400, "min_keep"),
        ({"allowed_token_ids": 5}, 400, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, 400, "allowed_token_ids"),
        ({"allowed_token_ids": [10**9]}, 400, "allowed_token_ids"),
        ({"allowed_token_ids": ["a"]}, 400, "allowed_token_ids"),
        ({"allowed_token_ids": [97], "response_format": {"type": "json_object"}}, 400, "allowed_token_ids"),
        ({"functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "functions"),
        ({"functions": [{}]}, 400, "functions[0]"),
        ({"functions": [{"name": "f"}], "function_call": "f"}, 400, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, 400, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {}}, 400, "function_call"),
        ({"truncate_prompt_tokens": 9}, 501, "truncate_prompt_tokens"),
        ({"chat_template": "{{ messages[0].content }}"}, 501, "chat_template"),
        ({"service_tier": "flex", "priority": "urgent"}, 400, "priority"),
    ],
)
def test_a_wrong_field_is_named(gateway, body, status, param):
    answer = gateway.chat(**body)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body
    assert answer.error["type"] == ("invalid_request_error" if status == 400 else "not_supported_error")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
def test_an_answer_has_the_allowed_tokens_only(gateway, path):
    """As in vLLM, with which programs let a model choose among labels."""
    ask = {"messages": USER, "prompt": "hello", "max_tokens": 20, "temperature": 1, "seed": 1}
    whole = gateway.post(path, **ask, allowed_token_ids=[ord("a"), ord("b")]).json
    choice = whole["choices"][0] if "choices" in whole else {"text": whole["content"]}
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert set(text) == {"a", "b"} and len(text) == 20, "it ends with no token that is not among them"
    answer = gateway.post(path, **ask, allowed_token_ids=[ord("a")], grammar='root ::= "a"')
    assert answer.status == 400 and "`allowed_token_ids` conflicts" in answer.error["message"]


def test_an_answer_may_end_where_the_allowed_tokens_hold_an_end(gateway, fake):
    eos = fake.ask(type="props")["special"]["eos"]["id"]
    ask = {"max_tokens": 40, "temperature": 1, "seed": 1}
    choice = gateway.chat(**ask, allowed_token_ids=[ord("a"), eos]).json["choices"][0]
    assert choice["finish_reason"] == "stop" and set(choice["message"]["content"]) <= {"a"}


@pytest.mark.parametrize(
    "body", [b"", b"   ", b"{", b"[]", b"null", b'{"messages": nan}', b"\xff\xfe", b"[" * 2000, b'"' + b"x" * 100]
)
def test_a_body_that_is_no_json_object(gateway, body):
    answer = gateway.ask("POST", "/v1/chat/completions", body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


def test_a_body_may_begin_with_the_mark_of_its_encoding(gateway):
    body = b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}'
    assert gateway.ask("POST", "/v1/chat/completions", body).status == 200
    assert gateway.ask("POST", "/v1/chat/completions", b"\xef\xbb\xbf").status == 400


def test_json_that_is_nested_too_deep(gateway):
    deep: dict = {}
    for _ in range(300):
        deep = {"a": deep}
    answer = gateway.chat(metadata=deep)
    assert (answer.status, answer.error["code"]) == (400, "too_deep")


def test_a_prompt_longer_than_the_context(gateway, fake):
    n_ctx = fake.ask("props")["n_ctx_seq"]
    for stream in (False, True):
        answer = gateway.chat("x" * (n_ctx + 100), stream=stream)
        assert answer.status == 400
        error = answer.error
        assert (error["type"], error["code"], error["n_ctx"]) == (
            "exceed_context_size_error",
            "context_length_exceeded",
            n_ctx,
        )
        assert error["n_prompt_tokens"] > n_ctx


def test_a_failure_in_mid_stream_is_an_error_event_and_no_good_end(gateway, levers):
    levers(statuses=["OK"] * 4 + ["FATAL"])
    answer = gateway.chat(max_tokens=50, stream=True, ignore_eos=True)
    assert answer.status == 200
    assert answer.events[-1]["error"]["code"] == "decode_failed" and "[DONE]" not in answer.data
    levers(statuses=["OK"] * 4 + ["FATAL"])
    assert gateway.chat(max_tokens=50, ignore_eos=True).status == 500


def test_a_cancelled_request_does_not_look_complete_and_is_not_retried(gateway, fake, levers):
    levers(step_ms=20)
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 1000}, {"x-request-id": "cancel-me"})
        (row,) = eventually(lambda: fake.ask("sessions")["sessions"])
        with fake.connect() as wire:
            wire.send(type="cancel", id="cancel-me", conn=row["conn"])
            assert wire.event()["found"] is True
        answer = raw.rest()
    assert (
        b" 499 " in answer.split(b"\r\n")[0] and b"x-should-retry: false" in answer and b"request_cancelled" in answer
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_cancels_its_request(gateway, fake, levers, stream):
    levers(step_ms=20)
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 1000, "stream": stream})
        eventually(lambda: n_busy(fake) == 1)
    eventually(lambda: n_busy(fake) == 0, "the daemon still computes for nobody")
    eventually(lambda: "client=gone" in gateway.log)


def test_two_requests_on_one_connection(gateway):
    with Raw(gateway.port) as raw:
        for is_last in (False, True):
            raw.send("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 3}, is_last=is_last)
            if not is_last:
                raw.until(b"timings")
        assert b"timings" in raw.rest()


def test_nothing_of_prompts_or_answers_is_logged(gateway):
    text = gateway.chat("a very secret question", max_tokens=30).json["choices"][0]["message"]["content"]
    gateway.chat([{"role": "secret role"}])
    gateway.logs("completion_tokens=30")
    assert "secret" not in gateway.log and text not in gateway.log


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_every_token_and_of_others_in_its_place(gateway, stream):
    answer = gateway.chat(max_tokens=6, temperature=0, logprobs=True, top_logprobs=3, stream=stream)
    if stream:
        choices = [event["choices"][0] for event in answer.events]
        told = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
        entries = [entry for logprobs in told for entry in logprobs["content"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
    else:
        (choice,) = answer.json["choices"]
        told, entries, text = [choice["logprobs"]], choice["logprobs"]["content"], choice["message"]["content"]
    assert all(logprobs["refusal"] is None for logprobs in told)  # generated clients need it
    assert "".join(entry["token"] for entry in entries) == text and len(entries) == 6
    for entry in entries:
        assert (
            entry["logprob"] <= 0
            and bytes(entry["bytes"]).decode() == entry["token"]
            and len(entry["top_logprobs"]) == 3
        )


def test_logprobs_without_alternatives(gateway):
    (choice,) = gateway.chat(max_tokens=2, logprobs=True).json["choices"]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[], []]


def test_sampling_fields_reach_the_daemon(gateway):
    answer = gateway.chat(max_tokens=5, logit_bias={str(ord("Q")): 50})
    assert answer.json["choices"][0]["message"]["content"] == "QQQQQ"
    assert gateway.chat(max_tokens=5, frequency_penalty=1000).error["param"] == "frequency_penalty"


def test_biases_name_tokens_by_their_text_too_and_false_means_never(gateway):
    biases = {"Q": 50, "X": 60, str(ord("X")): False}
    (choice,) = gateway.chat(max_tokens=3, temperature=0, logit_bias=biases).json["choices"]
    assert choice["message"]["content"] == "QQQ"


def test_a_number_as_vllm_s_priority_is_ignored(gateway):
    assert gateway.chat(max_tokens=1, priority=3).status == 200


@pytest.mark.parametrize("last", [{"content": ""}, {"content": None}, {"content": [{"type": "text", "text": ""}]}])
def test_an_empty_last_message_is_answered_as_any_other(gateway, last):
    def prompt_of(messages, **fields):
        return gateway.post("/apply-template", messages=messages, **fields).json["prompt"]

    messages = [*USER, {"role": "assistant", **last}]
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    assert prompt_of(messages, **going_on) == prompt_of(USER)
    begun = prompt_of([*USER, {"role": "assistant", "content": "Well"}], **going_on)
    assert begun.endswith("Well") and begun.startswith(prompt_of(USER))


def test_several_answers_whole_and_streamed(gateway):
    whole = gateway.chat(max_tokens=6, temperature=1, seed=3, n=2).json
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1] and texts[0] != texts[1]
    assert whole["usage"]["completion_tokens"] == 12
    answer = gateway.chat(max_tokens=6, temperature=1, seed=3, n=2, stream=True, stream_options={"include_usage": True})
    *chunks, last = answer.events
    for index, text in enumerate(texts):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""} and mine[-1]["finish_reason"] == "length"
        assert "".join(choice["delta"].get("content") or "" for choice in mine) == text
    assert last["usage"]["completion_tokens"] == 12 and answer.data[-1] == "[DONE]"


def test_llama_server_s_way_of_asking_for_log_probabilities(gateway):
    asked, chosen = (
        gateway.chat(max_tokens=3, temperature=0, **fields).json["choices"][0]["logprobs"]
        for fields in ({"n_probs": 2}, {"logprobs": True, "top_logprobs": 2})
    )
    assert asked == chosen and len(asked["content"][0]["top_logprobs"]) == 2
    assert gateway.chat(max_tokens=3, n_probs=0).json["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("part", [True, "content"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_goes_on_gives_back_what_it_goes_on_with(gateway, stream, part):
    """`echo` works as in vLLM. The continued part of the message is named as in llama-server."""
    fields = {"max_tokens": 6, "temperature": 0, "stream": stream, "continue_final_message": part}
    messages = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]
    plain = said(gateway.chat(messages=messages, **fields), stream)
    assert len(plain) == 6 and said(gateway.chat(messages=messages, echo=True, **fields), stream) == f"Well{plain}"
    alone = {**fields, "continue_final_message": False}
    assert len(said(gateway.chat(messages=USER, echo=True, **alone), stream)) == 6


def test_a_thought_that_is_gone_on_with(work_gateway):
    """`continue_final_message` may name the part to continue."""
    messages = [*USER, {"role": "assistant", "content": "", "reasoning_content": "They greet"}]
    fields = {"messages": messages, "continue_final_message": "reasoning_content", "add_generation_prompt": False}
    assert work_gateway.post("/apply-template", **fields).json["prompt"].endswith("They greet")
    assert work_gateway.chat(max_tokens=3, **fields).status == 200
