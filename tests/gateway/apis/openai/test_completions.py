"""`/v1/completions` field by field."""

from __future__ import annotations

import re

import pytest


def complete(gateway, prompt="once upon", **body):
    return gateway.post("/v1/completions", prompt=prompt, **{"temperature": 0, "max_tokens": 8, **body})


def text_of(answer, index=0):
    return "".join(
        event["choices"][0]["text"]
        for event in answer.events
        if event["choices"] and event["choices"][0]["index"] == index
    )


def test_whole_and_streamed_say_the_same(gateway):
    whole = complete(gateway).json
    (choice,) = whole["choices"]
    assert whole["object"] == "text_completion" and whole["id"].startswith("cmpl-")
    assert (len(choice["text"]), choice["finish_reason"], choice["logprobs"]) == (8, "length", None)
    streamed = complete(gateway, stream=True, stream_options={"include_usage": True})
    assert streamed.data[-1] == "[DONE]" and text_of(streamed) == choice["text"]
    *chunks, last = streamed.events
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8


def test_tokens_are_a_prompt_too(gateway, fake):
    tokens = fake.ask("tokenize", content="once upon", add_special=True)["tokens"]
    assert complete(gateway, tokens).json["choices"] == complete(gateway).json["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_are_answered_in_their_order(gateway, stream):
    prompts = ["once upon", "a time", [104, 105]]
    alone = [complete(gateway, prompt).json["choices"][0]["text"] for prompt in prompts]
    answer = complete(gateway, prompts, stream=stream)
    if stream:
        assert [text_of(answer, i) for i in range(3)] == alone
        ends = [e["choices"][0]["index"] for e in answer.events if e["choices"][0]["finish_reason"]]
        assert sorted(ends) == [0, 1, 2] and answer.data[-1] == "[DONE]"
    else:
        assert [(c["index"], c["text"]) for c in answer.json["choices"]] == list(enumerate(alone))
        assert answer.json["usage"]["completion_tokens"] == 24


def test_without_a_limit_it_is_sixteen_tokens(gateway):
    answer = gateway.post("/v1/completions", prompt="once", temperature=0)
    assert answer.json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["once upon", [111, 110]])
def test_echo_puts_the_prompt_first(gateway, stream, prompt):
    said = complete(gateway, prompt).json["choices"][0]["text"]
    answer = complete(gateway, prompt, echo=True, stream=stream)
    text = text_of(answer) if stream else answer.json["choices"][0]["text"]
    assert text == ("once upon" if isinstance(prompt, str) else "on") + said


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_older_api_s_arrays(gateway, stream):
    answer = complete(gateway, logprobs=2, stream=stream, stop=None)
    if stream:
        parts = [e["choices"][0]["logprobs"] for e in answer.events if e["choices"][0].get("logprobs")]
        arrays = {name: [item for part in parts for item in part[name]] for name in parts[0]}
        text = text_of(answer)
    else:
        (choice,) = answer.json["choices"]
        arrays, text = choice["logprobs"], choice["text"]
    assert "".join(arrays["tokens"]) == text
    assert arrays["text_offset"] == list(range(len(text)))
    assert all(p <= 0 for p in arrays["token_logprobs"]) and all(len(top) == 2 for top in arrays["top_logprobs"])


def test_tokens_that_are_parts_of_a_character_are_told_apart(tiny_gateway):
    asked = {"prompt": "x", "grammar": 'root ::= "\U0001f600"', "max_tokens": 9, "logprobs": 20}
    choice = tiny_gateway.post("/v1/completions", **asked).json["choices"][0]
    arrays = choice["logprobs"]
    assert choice["text"] == "\U0001f600"
    assert arrays["tokens"] == [rf"bytes:\x{byte:02x}" for byte in "\U0001f600".encode()]
    assert all(len(top) in (20, 21) for top in arrays["top_logprobs"])  # the chosen token is not always among the 20


def test_text_offsets_count_the_echo(gateway):
    (choice,) = complete(gateway, ["ab"], logprobs=0, stream=False).json["choices"]
    assert choice["logprobs"]["text_offset"][0] == 0


@pytest.mark.parametrize("n_top", [0, 1])
def test_the_chosen_token_is_always_among_the_likeliest(tiny_gateway, n_top):
    """As in OpenAI and vLLM. The list may have one more entry than requested."""
    fields = {"prompt": "x", "max_tokens": 8, "temperature": 5, "min_p": 0, "top_k": 0, "seed": 1, "logprobs": n_top}
    arrays = tiny_gateway.post("/v1/completions", **fields).json["choices"][0]["logprobs"]
    chosen = zip(arrays["tokens"], arrays["token_logprobs"], arrays["top_logprobs"], strict=True)
    assert all(top[token] == logprob for token, logprob, top in chosen)
    assert max(len(top) for top in arrays["top_logprobs"]) == n_top + 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": ["a", None]}, 400, "prompt"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, 501, "prompt"),
        ({"prompt": ["a", 1], "echo": True}, 400, "echo"),
        ({"n_probs": 99}, 400, "n_probs"),
        ({"min_keep": -2}, 400, "min_keep"),
        ({"prompt": ["x"] * 200}, 400, "prompt"),
        ({"logprobs": 99}, 400, "logprobs"),
        ({"best_of": 1, "n": 2}, 400, "best_of"),
        ({"best_of": 3, "stream": True}, 400, "best_of"),
        ({"suffix": "end"}, 501, "suffix"),
    ],
)
def test_a_wrong_field_is_named(gateway, body, status, param):
    answer = complete(gateway, **body)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_prompt_begins_with_the_token_that_begins_a_text(tiny_gateway, tiny, stream):
    start = tiny.ask("props")["special"]["bos"]["id"]
    (turn,) = tiny.ask("tokenize", content="<|im_start|>")["tokens"]  # a token without text
    fields = {"echo": True, "logprobs": 0, "stream": stream, "logit_bias": {str(turn): False}}
    answer, begun = (complete(tiny_gateway, prompt, **fields) for prompt in ("", [start]))
    empty, whole = gathered(answer, stream, 0)
    assert len(empty["tokens"]) == 8 and "".join(empty["tokens"]) == whole
    assert empty["token_logprobs"] == gathered(begun, stream, 0)[0]["token_logprobs"][1:]


def test_one_prompt_of_several_that_is_refused_refuses_all(gateway, fake):
    n_ctx = fake.ask("props")["n_ctx_seq"]
    for stream in (False, True):
        answer = complete(gateway, ["fine", "x" * (n_ctx + 1)], stream=stream)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


def test_a_failure_of_one_of_several_streams_is_an_error_event(gateway, levers):
    levers(statuses=["OK"] * 6 + ["FATAL"])
    answer = complete(gateway, ["a", "b"], max_tokens=50, stream=True)
    assert "error" in answer.events[-1] and "[DONE]" not in answer.data


def test_several_answers_to_each_of_several_prompts(gateway):
    fields = {"temperature": 1, "seed": 3, "n": 2}
    whole = complete(gateway, ["a", "b"], **fields).json["choices"]
    assert [choice["index"] for choice in whole] == [0, 1, 2, 3] and len({choice["text"] for choice in whole}) == 4
    streamed = complete(gateway, ["a", "b"], stream=True, **fields)
    assert [text_of(streamed, i) for i in range(4)] == [choice["text"] for choice in whole]
    assert len(complete(gateway, "a", best_of=3, temperature=1, n=1).json["choices"]) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("prompt", ["Once upon a time", [1, 449, 6806]])
def test_an_echo_has_the_log_probabilities_of_the_prompt_s_tokens(tiny_gateway, tiny, stream, n, prompt):
    answer = complete(tiny_gateway, prompt, echo=True, logprobs=2, stream=stream, n=n, seed=3, temperature=0.7)
    text = tiny.ask("detokenize", tokens=prompt)["content"] if isinstance(prompt, list) else prompt
    tokens = prompt if isinstance(prompt, list) else tiny.ask("tokenize", content=prompt)["tokens"]
    for index in range(n):
        arrays, whole = gathered(answer, stream, index)
        assert whole.startswith(text) and len(arrays["tokens"]) == len(tokens) + 8
        assert "".join(arrays["tokens"]) == whole
        assert all(whole.startswith(t, at) for t, at in zip(arrays["tokens"], arrays["text_offset"], strict=True))
        first, *others = arrays["token_logprobs"]
        assert (first is None) == isinstance(prompt, list), "a token of the model's own stands before a text"
        assert all(p <= 0 for p in others) and all(len(top) >= 2 for top in arrays["top_logprobs"][1:])


def gathered(answer, stream, index):
    """Return the arrays and the text of a choice, put together."""
    if not stream:
        choice = answer.json["choices"][index]
        return choice["logprobs"], choice["text"]
    parts = [
        e["choices"][0]["logprobs"]
        for e in answer.events
        if e["choices"][0]["index"] == index and e["choices"][0]["logprobs"]
    ]
    return {name: [item for part in parts for item in part[name]] for name in parts[0]}, text_of(answer, index)


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_but_the_prompt_s(tiny_gateway, stream):
    """Evaluation harnesses score given texts in this way."""
    answer = complete(
        tiny_gateway, ["The kernel runs", "A cat sat"], echo=True, logprobs=1, max_tokens=0, stream=stream
    )
    for index, text in enumerate(["The kernel runs", "A cat sat"]):
        arrays, whole = gathered(answer, stream, index)
        assert "".join(arrays["tokens"]) == whole == text
    plain = complete(tiny_gateway, "The kernel runs", echo=True, max_tokens=0, stream=stream)
    assert (text_of(plain) if stream else plain.json["choices"][0]["text"]) == "The kernel runs"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"grammar": 'root ::= "yes" | "no"'}, r"yes|no"),
        ({"json_schema": {"enum": ["left", "right"]}}, r'"(left|right)"'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 7}}}},
            r"7",
        ),
        ({"guided_json": {"const": 7}}, r"7"),
        ({"guided_choice": ["left", "right"]}, r"left|right"),
        ({"guided_regex": "[a-c]{4}"}, r"[a-c]{4}"),
        ({"structured_outputs": {"json": '{"const": 7}'}}, r"7"),
        ({"structured_outputs": {"choice": ["left", "right"], "regex": None, "disable_fallback": True}}, r"left|right"),
        ({"structured_outputs": {"grammar": 'start: "yes" | "no"'}}, r"yes|no"),
        ({"guided_grammar": 'root ::= "yes" | "no"'}, r"yes|no"),
        ({"regex": "[a-c]{4}"}, r"[a-c]{4}"),
        (
            {"guided_grammar": 'start: "yes"', "structured_outputs": {"grammar": 'start: "yes"'}},  # guidance's form
            r"yes",
        ),
        ({"json_schema": {"const": 7, "$id": "a number", "$schema": "any"}}, r"7"),
        ({"ebnf": 'root ::= "yes" | "no"', "regex": None}, r"yes|no"),
    ],
)
def test_answers_are_held_to_a_form(tiny_gateway, form, expected):
    assert re.fullmatch(expected, complete(tiny_gateway, "Hello", max_tokens=30, **form).json["choices"][0]["text"])


def test_vllms_field_tells_the_log_probabilities_of_a_prompt(tiny_gateway):
    """inspect-ai asks for them in this form."""
    prompt = "The kernel runs"
    tokens = tiny_gateway.post("/tokenize", prompt=prompt).json["tokens"]
    fields = {"prompt_logprobs": 1, "logprobs": 0, "max_tokens": 2, "temperature": 0}
    choice = complete(tiny_gateway, prompt, **fields).json["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None and [next(iter(each)) for each in others] == [str(token) for token in tokens[1:]]
    assert len(choice["logprobs"]["tokens"]) == 2
    assert "".join(next(iter(each.values()))["decoded_token"] for each in others).strip() == prompt
    assert all(min(one["rank"] or 2 for one in each.values()) == 1 and len(each) <= 2 for each in others)
    both = complete(tiny_gateway, prompt, **{**fields, "prompt_logprobs": 0, "logprobs": 2}, echo=True).json["choices"][
        0
    ]
    assert all(len(each) == 1 for each in both["prompt_logprobs"][1:])
    told = both["logprobs"]["token_logprobs"][: len(others)]
    assert told == [next(iter(each.values()))["logprob"] for each in others]
    assert len(both["logprobs"]["top_logprobs"][1]) == 3  # the prompt's own token is not likely

    messages = [{"role": "user", "content": "Hello"}]
    chat = tiny_gateway.post("/v1/chat/completions", messages=messages, prompt_logprobs=0, max_tokens=2).json
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"] and chat["prompt_logprobs"][0] is None
    assert "prompt_logprobs" not in tiny_gateway.post("/v1/chat/completions", messages=messages, max_tokens=2).json


@pytest.mark.parametrize(
    "fields", [{"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"prompt_logprobs": 0, "stream": True}]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompts_log_probabilities_that_cannot_be_had_are_refused(gateway, path, fields):
    asked = {"messages": [{"role": "user", "content": "Hello"}]} if "chat" in path else {"prompt": "Hello"}
    answer = gateway.post(path, **asked, **fields)
    assert (answer.status, answer.error["param"]) == (400, "prompt_logprobs")


def test_two_forms_at_once_are_refused(tiny_gateway):
    answer = complete(tiny_gateway, "Hello", grammar='root ::= "a"', json_schema={"const": 1})
    assert (answer.status, answer.error["param"]) == (400, "grammar")


@pytest.mark.parametrize(
    ("form", "status", "param"),
    [
        ({"use_beam_search": True}, 501, "use_beam_search"),
        ({"structured_outputs": {"structural_tag": "x"}}, 501, "structured_outputs.structural_tag"),
        ({"structured_outputs": "x"}, 400, "structured_outputs"),
        ({"guided_choice": []}, 400, "guided_choice"),
        ({"guided_choice": [1]}, 400, "guided_choice"),
        ({"guided_json": "{"}, 400, "guided_json"),
        ({"guided_json": "3"}, 400, "guided_json"),
        ({"guided_regex": 3}, 400, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, 400, "guided_regex"),
        ({"guided_regex": "a", "json_schema": {}}, 400, "guided_regex"),
        ({"ebnf": 'root ::= "a"', "regex": "a"}, 400, "ebnf"),
        ({"regex": 3}, 400, "regex"),
        ({"guided_regex": "a", "grammar": 'root ::= "a"'}, 400, "grammar"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_form_of_vllm_that_cannot_be_had_is_named(gateway, path, form, status, param):
    messages = [{"role": "user", "content": "hello"}]
    answer = gateway.post(path, prompt="hello", messages=messages, **form)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body


@pytest.mark.parametrize("names", [("banned_strings",), ("bad_words",), ("banned_strings", "bad_words")])
def test_banned_strings_pass_through(tiny_gateway, names):
    free = complete(tiny_gateway, "The kernel", max_tokens=30).json["choices"][0]["text"]
    words = free.split()[3 : 3 + len(names)]
    banned = {name: [word] for name, word in zip(names, words, strict=True)}
    text = complete(tiny_gateway, "The kernel", max_tokens=30, **banned).json["choices"][0]["text"]
    assert not any(word in text for word in words)


def test_prompts_may_have_llama_server_s_forms(tiny_gateway):
    """An object with a text, or one prompt of token ids mixed with texts."""

    def texts(prompt):
        return [choice["text"] for choice in complete(tiny_gateway, prompt).json["choices"]]

    assert texts({"prompt_string": "once upon"}) == texts("once upon")
    assert texts(["a time", {"prompt_string": "once upon"}]) == texts("a time") + texts("once upon")
    tokens = tiny_gateway.post("/tokenize", content=[40, " upon a time"]).json["tokens"]
    assert texts([40, " upon a time"]) == texts(tokens)
    assert texts([[40, " upon a time"], [41]]) == texts(tokens) + texts([41])


@pytest.mark.parametrize("prompt", ["once upon", ["once upon", "a time"]])
def test_a_stream_ends_with_its_timings(gateway, prompt):
    """This holds without the chunk that has the timings beside the usage."""
    ends = [e for e in complete(gateway, prompt, stream=True).events if e["choices"][0]["finish_reason"]]
    assert len(ends) == (1 if isinstance(prompt, str) else 2)
    assert all(end["timings"]["predicted_n"] == 8 and "usage" not in end for end in ends)


def test_llama_server_s_way_of_asking_for_log_probabilities(gateway):
    asked, older = (
        complete(gateway, **fields).json["choices"][0]["logprobs"] for fields in ({"n_probs": 2}, {"logprobs": 2})
    )
    assert asked == older and len(asked["top_logprobs"][0]) == 2
    assert complete(gateway, n_probs=0).json["choices"][0]["logprobs"] is None
