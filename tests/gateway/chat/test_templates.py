from __future__ import annotations

import datetime
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.gateway.chat.conftest import (
    CALLS,
    FOLDER,
    MESSAGES,
    NAMES,
    REQUESTS,
    SCHEMA,
    TOOLS,
    WITHOUT_CALLS,
    apply,
    run_on_small_stack,
    templates,
)
from uma_gateway.chat import templates as chat_templates
from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.parser import Parser
from uma_gateway.chat.templates import Templates

QUESTION = [{"role": "user", "content": "Hello"}]
# features that Python's jinja lacks or llama.cpp does better: a {% generation %} tag, its own variables, a system
# role for all, the date
NOT_COMPARABLE = re.compile(
    r"%-?\s*generation\b|functions\b.*undefined|System role not supported|strftime_now|26 Jul 2024", re.DOTALL
)


def code_of(error: pytest.ExceptionInfo[ChatError]) -> ChatCode:
    return error.value.code


def test_templates_without_a_form_of_calls_are_known(name: str) -> None:
    assert templates(name).calls_tools is (name not in WITHOUT_CALLS)


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    made.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda text: datetime.datetime.now().strftime(text)
    return made


@pytest.mark.parametrize("kind", ["plain", "tools"])
def test_prompts_equal_those_of_the_python_jinja(name: str, kind: str) -> None:
    """transformers renders templates with it, so models were trained on these prompts."""
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    if NOT_COMPARABLE.search(source) or (
        kind == "tools" and name in (*WITHOUT_CALLS, "meetkai-functionary-medium-v3.1", "llama-cpp-deepseek-r1")
    ):
        return
    messages = [*MESSAGES, {"role": "assistant", "content": "It is sunny."}, {"role": "user", "content": "Thanks! é✓"}]
    try:
        expected = (
            environment()
            .from_string(source)
            .render(
                messages=messages,
                add_generation_prompt=True,
                bos_token="<s>",
                eos_token="</s>",
                enable_thinking=True,
                **REQUESTS[kind],
            )
        )
    except jinja2.TemplateError as error:
        assert re.search("System role|no attribute 'description'|functions' is undefined", str(error)), error
        return
    assert templates(name).apply(messages, **REQUESTS[kind]).prompt == expected


def test_most_templates_are_comparable() -> None:
    assert sum(not NOT_COMPARABLE.search((FOLDER / f"{name}.jinja").read_text(encoding="utf-8")) for name in NAMES) > 50


def test_a_named_tool_keeps_the_others_in_the_prompt() -> None:
    """The prompt's cache stays valid, and the model sees the tools that it could choose from."""
    named, free = apply("Qwen-Qwen2.5-7B-Instruct", "named"), apply("Qwen-Qwen2.5-7B-Instruct", "tools")
    assert named.prompt == free.prompt
    lark = str(named.constraint)
    assert "search" in lark and "get_weather" not in lark


def test_allowed_tools_are_the_only_ones_that_can_be_called() -> None:
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "search"}}]},
    }
    applied = templates("Qwen-Qwen2.5-7B-Instruct").apply(MESSAGES, tools=TOOLS, tool_choice=choice)
    assert "get_weather" in applied.prompt and "get_weather" not in str(applied.constraint)
    assert applied.constraint is not None and applied.constraint["triggers"] == [
        {"type": "word", "value": "<tool_call>\n"}
    ]


@pytest.mark.parametrize(
    "choice", [{"type": "function", "function": {"name": "fly"}}, {"type": "custom"}, "perhaps", {"type": "function"}]
)
def test_an_unknown_choice_is_refused(choice: Any) -> None:
    with pytest.raises(ChatError) as caught:
        templates("Qwen-Qwen2.5-7B-Instruct").apply(MESSAGES, tools=TOOLS, tool_choice=choice)
    assert code_of(caught) is ChatCode.BAD_REQUEST


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ("no list", ChatCode.BAD_REQUEST),
        ([{"role": "user"}], ChatCode.BAD_REQUEST),
        ([{"content": "x"}], ChatCode.BAD_REQUEST),
        ([{"role": "user", "content": {"a": 1}}], ChatCode.BAD_REQUEST),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], ChatCode.BAD_REQUEST),
        ([{"role": "user", "content": "x", "extra": 1 << 64}], ChatCode.BAD_REQUEST),
        ([{"role": "user", "content": "x", "extra": object()}], ChatCode.BAD_REQUEST),
    ],
)
def test_malformed_messages_are_refused(messages: Any, code: ChatCode) -> None:
    with pytest.raises(ChatError) as caught:
        templates("Qwen-Qwen2.5-7B-Instruct").apply(messages)
    assert code_of(caught) is code


def test_what_the_template_says_is_the_message() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(ChatError) as caught:
        templates("mistralai-Mistral-Nemo-Instruct-2407").apply(messages)
    assert code_of(caught) is ChatCode.TEMPLATE_FAILED
    assert "alternate" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tool",
    [{"type": "web_search"}, {"type": "function", "function": {}}, "x", {"type": "function", "function": {"name": 3}}],
)
def test_malformed_tools_are_refused(tool: Any) -> None:
    with pytest.raises(ChatError) as caught:
        templates("Qwen-Qwen2.5-7B-Instruct").apply(QUESTION, tools=[tool])
    assert code_of(caught) is ChatCode.BAD_REQUEST


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def call_message(arguments: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
    }


@pytest.mark.parametrize("depth", [300, 900, 100_000])
@pytest.mark.parametrize(
    "place",
    [
        lambda depth: {"messages": [*QUESTION, call_message("[" * depth + "]" * depth)]},
        lambda depth: {
            "messages": [
                *QUESTION,
                call_message("{}"),
                {"role": "tool", "tool_call_id": "call00001", "content": "[" * depth},
            ]
        },
        lambda depth: {
            "messages": [*QUESTION, call_message("{}"), {"role": "tool", "content": " [" * depth + "]" * depth}]
        },
    ],
)
def test_deep_texts_are_refused_and_end_nothing(place: Any, depth: int) -> None:
    for name in ("google-gemma-4-31B-it", "Qwen-Qwen2.5-7B-Instruct", "GLM-4.6"):
        with pytest.raises(ChatError) as caught:
            templates(name).apply(**place(depth), tools=TOOLS)
        assert code_of(caught) is ChatCode.TOO_DEEP


@pytest.mark.parametrize("depth", [300, 900, 3_000])
def test_deep_schemas_and_options_are_refused_and_end_nothing(depth: int) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for request in ({"json_schema": schema}, {"tools": [tool]}, {"chat_template_kwargs": {"x": nested(depth)}}):
        with pytest.raises(ChatError) as caught:
            templates("Qwen-Qwen2.5-7B-Instruct").apply(QUESTION, **request)
        assert code_of(caught) is ChatCode.TOO_DEEP


WIDE = {f"a{i}": 1 for i in range(4097)}


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "user", "content": "Hi", **WIDE}]},
        {"messages": [*QUESTION, call_message(json.dumps({"a": [WIDE]}))], "tools": TOOLS},
        {"messages": QUESTION, "json_schema": {"type": "object", "properties": {name: {} for name in WIDE}}},
        {"messages": QUESTION, "chat_template_kwargs": {"x": WIDE}},
    ],
)
def test_objects_of_thousands_of_names_are_refused_at_once(request_: dict[str, Any]) -> None:
    """Before, 10,000 names took seconds, and a large request hours, in one of the threads that all requests share."""
    with pytest.raises(ChatError, match="an object has more than 4096 names") as caught:
        templates("Qwen-Qwen2.5-7B-Instruct").apply(**request_)
    assert code_of(caught) is ChatCode.BAD_REQUEST


def test_objects_of_many_names_side_by_side_are_read() -> None:
    half = json.dumps([dict(list(WIDE.items())[:1000])] * 5)
    assert templates("Qwen-Qwen2.5-7B-Instruct").apply([*QUESTION, call_message('{"a": ' + half + "}")], tools=TOOLS)


def test_a_tool_may_give_back_a_large_file_of_json() -> None:
    model, asked = templates("Qwen-Qwen2.5-7B-Instruct"), [*QUESTION, call_message("{}")]
    assert '"a4096": 1' in model.apply([*asked, {"role": "tool", "content": json.dumps(WIDE)}], tools=TOOLS).prompt
    names = json.dumps({f"a{i}": 1 for i in range(32_769)})
    with pytest.raises(ChatError, match="a tool's result: an object has more than 32768 names"):
        model.apply([*asked, {"role": "tool", "content": names}], tools=TOOLS)


def test_more_template_variables_than_any_template_has_are_refused() -> None:
    with pytest.raises(ChatError, match="chat_template_kwargs: there are 101, at most 100") as caught:
        templates("Qwen-Qwen2.5-7B-Instruct").apply(QUESTION, chat_template_kwargs={f"a{i}": 1 for i in range(101)})
    assert code_of(caught) is ChatCode.BAD_REQUEST


def test_deep_requests_end_no_thread_with_a_small_stack() -> None:
    codes = []

    def work() -> None:
        for depth in (8, 60, 200):
            try:
                templates("google-gemma-4-31B-it").apply(
                    [*QUESTION, call_message(json.dumps({"a": nested(depth)}))], tools=TOOLS
                )
                codes.append("ok")
            except ChatError as error:
                codes.append(error.code.value)

    templates("google-gemma-4-31B-it")
    run_on_small_stack(work)
    assert codes == ["ok", "too_deep", "too_deep"]


@pytest.mark.parametrize("where", ["property", "tool", "reference"])
def test_names_that_would_overflow_the_library_are_refused(where: str) -> None:
    long = "é" * 100_000
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    if where == "property":
        schema["properties"] = {long: {"type": "string"}}
    if where == "reference":
        schema = {"$defs": {"x": {"type": "string"}}, "type": "object", "properties": {"a": {"$ref": f"#/{long}"}}}
    tool = {"type": "function", "function": {"name": long if where == "tool" else "f", "parameters": schema}}
    with pytest.raises(ChatError) as caught:
        templates("Qwen-Qwen2.5-7B-Instruct").apply(QUESTION, tools=[tool])
    assert code_of(caught) is ChatCode.BAD_REQUEST


@pytest.mark.parametrize("source", ["", "  \n"])
def test_a_model_without_a_template_is_told_so(source: str) -> None:
    """llama.cpp would silently use ChatML."""
    with pytest.raises(ChatError) as caught:
        Templates(source)
    assert code_of(caught) is ChatCode.NO_TEMPLATE


def test_a_template_with_an_error_tells_its_reason() -> None:
    with pytest.raises(ChatError) as caught:
        Templates("{% if messages")
    assert code_of(caught) is ChatCode.TEMPLATE_FAILED
    assert "Parser Error" in str(caught.value)


def test_a_template_that_writes_nothing_is_told_so() -> None:
    users_only = Templates("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(ChatError) as caught:
        users_only.apply([{"role": "assistant", "content": "Hello"}])
    assert code_of(caught) is ChatCode.TEMPLATE_FAILED
    assert "writes nothing" in str(caught.value)


def test_a_template_that_computes_for_ever_ends_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "MAX_SECONDS", 0.1)
    loops = "{% for a in range(9000) %}{% for b in range(9000) %}{% set c = a * b %}{% endfor %}{% endfor %}"
    calls = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    for body in (loops, calls):
        odd = Templates("{{ messages[0].content }}{% if 'go' in messages[0].content %}" + body + "{% endif %}")
        for _ in range(2):
            with pytest.raises(ChatError) as caught:
                odd.apply([{"role": "user", "content": "go"}])
            assert (code_of(caught), "too long" in str(caught.value)) == (ChatCode.TEMPLATE_UNSAFE, True)
            assert odd.apply(QUESTION).prompt == QUESTION[0]["content"]


def test_the_template_for_tools_is_used_with_tools() -> None:
    plain = "{% for m in messages %}plain:{{ m.content }}{% endfor %}"
    with_tools = "{% for m in messages %}tools:{{ m.content }}{% endfor %}{{ tools | tojson }}"
    both = Templates(plain, with_tools)
    assert "plain:Hello" in both.apply(QUESTION).prompt
    assert "tools:" in both.render({"messages": QUESTION, "tools": TOOLS})["prompt"]


def test_bos_is_left_to_the_daemon_where_it_adds_one() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert Templates(source, bos="<s>", add_bos=True).apply(QUESTION).prompt == "Hello"
    assert Templates(source, bos="<s>").apply(QUESTION).prompt == "<s>Hello"


def test_thinking_can_be_switched_off_and_is_told() -> None:
    on, off = apply("Qwen3.5-4B", "tools"), apply("Qwen3.5-4B", "no-thinking")
    assert on.thinking is not None and on.thinking.is_open and on.thinking.start == "<think>"
    assert on.prompt != off.prompt
    assert off.thinking is None or not off.thinking.is_open


def test_options_reach_the_template() -> None:
    source = "{{ mood }}:{% for m in messages %}{{ m.content }}{% endfor %}"
    assert Templates(source).apply(QUESTION, chat_template_kwargs={"mood": "calm"}).prompt == "calm:Hello"


def test_the_last_message_can_be_continued() -> None:
    loaded = templates("Qwen-Qwen2.5-7B-Instruct")
    messages = [*QUESTION, {"role": "assistant", "content": "The sky is"}]
    applied = loaded.apply(messages, continue_final_message=True)
    assert applied.prompt.endswith("The sky is")
    parser = Parser(applied)
    parser.feed(" blue.", is_final=True)
    assert parser.answer.content == " blue."


def test_other_ids_of_calls_suit_templates_that_want_nine_characters() -> None:
    long_id = "toolu_01A09q90qw90lq917835lq9"
    call = {"id": long_id, "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": long_id, "content": "Sun."},
    ]
    prompt = templates("mistralai-Mistral-Nemo-Instruct-2407").apply(messages, tools=TOOLS).prompt
    ids = re.findall(r'"(?:call_)?id": ?"([^"]*)"', prompt)
    assert len(ids) == 2 and ids[0] == ids[1] and len(ids[0]) == 9


@pytest.mark.parametrize("name", sorted(WITHOUT_CALLS))
def test_any_model_can_call_tools_in_the_generic_form(name: str) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "search", "arguments": '{"query": "a", "limit": 1}'}}
    earlier = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "Found."},
    ]
    applied = templates(name).apply([*MESSAGES, *earlier, {"role": "user", "content": "And now?"}], tools=TOOLS)
    assert (
        "get_weather" in applied.prompt
        and '{"name": "search", "arguments": {"query": "a", "limit": 1}}' in applied.prompt
    )
    assert "<tool_response>\nFound.\n</tool_response>" in applied.prompt
    thought = f"Hm.{applied.thinking.end}\n" if applied.thinking and applied.thinking.is_open else ""
    parser = Parser(applied)
    parser.feed(
        f'{thought}Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "Paris"}}}}\n</tool_call>',
        is_final=True,
    )
    assert [(call.name, json.loads(call.arguments)) for call in parser.answer.tool_calls] == CALLS[:1]
    assert parser.answer.content.strip() == "Let me see."
    assert parser.answer.reasoning.strip() == ("Hm." if thought else "")


@pytest.mark.parametrize("name", sorted(WITHOUT_CALLS))
def test_earlier_calls_stay_in_the_prompt_when_no_more_may_follow(name: str) -> None:
    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "search", "arguments": '{"query": "fjord", "limit": 1}'},
    }
    earlier = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "Found."},
    ]
    loaded = templates(name)
    without = loaded.apply([*QUESTION, *earlier]).prompt
    assert "search" in without and "fjord" in without and "Found." in without
    assert loaded.apply([*QUESTION, *earlier], tools=TOOLS, tool_choice="none").prompt.count("Found.") == 1
    form = loaded.apply([*QUESTION, *earlier], json_schema=SCHEMA)
    assert "fjord" in form.prompt and form.constraint is not None


def test_arguments_that_the_library_cannot_read_do_not_fail_the_request() -> None:
    parameters = {"type": "object", "properties": {"any": True, "city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    for name in ("Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder", "GLM-4.6"):
        applied = templates(name).apply(QUESTION, tools=[tool], tool_choice="required")
        assert '"f"' in applied.prompt or "f" in applied.prompt
        assert applied.constraint is not None


def test_a_schema_that_must_be_kept_is_refused_where_it_cannot_be() -> None:
    loaded = templates("Qwen-Qwen2.5-7B-Instruct")
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    assert loaded.apply(QUESTION, json_schema=schema).constraint is not None
    with pytest.raises(ChatError) as caught:
        loaded.apply(QUESTION, json_schema=schema, strict=True)
    assert code_of(caught) is ChatCode.SCHEMA_UNSUPPORTED and "uniqueItems" in str(caught.value)
    tool = {
        "type": "function",
        "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": schema}}},
    }
    with pytest.raises(ChatError) as caught:
        loaded.apply(QUESTION, tools=[tool])
    assert code_of(caught) is ChatCode.SCHEMA_UNSUPPORTED


def test_a_grammar_goes_to_the_daemon_as_it_is_but_not_beside_tools() -> None:
    loaded = templates("Qwen-Qwen2.5-7B-Instruct")
    assert loaded.apply(QUESTION, grammar='root ::= "yes"').constraint == {"gbnf": 'root ::= "yes"'}
    with pytest.raises(ChatError):
        loaded.apply(QUESTION, grammar='root ::= "yes"', tools=TOOLS)
    with pytest.raises(ChatError):
        loaded.apply(QUESTION, grammar='root ::= "yes"', json_schema=SCHEMA)


def test_threads_share_templates_and_get_the_same() -> None:
    expected = {
        name: templates(name).apply(MESSAGES, **REQUESTS["parallel"])
        for name in ("Qwen3.5-4B", "openai-gpt-oss-120b", "Kimi-K2-Instruct")
    }
    wrong: list[str] = []

    def work() -> None:
        for _ in range(15):
            wrong.extend(
                name
                for name, applied in expected.items()
                if templates(name).apply(MESSAGES, **REQUESTS["parallel"]) != applied
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def resident_kb() -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))  # type: ignore[union-attr]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_stays_the_same_over_many_requests() -> None:
    loaded = templates("Qwen-Qwen2.5-7B-Instruct")
    source = (FOLDER / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text(encoding="utf-8")

    def work(n: int) -> None:
        for i in range(n):
            applied = loaded.apply(MESSAGES, **REQUESTS["parallel"])
            parser = Parser(applied)
            parser.feed('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>')
            parser.feed("", is_final=True)
            if i % 10 == 0:
                Templates(source)

    work(50)
    before = resident_kb()
    work(300)
    assert resident_kb() - before < 4096


@pytest.mark.parametrize("place", ["schema", "tool"])
def test_work_grows_with_the_size_of_a_schema_and_not_with_its_cube(place: str) -> None:
    """One client's schema must not occupy a thread for seconds and so delay the first tokens of other clients."""

    def cpu_s(n: int) -> float:
        schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        asked: dict[str, Any] = {"json_schema": schema} if place == "schema" else {"tools": [tool]}
        before = time.thread_time()
        templates("Qwen-Qwen3-0.6B").apply(MESSAGES, **asked)
        return time.thread_time() - before

    cpu_s(10)
    assert cpu_s(800) < 16 * min(cpu_s(200 + i) for i in range(3))  # the cube would take 64 times as long
