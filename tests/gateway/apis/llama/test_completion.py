"""llama-server's endpoints before a daemon: fields, streams, figures, errors."""

from __future__ import annotations

import json

import pytest

from tests.daemon.support import eventually
from tests.gateway.support import Raw, n_busy
from uma_gateway.apis.llama.completion import selected


def test_a_whole_completion(gateway):
    answer = gateway.post("/completion", prompt="hello", n_predict=6, temperature=0).json
    assert len(answer["content"]) == 6 == answer["tokens_predicted"] and answer["stop"] is True
    assert (answer["stop_type"], answer["truncated"], answer["stopping_word"]) == ("limit", False, "")
    assert answer["tokens_evaluated"] > 0 and answer["timings"]["predicted_n"] == 6
    assert answer["generation_settings"]["n_predict"] == 6
    assert gateway.post("/completion", prompt=[104, 105], n_predict=2, temperature=0).json["tokens_evaluated"] == 2


def test_an_answer_that_the_context_ends_says_so(gateway):
    n_ctx = gateway.get("/props").json["default_generation_settings"]["n_ctx"]
    ask = {"prompt": [104] * (n_ctx - 5), "temperature": 0, "ignore_eos": True}
    answer = gateway.post("/completion", **ask, n_predict=50).json
    assert (answer["stop_type"], answer["truncated"]) == ("limit", True)
    assert answer["tokens_evaluated"] + answer["tokens_predicted"] >= n_ctx
    assert gateway.post("/completion", **ask, n_predict=50, stream=True).events[-1]["truncated"] is True
    assert gateway.post("/completion", **ask, n_predict=3).json["truncated"] is False


def test_a_streamed_completion_says_what_the_whole_one_says(gateway):
    whole = gateway.post("/completion", prompt="hello", n_predict=9, temperature=0).json
    answer = gateway.post("/completion", prompt="hello", n_predict=9, temperature=0, stream=True)
    *pieces, last = answer.events
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert all(piece["stop"] is False and len(piece["tokens"]) == 1 for piece in pieces)
    assert last["stop"] is True and last["content"] == "" and last["tokens_predicted"] == 9
    assert "[DONE]" not in answer.data


def long_asks(word: str) -> list[tuple[str, dict[str, object]]]:
    """A prompt that is read in several chunks, for each endpoint. Another `word`: nothing of it is cached."""
    return [
        ("/completion", {"prompt": f"{word} " * 300, "n_predict": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": f"{word} " * 300}], "max_tokens": 3}),
        ("/v1/completions", {"prompt": f"{word} " * 301, "max_tokens": 3}),
    ]


@pytest.mark.parametrize(("path", "fields"), long_asks("hello"))
def test_a_stream_tells_how_far_its_prompt_is_read(gateway, path, fields):
    events = gateway.post(path, stream=True, return_progress=True, **fields).events
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert told and events.index(next(e for e in events if "prompt_progress" in e)) < len(events) - 3
    assert told[-1]["processed"] == told[-1]["total"] > 1000 and told[-1]["cache"] <= told[-1]["processed"]
    assert [each["processed"] for each in told] == sorted({each["processed"] for each in told})
    silent = gateway.post(path, stream=True, **fields).events
    assert not any("prompt_progress" in event for event in silent)


@pytest.mark.parametrize(("path", "fields"), long_asks("hallo"))
def test_a_prompt_s_figures_come_with_its_progress(gateway, path, fields):
    events = gateway.post(path, stream=True, return_progress=True, timings_per_token=True, **fields).events
    told = [(event["prompt_progress"], event["timings"]) for event in events if "prompt_progress" in event]
    assert told
    for progress, timings in told:
        assert timings["prompt_n"] == progress["processed"] - progress["cache"]
        assert timings["cache_n"] == progress["cache"] and round(timings["prompt_ms"]) == progress["time_ms"]
        assert timings["predicted_n"] == timings["predicted_ms"] == 0
    assert not any("timings" in e for e in gateway.post(path, stream=True, return_progress=True, **fields).events[:-3])


@pytest.mark.parametrize(
    ("path", "fields", "n_prompts"),
    [
        ("/completion", {"prompt": ["hello", "goodbye"], "n_predict": 5}, 2),
        ("/v1/completions", {"prompt": ["hello", "goodbye"], "max_tokens": 5}, 2),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 5, "n": 2}, 2),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}, 1),
    ],
)
def test_a_stream_tells_its_figures_with_every_token(gateway, path, fields, n_prompts):
    def told(**more):
        events = gateway.post(path, stream=True, temperature=0, **fields, **more).events
        assert not any("prompt_progress" in event for event in events)
        return [event["timings"] for event in events if "timings" in event and not is_last(event)]

    def is_last(event):
        return event["stop"] if "stop" in event else event["choices"][0]["finish_reason"] is not None

    timings = told(timings_per_token=True)
    assert sorted(each["predicted_n"] for each in timings) == sorted([1, 2, 3, 4, 5] * n_prompts)
    assert all(each["prompt_n"] + each["cache_n"] > 0 for each in timings)
    assert told() == []


@pytest.mark.parametrize(
    ("path", "fields", "n_prompts"),
    [
        ("/v1/completions", {"prompt": ["hello", "goodbye"]}, 2),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, 1),
    ],
)
def test_a_stream_has_its_usage_with_every_token(gateway, path, fields, n_prompts):
    """This is vLLM's option; GuideLLM sends it."""

    def told(**options):
        events = gateway.post(path, stream=True, temperature=0, max_tokens=5, **fields, stream_options=options).events
        return [event["usage"] for event in events if event.get("usage")]

    *each, last = told(include_usage=True, continuous_usage_stats=True)
    assert sorted(usage["completion_tokens"] for usage in each) == sorted([1, 2, 3, 4, 5] * n_prompts)
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in each)
    assert all(usage["prompt_tokens"] > 0 for usage in each) and last["completion_tokens"] == 5 * n_prompts
    assert len(told(include_usage=True)) == 1 and told(continuous_usage_stats=True) == []


@pytest.mark.parametrize("held", [{"stop": ["{}~"]}, {"stop": ["{}"]}, {"banned_strings": ["{}"]}, {"n_probs": 1}])
@pytest.mark.parametrize("n_answers", [1, 2])
def test_figures_of_a_stream_count_tokens_whose_text_was_held_back(gateway, held, n_answers):
    ask = {"prompt": "hello", "n_predict": 9, "temperature": 0, "seed": 2}
    text = gateway.post("/completion", **ask).json["content"][2:6]
    held = {name: [each.format(text) for each in value] if name != "n_probs" else 1 for name, value in held.items()}
    ask |= {"stop": [text + "~"], **held, "stream": True, "n_cmpl": n_answers}
    events = gateway.post("/completion", **ask, timings_per_token=True).events
    for index in range(n_answers):
        *pieces, last = [event for event in events if event["index"] == index]
        content = ""
        for piece in pieces:
            content += piece["content"]
            assert piece["tokens_predicted"] == piece["timings"]["predicted_n"] == len(content)
        assert last["tokens_predicted"] == (6 if held.get("stop") == [text] else 9)


def test_figures_of_a_stream_count_all_tokens_of_a_character(tiny_gateway):
    tokens = tiny_gateway.post("/tokenize", content="\U0001f9ff").json["tokens"]
    assert len(tokens) > 1
    chat = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "regex": "\U0001f9ff{3}"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = tiny_gateway.post("/v1/chat/completions", **chat, timings_per_token=True, stream_options=options).events
    told = [e["usage"]["completion_tokens"] for e in events if e["choices"] and e["choices"][0]["delta"].get("content")]
    assert told[-1] == events[-1]["usage"]["completion_tokens"] >= 3 * len(told) == 9


def test_a_prompt_is_read_ahead_without_an_answer(gateway):
    text = "a prompt that somebody will go on with"
    ahead = gateway.post("/completion", prompt=text, n_predict=0).json
    assert ahead["timings"]["prompt_ms"] > 0 == ahead["timings"]["predicted_ms"]
    assert (ahead["content"], ahead["tokens_predicted"]) == ("", 0) and ahead["tokens_evaluated"] > 0
    assert gateway.post("/completion", prompt=text + " now", n_predict=1).json["tokens_cached"] > 20


def test_an_empty_place_to_fill_in_is_not_refused(gateway):
    """llama.vim sends it with its other files, so that those are read ahead."""
    fields = {"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0}
    answer = gateway.post("/infill", **fields, input_extra=[{"filename": "a.py", "text": "x = 1\n"}])
    assert answer.status == 200 or answer.error["message"] == "the model has no tokens for filling in"


def test_stop_words_probabilities_and_chosen_fields(gateway):
    text = gateway.post("/completion", prompt="hello", n_predict=30, temperature=0).json["content"]
    stopped = gateway.post("/completion", prompt="hello", n_predict=30, temperature=0, stop=[text[8:10]]).json
    assert stopped["content"] == text[: text.index(text[8:10])]
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", text[8:10])
    likely = gateway.post("/completion", prompt="hello", n_predict=3, temperature=0, n_probs=2).json[
        "completion_probabilities"
    ]
    assert len(likely) == 3 and all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in likely)
    after = gateway.post("/completion", prompt="hello", n_predict=1, n_probs=2, post_sampling_probs=True).json
    assert 0 <= after["completion_probabilities"][0]["prob"] <= 1
    chosen = gateway.post(
        "/completion", prompt="hello", n_predict=2, response_fields=["content", "timings/predicted_n", "none/such"]
    ).json
    assert chosen.keys() == {"content", "timings/predicted_n"} and chosen["timings/predicted_n"] == 2


def test_several_prompts_have_an_answer_each(gateway):
    """Not one answer to all of them joined."""
    ask = {"n_predict": 4, "temperature": 0}
    alone = [gateway.post("/completion", prompt=prompt, **ask).json["content"] for prompt in ("hello", "goodbye")]
    both = gateway.post("/completion", prompt=["hello", "goodbye"], **ask).json
    assert [answer["content"] for answer in both] == alone and [answer["index"] for answer in both] == [0, 1]
    streamed = gateway.post("/completion", prompt=["hello", "goodbye"], stream=True, **ask).events
    assert ["".join(event["content"] for event in streamed if event["index"] == i) for i in (0, 1)] == alone
    assert sum(event["stop"] for event in streamed) == 2
    assert isinstance(
        gateway.post("/completion", prompt=["hello ", 104, "x"], **ask).json, dict
    )  # an array of texts and token ids is one prompt
    assert gateway.post("/completion", prompt=["x"] * 129, **ask).status == 400


@pytest.mark.parametrize(
    ("given", "name", "meant"),
    [
        ({}, "seed", 0xFFFFFFFF),
        ({"logit_bias": [[5, 2.5], [6, False]]}, "logit_bias", [{"token": 5, "bias": 2.5}, {"token": 6, "bias": None}]),
        ({"logit_bias": {"5": 2, "a": -1}}, "logit_bias", [{"token": 5, "bias": 2}, {"token": "a", "bias": -1}]),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 7.0}, "top_k", 7),
        ({"temperature": -0.5}, "temperature", 0),
        ({"top_p": 0, "top_k": 40}, "top_k", 1),
        ({"top_p": 0}, "top_p", 1e-9),
    ],
)
def test_values_that_other_servers_take_are_not_refused(gateway, given, name, meant):
    answer = gateway.post("/completion", prompt="hello", n_predict=1, **given)
    assert answer.status == 200 and answer.json["generation_settings"][name] == meant


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_s_prompt_is_read_ahead(tiny_gateway, stream):
    """Editors send it before they ask: no token is generated, and the next request finds the prompt in the cache."""
    messages = [{"role": "user", "content": f"Read this ahead, {stream}: " + "one two three " * 20}]
    warm = {"n_predict": 0, "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1}
    read = tiny_gateway.post("/v1/chat/completions", messages=messages, stream=stream, **warm)
    assert read.status == 200
    if not stream:
        choice = read.json["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
        assert read.json["usage"]["completion_tokens"] == 0
    asked = tiny_gateway.post("/v1/chat/completions", messages=messages, max_tokens=2).json
    assert asked["usage"]["prompt_tokens_details"]["cached_tokens"] > 20


def test_samplers_may_be_letters(tiny_gateway):
    def said(samplers):
        fields = {"seed": 7, "temperature": 5, "top_k": 1, "n_predict": 8}
        return tiny_gateway.post("/completion", prompt="hello", samplers=samplers, **fields).json["content"]

    assert said("k?t") == said(["top_k", "temperature"]) != said("t")
    assert said(["Top-K", "topk", "temp"]) == said(["top_k", "temperature"])


def test_a_top_p_of_0_leaves_the_likeliest_token_without_top_k(tiny_gateway):
    def said(**fields):
        return tiny_gateway.post("/completion", prompt="hello", n_predict=8, seed=7, **fields).json["content"]

    order = ["top_p", "temperature"]
    assert said(samplers=order, temperature=5, top_p=0) == said(temperature=0) != said(samplers=order, temperature=5)


def test_samplers_that_llama_cpp_had_once_are_left_out(tiny_gateway):
    """All presets of SillyTavern name them. Names that llama.cpp never had are still refused."""
    listed = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "xtc", "top_p", "min_p"]
    fields = {"prompt": "hello", "n_predict": 1}
    assert tiny_gateway.post("/completion", samplers=[*listed, "temperature"], **fields).status == 200
    refused = tiny_gateway.post("/completion", samplers=[*listed, "warmth"], **fields)
    assert refused.status == 400 and "samplers" in refused.error["message"]


def test_sequence_breakers_may_be_a_text(tiny_gateway):
    """SillyTavern sends them to text-generation-webui as JSON in a string."""

    def said(breakers):
        fields = {"temperature": 0, "repeat_penalty": 1, "max_tokens": 24, "prompt": "a: b, a: b, a: b, a:"}
        fields |= {"dry_multiplier": 5, "dry_penalty_last_n": -1, "dry_sequence_breakers": breakers}
        answer = tiny_gateway.post("/v1/completions", **fields)
        return answer.json["choices"][0]["text"] if answer.status == 200 else answer.error["param"]

    assert said('[",", ":"]') == said([",", ":"]) != said("[]") == said([])
    assert said("[") == said('{"a": 1}') == said("[3]") == "dry_sequence_breakers"


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_to_a_prompt(gateway, stream):
    fields = {"prompt": ["hello", "goodbye"], "n_cmpl": 2, "seed": 3, "temperature": 1, "n_predict": 6}
    whole = gateway.post("/completion", **fields).json
    assert [answer["index"] for answer in whole] == [0, 1, 2, 3] and len({answer["content"] for answer in whole}) == 4
    events = gateway.post("/completion", stream=True, **fields).events
    told = ["".join(event["content"] for event in events if event["index"] == i) for i in range(4)]
    assert told == [answer["content"] for answer in whole]
    assert sum(event["stop"] for event in events) == 4
    assert len(gateway.post("/completion", prompt="hello", n=2, n_predict=1).json) == 2


NEW_LINES = {"prompt": "hello", "n_predict": 900, "temperature": 0, "logit_bias": {"10": 90}}


@pytest.mark.parametrize("limit", [{"t_max_predict_ms": 1}, {"n_indent": 4}])
@pytest.mark.parametrize("stream", [False, True])
def test_limits_of_lines_end_an_answer_and_free_the_daemon(gateway, fake, levers, stream, limit):
    levers(step_ms=20)
    answer = gateway.post("/completion", stream=stream, **NEW_LINES, **limit)
    last = answer.events[-1] if stream else answer.json
    content = "".join(event["content"] for event in answer.events) if stream else last["content"]
    assert content and content == "\n" * len(content) and len(content) < 900
    assert (last["stop"], last["stop_type"], last["generation_settings"]["stream"]) == (True, "limit", stream)
    eventually(lambda: n_busy(fake) == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_answers_has_its_own_limits_of_lines(gateway, fake, levers, stream):
    """llama.vscode asks for this by default: three completions, each with the indent of its line and half a second."""
    levers(step_ms=20)
    fields = {"n_cmpl": 3, "t_max_predict_ms": 1, "n_indent": 4, **NEW_LINES, "temperature": 1, "seed": 3}
    answer = gateway.post("/completion", stream=stream, **fields)
    ends = [event for event in answer.events if event["stop"]] if stream else answer.json
    assert sorted(end["index"] for end in ends) == [0, 1, 2] and {end["stop_type"] for end in ends} == {"limit"}
    assert {end["generation_settings"]["seed"] for end in ends} == {3, 4, 5}
    eventually(lambda: n_busy(fake) == 0)


def test_limits_of_lines_that_are_not_met_change_no_answer_of_several(gateway):
    fields = {"prompt": ["hello", "goodbye"], "n_cmpl": 2, "seed": 3, "temperature": 1, "n_predict": 6}
    limited = gateway.post("/completion", **fields, t_max_predict_ms=60_000).json
    plain = gateway.post("/completion", **fields).json
    assert [(one["index"], one["content"]) for one in limited] == [(one["index"], one["content"]) for one in plain]


def test_limits_of_lines_do_nothing_before_a_new_line(gateway):
    plain = {"prompt": "hello", "n_predict": 9, "temperature": 0, "logit_bias": {"10": False}}
    fields = {"t_max_predict_ms": 1, "n_indent": 9}
    assert (
        gateway.post("/completion", **plain, **fields).json["content"]
        == (gateway.post("/completion", **plain).json["content"])
    )


def test_each_of_several_streamed_answers_has_its_figures(gateway):
    ask = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "n": 2, "stream": True}
    events = gateway.post("/v1/chat/completions", **ask).events
    ends = [event for event in events if event["choices"][0]["finish_reason"]]
    assert [event["timings"]["predicted_n"] for event in ends] == [5, 5]


def test_figures_tell_of_draft_tokens(serve, before):
    """On the simulated engine another row costs nothing, so every draft that is found is verified."""
    gateway = before(serve())
    ask = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "priority": "background"}
    ask |= {"temperature": 0, "ignore_eos": True}
    plain = gateway.post("/v1/chat/completions", **ask).json
    assert "draft_n" not in plain["timings"]
    ask["prediction"] = {"type": "content", "content": plain["choices"][0]["message"]["content"]}
    whole = gateway.post("/v1/chat/completions", **ask).json["timings"]
    assert 10 < whole["draft_n_accepted"] <= whole["draft_n"]
    streamed = gateway.post("/v1/chat/completions", **ask, stream=True).events[-1]["timings"]
    assert 10 < streamed["draft_n_accepted"] <= streamed["draft_n"]


def test_text_to_tokens_and_back(gateway):
    tokens = gateway.post("/tokenize", content="hello").json["tokens"]
    assert tokens and gateway.post("/detokenize", tokens=tokens).json == {"content": "hello", "prompt": "hello"}
    pieces = gateway.post("/tokenize", content="hello", with_pieces=True).json["tokens"]
    assert [piece["id"] for piece in pieces] == tokens and "".join(piece["piece"] for piece in pieces) == "hello"
    assert gateway.post("/tokenize", content="").json == {"tokens": []}
    mixed = gateway.post("/tokenize", content=["", "hel", ord("l"), "o"]).json["tokens"]
    assert mixed == [*tokens[:3], ord("l"), tokens[4]]
    assert gateway.post("/tokenize", content=["hel", ord("l"), "o"], with_pieces=True).json["tokens"] == pieces
    assert gateway.post("/detokenize", tokens=[]).json == {"content": "", "prompt": ""}
    prompt = gateway.post("/apply-template", messages=[{"role": "user", "content": "hello"}]).json["prompt"]
    assert "hello" in prompt and len(prompt) > len("hello")


def test_special_tokens_belong_to_the_whole_of_a_mixed_content(tiny_gateway):
    whole, mixed = (
        tiny_gateway.post("/tokenize", content=content, add_special=True).json["tokens"]
        for content in ("hello", ["hello", " there"])
    )
    assert mixed[: len(whole)] == whole and whole[0] not in mixed[1:]


def test_text_to_tokens_and_back_in_vllms_form(tiny_gateway):
    """lm-eval uses this form for its remote tokenizer."""
    info = tiny_gateway.get("/tokenizer_info").json
    assert info["eos_token"] and info["chat_template"] and info["tokenizer_class"]
    plain = tiny_gateway.post("/tokenize", prompt="hello there", add_special_tokens=False).json
    ours = tiny_gateway.post("/tokenize", content="hello there").json["tokens"]
    assert plain["tokens"] == ours and plain["count"] == len(ours) and plain["token_strs"] is None
    assert plain["max_model_len"] == tiny_gateway.get("/v1/models").json["data"][0]["max_model_len"]
    assert tiny_gateway.post("/detokenize", tokens=ours).json["prompt"] == "hello there"
    whole = tiny_gateway.post("/tokenize", content="hello there", add_special=True).json["tokens"]
    strings = tiny_gateway.post("/tokenize", prompt="hello there", return_token_strs=True).json
    assert strings["tokens"] == whole and "".join(strings["token_strs"]).endswith("hello there")
    assert len(tiny_gateway.post("/tokenize", prompt=info["eos_token"], add_special_tokens=False).json["tokens"]) == 1
    assert tiny_gateway.post("/tokenize", prompt="", add_special_tokens=False).json["count"] == 0
    messages = [{"role": "user", "content": "hello"}]
    counted = tiny_gateway.post("/v1/chat/completions/input_tokens", messages=messages).json["input_tokens"]
    assert tiny_gateway.post("/tokenize", messages=messages).json["count"] == counted


def test_properties_are_not_set(gateway):
    answer = gateway.post("/props", n_predict=3)
    assert answer.status == 501 and answer.error["type"] == "not_supported_error"


def test_slots_and_metrics_tell_what_runs(gateway, levers, fake):
    slots = gateway.get("/slots").json
    assert slots and not any(slot["is_processing"] for slot in slots)
    answer = gateway.get("/metrics")
    assert (
        answer.headers["content-type"].startswith("text/plain") and int(answer.headers["process-start-time-unix"]) > 0
    )
    text = answer.body.decode()
    assert "uma_tokens_generated_total" in text and "llamacpp:tokens_predicted_total" in text
    before = float(text.split("\nllamacpp:tokens_predicted_total ")[1].split("\n")[0])
    gateway.post("/completion", prompt="hello", n_predict=5, ignore_eos=True)
    after = gateway.get("/metrics").body.decode()
    assert float(after.split("\nllamacpp:tokens_predicted_total ")[1].split("\n")[0]) >= before + 5


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/completion", {}, 400, "prompt"),
        ("/completion", {"prompt": [1, None]}, 400, "prompt"),
        ("/completion", {"prompt": {"prompt_string": 3}}, 400, "prompt_string"),
        ("/completion", {"prompt": {"prompt_string": "x", "multimodal_data": ["a"]}}, 501, "multimodal_data"),
        ("/completion", {"prompt": "x", "n_probs": 99}, 400, "n_probs"),
        ("/completion", {"prompt": "x", "logprobs": 99}, 400, "logprobs"),
        ("/completion", {"prompt": "x", "min_keep": -2}, 400, "min_keep"),
        ("/completion", {"prompt": "x", "grammar": 'root ::= "a"', "grammar_lazy": True}, 501, "grammar_lazy"),
        ("/completion", {"prompt": ["x"] * 65, "n_cmpl": 2, "n_indent": 4}, 400, "64 prompts"),
        ("/slots/0?action=erase", {}, 501, "slots"),
        ("/completion", {"prompt": "x", "json_schema": 3}, 400, "json_schema"),
        ("/infill", {}, 400, "input_prefix"),
        ("/infill", {"input_prefix": "a", "input_extra": [3]}, 400, "input_extra"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
        ("/tokenize", {"content": 3}, 400, "content"),
        ("/tokenize", {"content": [None]}, 400, "content"),
        ("/tokenize", {"content": ["a"] * 2000}, 400, "content"),
        ("/tokenize", {"prompt": 3}, 400, "prompt"),
        ("/tokenize", {"messages": 3}, 400, "messages"),
    ],
)
def test_errors_have_llama_servers_form(gateway, path, body, status, word):
    answer = gateway.post(path, **body)
    assert answer.status == status and answer.error["code"] == status and word in answer.error["message"]


@pytest.mark.parametrize("fields", [{}, {"n_cmpl": 2, "temperature": 1}, {"n_probs": 2}, {"t_max_predict_ms": 60_000}])
def test_an_answer_has_its_tokens_where_they_are_asked_for(gateway, fields):
    ask = {"prompt": "hello", "n_predict": 5, "temperature": 0, "seed": 2, **fields}
    plain = gateway.post("/completion", **ask).json
    asked = gateway.post("/completion", return_tokens=True, **ask).json
    events = gateway.post("/completion", stream=True, **ask).events
    for answer, before in zip(*(each if isinstance(each, list) else [each] for each in (asked, plain)), strict=True):
        mine = [token for event in events if event["index"] == answer["index"] for token in event["tokens"]]
        assert answer["tokens"] == mine and len(mine) == 5 and before["tokens"] == []
        assert answer["content"] == before["content"]
        assert ("completion_probabilities" in answer) == ("n_probs" in fields)


@pytest.mark.parametrize("fields", [{}, {"n_cmpl": 2}, {"n_probs": 2}, {"t_max_predict_ms": 60_000}])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_stream_has_the_tokens_of_text_that_was_held_back(gateway, fields, is_whole):
    ask = {"prompt": "hello", "n_predict": 9, "temperature": 0, "seed": 2, **fields}
    answer = gateway.post("/completion", **{**ask, "n_cmpl": 1}).json
    ask["stop"] = [answer["content"][2:6] + ("" if is_whole else "~")]
    asked = gateway.post("/completion", return_tokens=True, **ask).json
    events = gateway.post("/completion", return_tokens=True, stream=True, **ask).events
    for whole in asked if isinstance(asked, list) else [asked]:
        mine = [token for event in events if event["index"] == whole["index"] for token in event["tokens"]]
        assert whole["tokens"] == mine and len(mine) == (2 if is_whole else 9)
    assert any("completion_probabilities" in event for event in events) == ("n_probs" in fields)


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_has_the_probabilities_of_tokens_without_text(tiny_gateway, n):
    control = tiny_gateway.post("/tokenize", content="<|im_start|>").json["tokens"]
    assert len(control) == 1
    ask = {"prompt": "hello", "n_predict": 3, "n_probs": 1, "logit_bias": [[control[0], 1000]], "n_cmpl": n}
    wholes = tiny_gateway.post("/completion", temperature=0, **ask).json
    events = tiny_gateway.post("/completion", temperature=0, stream=True, **ask).events
    for whole in wholes if n > 1 else [wholes]:
        mine = [event for event in events if event["index"] == whole["index"]]
        told = [each for event in mine for each in event.get("completion_probabilities", ())]
        assert whole["content"] == "" and told == whole["completion_probabilities"] and len(told) == 3


def test_log_probabilities_by_their_other_name(gateway):
    ask = {"prompt": "hello", "n_predict": 2, "temperature": 0}
    names = ({"n_probs": 2}, {"logprobs": 2}, {"n_probs": 2, "logprobs": 1})
    told = [gateway.post("/completion", **ask, **name).json["completion_probabilities"] for name in names]
    assert told[0] == told[1] == told[2] and len(told[0][0]["top_logprobs"]) == 2


def test_a_prompt_may_be_an_object(gateway):
    def said(prompt):
        answers = gateway.post("/completion", prompt=prompt, n_predict=4, temperature=0).json
        return [answer["content"] for answer in (answers if isinstance(answers, list) else [answers])]

    assert said({"prompt_string": "hello"}) == said("hello")
    assert said(["goodbye", {"prompt_string": "hello", "multimodal_data": []}]) == said("goodbye") + said("hello")


def test_an_empty_schema_is_any_object(tiny_gateway):
    """As in llama-server. If any value were allowed, a small model would write a number that does not end."""
    answer = tiny_gateway.post("/completion", prompt="The package", json_schema={}, n_predict=60, temperature=0).json
    assert answer["content"].lstrip().startswith("{")


def test_whether_a_slot_is_free_may_be_asked_beside_other_things(serve, before):
    daemon = serve("--parallel", "1")
    gateway = before(daemon)
    daemon.pull(step_ms=20)
    paths = [
        f"/slots?{query}" for query in ("fail_on_no_slot=1", "model=any&fail_on_no_slot=1", "fail_on_no_slot=true")
    ]
    assert [gateway.get(path).status for path in paths] == [200] * 3
    with Raw(gateway.port) as raw:
        raw.send("POST", "/completion", {"prompt": "hello", "n_predict": 900, "ignore_eos": True, "stream": True})
        raw.until(b"data: ")
        assert [gateway.get(path).status for path in paths] == [503] * 3
        (busy,) = gateway.get("/slots").json
        assert busy["is_processing"] and busy["next_token"][0]["has_next_token"] is True


def test_metrics_under_llama_server_s_names(gateway, fake):
    gateway.post("/completion", prompt="metrics of a prompt", n_predict=9, ignore_eos=True)
    gateway.post("/completion", prompt="metrics of a prompt", n_predict=9, ignore_eos=True)
    lines = gateway.get("/metrics").body.decode().split("\n")
    told = {name: float(value) for name, value in (line.split() for line in lines if line.startswith("llamacpp:"))}
    for name in (
        "prompt_tokens",
        "prompt_tokens_cached",
        "prompt_seconds",
        "tokens_predicted",
        "tokens_predicted_seconds",
    ):
        assert told[f"llamacpp:{name}_total"] > 0
    assert told["llamacpp:predicted_tokens_seconds"] > 0 and told["llamacpp:prompt_tokens_seconds"] > 0
    assert told["llamacpp:spec_decode_num_draft_tokens_total"] >= told["llamacpp:spec_decode_num_accepted_tokens_total"]


def test_a_schema_s_type_may_go_without_saying(tiny_gateway):
    """As in the examples in llama-server's README."""
    name = {"name": {"type": "string", "maxLength": 5}}
    people = {"properties": name, "required": ["name"], "additionalProperties": False}  # else texts without a limit
    texts = {"items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 2}
    for schema, kind in ((people, dict), (texts, list)):
        fields = {"n_predict": 200, "json_schema": schema}
        assert isinstance(json.loads(tiny_gateway.post("/completion", prompt="Hi", **fields).json["content"]), kind)
        form = {"type": "json_schema", "schema": schema}
        answer = tiny_gateway.chat("Hi", max_tokens=300, response_format=form).json["choices"][0]["message"]["content"]
        assert isinstance(json.loads(answer), kind)


def test_chosen_fields_lie_in_objects():
    whole = {"content": "a", "timings": {"prompt_n": 3}, "stop": None}
    assert selected(whole, []) is whole
    wanted = ["content", "timings/prompt_n", "timings/none", "content/a", "none", "stop"]
    assert selected(whole, wanted) == {"content": "a", "timings/prompt_n": 3, "stop": None}
