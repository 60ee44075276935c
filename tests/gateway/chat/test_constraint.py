"""The constraints are checked with llguidance, which enforces them in the daemon."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tests.gateway.chat.conftest import (
    CALLS,
    MESSAGES,
    NAMES,
    REQUESTS,
    SCHEMA,
    TOOLS,
    UNWRITTEN,
    WITHOUT_CALLS,
    apply,
    templates,
    written,
)
from tests.gateway.chat.test_parser import KNOWN
from uma_core.constraint.grammar import LIMITS
from uma_core.constraint.pattern import Pattern
from uma_gateway.chat import constraint
from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.generic import END, START
from uma_gateway.chat.parser import Parser
from uma_gateway.chat.templates import Applied

pytestmark = pytest.mark.usefixtures("each_request_once")

UNMARKED = [
    name for name in NAMES if name.startswith("meta-llama-Llama-3.")
]  # a call begins like any JSON; only its name shows that it is a call
WRITES = [name for name in NAMES if name not in (*UNWRITTEN, *WITHOUT_CALLS)]
# for these, llama.cpp's parsers do not read a second call in the form that the template writes
ONE_CALL = {"MiniMax-M1", "MiniMax-M2", "meetkai-functionary-medium-v3.2", "upstage-Solar-Open-100B", *UNMARKED}
# these parsers repeat whole messages, and each message may be a call
REPEATS_MESSAGES = {
    "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B",
    "inclusionai-ling-3.0-flash",
    "muse-glimmer",
    "openai-gpt-oss-120b",
}
# in these parsers a call ends the thought
ENDS_THINKING = {
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen3.5-4B",
    "StepFun3.5-Flash",
    "Kimi-K3",
    "inclusionai-ling-3.0-flash",
}
FENCED = (
    "gemma-4",
    "Ministral",
    "Devstral",
    "MiniMax-M3",
    "DeepSeek-V3.2",
    "DeepSeek-V4",
)  # JSON is written between fences
JSON_ANSWER = '{"name": "Ada", "age": 36, "tags": ["x", "y"]}'


@functools.cache
def bytes_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def new_matcher(lark: str, limits: LLParserLimits | None) -> LLMatcher:
    matcher = LLMatcher(bytes_tokenizer(), lark, log_level=0, limits=limits)
    assert not matcher.get_error(), matcher.get_error()
    return matcher


@functools.lru_cache(maxsize=64)  # a grammar takes 5 ms, and a test follows several texts under it
def matcher_of(lark: str) -> LLMatcher:
    return new_matcher(lark, None)


class Follower:
    """llguidance with one constraint; each byte is a token. `limits`: None for llguidance's own."""

    def __init__(self, wire: dict[str, Any] | None, limits: LLParserLimits | None = None) -> None:
        assert wire is not None and set(wire) <= {"lark", "triggers"}, wire
        self.matcher = matcher_of(wire["lark"]).deep_copy() if limits is None else new_matcher(wire["lark"], limits)
        self.triggers = wire.get("triggers", [])

    def take(self, text: str) -> str:
        """Follow the text. If there are triggers, begin at the first one. Return the part that is refused."""
        if self.triggers:
            places = begins(self.triggers, text)
            assert places, f"no trigger in {text!r}"
            text = text[min(places) :]
        data = text.encode()
        for i, byte in enumerate(data):
            if not self.matcher.try_consume_tokens([byte]):
                return data[i:].decode(errors="replace")
        return ""

    def can_end(self) -> bool:
        return bool(self.matcher.is_accepting())


def begins(triggers: list[dict[str, str]], text: str) -> list[int]:
    """Return the positions at which the grammar begins: one for each trigger in the text."""
    places = []
    for trigger in triggers:
        if trigger["type"] == "pattern":
            match = Pattern(trigger["value"]).search().push(text.encode())
            places += [match.begin] if match else []
        elif trigger["value"] in text:
            places.append(text.find(trigger["value"]))
    return places


def thought(applied: Applied, text: str = "Let me think.") -> str:
    return f"{text}{applied.thinking.end}" if applied.thinking and applied.thinking.is_open else ""


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_bundled_template_serves_every_kind_of_request(name: str, kind: str) -> None:
    """Each constraint is a grammar that llguidance takes."""
    applied = apply(name, kind)
    assert "Paris" in applied.prompt
    if kind in ("tools", "required", "named", "json-and-tools"):
        assert "get_weather" in applied.prompt or (kind == "named" and name in WITHOUT_CALLS)
    wire = applied.constraint
    assert (wire is None) is (kind in ("plain", "none"))
    if wire is None:
        return
    assert set(wire) <= {"lark", "triggers"}
    assert LLMatcher.validate_grammar(json.dumps({"grammars": [{"lark_grammar": wire["lark"]}]}), None) == ""
    kind_of_trigger = "pattern" if name in UNMARKED else "word"
    assert all(trigger["type"] == kind_of_trigger and trigger["value"] for trigger in wire.get("triggers", []))


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _, _, _ in KNOWN if name != "LFM2.5-8B-A1B"])
def test_known_answers_are_allowed(name: str, text: str) -> None:
    applied = apply(name, "parallel")
    if applied.constraint and "triggers" in applied.constraint and not begins(applied.constraint["triggers"], text):
        return
    follower = Follower(applied.constraint)
    assert follower.take(text.rstrip()) == "" and follower.can_end()


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("kind", ["tools", "required", "no-thinking"])
def test_what_a_template_writes_is_allowed(name: str, kind: str) -> None:
    applied = apply(name, kind)
    text = written(name)
    if kind == "no-thinking" and applied.thinking and not applied.thinking.is_open:
        text = text.removeprefix(thought(apply(name, "tools")))
    follower = Follower(applied.constraint)
    assert follower.take(text.rstrip()) == ""
    if name != "upstage-Solar-Open-100B":  # its calls end with the token that ends the answer
        assert follower.can_end()


@pytest.mark.parametrize("name", [name for name in WRITES if name not in ONE_CALL])
def test_parallel_calls_are_allowed(name: str) -> None:
    follower = Follower(apply(name, "required-parallel").constraint)
    assert follower.take(written(name, CALLS).rstrip()) == ""
    assert follower.can_end()


@pytest.mark.parametrize("name", [name for name in WRITES if name not in (*ONE_CALL, *REPEATS_MESSAGES)])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_one_call_is_all_where_parallel_calls_are_refused(name: str, choice: str) -> None:
    applied = templates(name).apply(MESSAGES, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    one, two = Follower(applied.constraint), Follower(applied.constraint)
    assert one.take(written(name).rstrip()) == "" and one.can_end()
    assert two.take(written(name, CALLS).rstrip()) != ""


@pytest.mark.parametrize("name", WRITES)
def test_a_required_call_is_required_and_of_a_known_tool(name: str) -> None:
    applied = apply(name, "required")
    plain = Follower(applied.constraint)
    plain.take(thought(applied) + "It is sunny.")
    assert not plain.can_end()
    unknown = Follower(applied.constraint)
    assert unknown.take(written(name).replace("get_weather", "get_fortune")) != ""


@pytest.mark.parametrize("name", WRITES)
def test_a_named_call_is_of_that_tool(name: str) -> None:
    follower = Follower(apply(name, "named").constraint)
    assert follower.take(written(name)) != ""
    text = written(name, [("search", {"query": "a", "limit": 1})])
    if name != "upstage-Solar-Open-100B" or "call00001" in text:
        assert Follower(apply(name, "named").constraint).take(text.rstrip()) == ""


@pytest.mark.parametrize("name", WRITES)
def test_arguments_keep_their_types(name: str) -> None:
    """Some parsers know only the names of arguments, or take any text. Where arguments are JSON, no parser lets a
    number stand for an object.
    """
    text = written(name, [("search", {"query": "a", "limit": 1})])
    assert "1" in text
    broken = Follower(apply(name, "required").constraint).take(text.replace('"limit": 1', '"limit": {}'))
    assert bool(broken) is ('"limit": 1' in text)


@pytest.mark.parametrize("name", UNMARKED)
def test_an_unmarked_call_is_held_to_its_schema_and_other_json_is_free(name: str) -> None:
    wire = apply(name, "tools").constraint
    assert wire is not None
    for free in (
        JSON_ANSWER,
        '{"name": "get_weather"}',
        '{"name": "nobody", "parameters": {}}',
        "Sure: " + written(name),
    ):
        assert begins(wire["triggers"], free) == [], free
    for head in ('{"name": "search", "parameters": ', '\n{ "type":"function","name" : "search",\n"parameters":\n'):
        right, wrong = Follower(wire), Follower(wire)
        assert right.take(head + '{"query": "x", "limit": 1}}') == "" and right.can_end()
        assert wrong.take(head + '{"query": "x", "limit": "one"}}') != ""


def test_many_tools_fit_into_patterns_that_the_daemon_takes() -> None:
    tools = [{"type": "function", "function": {"name": f"a_tool_of_some_length.{i}"}} for i in range(100)]
    wire = templates(UNMARKED[0]).apply(MESSAGES, tools=tools).constraint
    assert wire is not None and len(wire["triggers"]) > 1
    for i in (0, 57, 99):
        assert len(begins(wire["triggers"], f'{{"name": "a_tool_of_some_length.{i}", "parameters": {{}}}}')) == 1


@pytest.mark.parametrize("name", NAMES)
def test_free_text_stays_free(name: str) -> None:
    """This holds also if the whole answer is constrained, and if text or thoughts only mention calls."""
    applied = apply(name, "tools")
    assert applied.constraint is not None
    if "triggers" in applied.constraint:
        return
    starts = {
        "meetkai-functionary-medium-v3.2": "all\n",
        "openai-gpt-oss-120b": "<|channel|>final<|message|>",
        "muse-glimmer": "<|message|>",
    }
    follower = Follower(applied.constraint)
    assert (
        follower.take(thought(applied) + starts.get(name, "") + "It is sunny, isn't it? < 30 °C ✓\n\n```json\n{}\n```")
        == ""
    )
    assert follower.can_end()


@pytest.mark.parametrize("name", [name for name in WRITES if name not in ENDS_THINKING])
def test_a_call_within_the_thinking_is_a_thought(name: str) -> None:
    applied = apply(name, "tools")
    if not applied.thinking or not applied.thinking.is_open or "triggers" in (applied.constraint or {}):
        return
    call = written(name).removeprefix(thought(applied))
    follower = Follower(applied.constraint)
    assert follower.take(f"I could write {call[:12]} or not.{applied.thinking.end}It is sunny.") == ""
    assert follower.can_end()


def test_thinking_may_be_long() -> None:
    """llama.cpp's own grammar for thoughts recurses at every character, and llguidance gives up after 2,000."""
    for kind in ("required", "json"):
        follower = Follower(apply("Qwen3.5-4B", kind).constraint)
        assert follower.take("I think, and go on. " * 2_000) == ""
        assert follower.matcher.get_error() == ""


@pytest.mark.parametrize("name", ["Qwen3-Coder", "GLM-4.6", "MiniMax-M2", "Qwen3.5-4B"])
def test_arguments_that_are_text_may_be_long(name: str) -> None:
    follower = Follower(apply(name, "required").constraint)
    text = written(name, [("get_weather", {"city": "PLACE"})])
    before, _, after = text.partition("PLACE")
    assert follower.take(before + "A line of code < that goes on > and on.\n" * 1_000 + after.rstrip()) == ""


def test_a_json_answer_is_enforced(name: str) -> None:
    applied = apply(name, "json")
    starts = {
        "meetkai-functionary-medium-v3.2": "all\n", "openai-gpt-oss-120b": "<|channel|>final<|message|>",
        "muse-glimmer": "<|message|>",
        "Cohere2MoE": "<|START_TEXT|>",
    }  # fmt: skip
    fenced = {name for name in NAMES if any(part in name for part in FENCED)}
    lead = thought(applied) + starts.get(name, "")
    if name in fenced:
        lead += "```json\n"
    ends = {"Cohere2MoE": "<|END_TEXT|>"}
    follower = Follower(applied.constraint)
    assert follower.take(lead + JSON_ANSWER + ("\n```" if name in fenced else "") + ends.get(name, "")) == ""
    assert follower.can_end()
    for wrong in ('{"name": 1', '{"age"', '{"name": "Ada", "age": -', '{"name": "Ada", "age": 3, "more"', "Sure"):
        assert Follower(applied.constraint).take(lead + wrong) != "", wrong


@pytest.mark.parametrize("name", [name for name in WRITES if name not in UNMARKED and "gemma-4" not in name])
def test_json_and_tools_allow_either_and_nothing_else(name: str) -> None:
    applied = apply(name, "json-and-tools")
    called = Follower(applied.constraint)
    assert called.take(written(name).rstrip()) == ""
    fences = ("```json\n", "\n```") if any(part in name for part in FENCED) else ("", "")
    if "Cohere" not in name and name not in ("meetkai-functionary-medium-v3.2", "openai-gpt-oss-120b", "muse-glimmer"):
        answered = Follower(applied.constraint)
        assert answered.take(thought(applied) + fences[0] + JSON_ANSWER + fences[1]) == ""
        assert answered.can_end()
    talked = Follower(applied.constraint)
    assert talked.take(thought(applied) + "Sure, it is sunny.") != "" or not talked.can_end()


@pytest.mark.parametrize(
    "name", ["Qwen-Qwen2.5-7B-Instruct", "microsoft-Phi-3.5-mini-instruct", "google-gemma-2-2b-it"]
)
def test_json_that_has_begun_goes_on_as_json_beside_tools(name: str) -> None:
    """Before, nothing held it to its schema."""
    messages = [*MESSAGES, {"role": "assistant", "content": '{"name": "A'}]
    fields: dict[str, Any] = {"continue_final_message": True, "json_schema": SCHEMA, "strict": True}
    alone = templates(name).apply(messages, **fields)
    beside = templates(name).apply(messages, tools=TOOLS, **fields)
    assert "get_weather" in beside.prompt and beside.prompt.endswith('{"name": "A')
    assert alone.constraint is not None and beside.constraint == alone.constraint
    parser = Parser(beside)
    parser.feed('da", "age": 36}', is_final=True)
    assert parser.answer.content == 'da", "age": 36}' and not parser.answer.tool_calls


@pytest.mark.parametrize("name", sorted(WITHOUT_CALLS))
def test_the_generic_form_is_enforced(name: str) -> None:
    applied = apply(name, "required")
    text = thought(applied) + f'\n{START}\n{{"name": "search", "arguments": {{"query": "a", "limit": 1}}}}\n{END}'
    follower = Follower(applied.constraint)
    assert follower.take(text) == "" and follower.can_end()
    assert Follower(applied.constraint).take(text.replace('"limit": 1', '"limit": "1"')) != ""
    assert not Follower(apply(name, "required").constraint).can_end()


def test_every_schema_of_a_parser_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name would allow any JSON."""
    unknown: list[str] = []
    original = constraint.Schemas.__call__

    def watched(self: constraint.Schemas, schema_name: str) -> dict[str, Any]:
        schema = original(self, schema_name)
        if "type" not in schema and "$ref" not in schema:
            unknown.append(schema_name)
        return schema

    monkeypatch.setattr(constraint.Schemas, "__call__", watched)
    nested = {
        "type": "object",
        "properties": {"inner": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    }
    listed = {"type": "array", "items": {"type": "integer"}}
    tool = {
        "type": "function",
        "function": {"name": "a-b_c.d", "parameters": {"type": "object", "properties": {"x y": nested, "z": listed}}},
    }
    for kept in ("_whole_lark", "_triggered_lark", "_json_lark", "_either_lark"):
        monkeypatch.setattr(constraint, kept, getattr(constraint, kept).__wrapped__)
    for request in ({"tools": [tool]}, {"tools": [tool], "tool_choice": "required"}, {"json_schema": SCHEMA}):
        with contextlib.suppress(ChatError):  # one template refuses objects as arguments
            templates(name).apply(MESSAGES, **request)
    assert unknown == []


def test_references_in_arguments_lead_somewhere() -> None:
    parameters = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}, "n": {"type": "integer"}},
        "required": ["place", "n"],
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Place"}, "x": {"type": "integer"}},
                "required": ["x"],
            }
        },
    }
    tools = [{"type": "function", "function": {"name": "go", "parameters": parameters}}]
    texts = {
        "Qwen3-Coder": "<tool_call>\n<function=go>\n<parameter=place>\n{}\n</parameter>\n"
        "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
        "Qwen-Qwen2.5-7B-Instruct": '<tool_call>\n{{"name": "go", "arguments": {{"place": {}, "n": 1}}}}\n</tool_call>',
    }
    for name, text in texts.items():
        wire = templates(name).apply(MESSAGES, tools=tools, tool_choice="required").constraint
        form = text.replace("{}", "{place}").replace("{{", "{").replace("}}", "}")
        assert Follower(wire).take(form.replace("{place}", '{"next": {"x": 2}, "x": 1}')) == ""
        assert Follower(wire).take(form.replace("{place}", '{"next": {"x": "2"}, "x": 1}')) != ""


def test_strict_tools_are_strict_and_others_are_not() -> None:
    schema = {"type": "object", "properties": {"when": {"type": "string", "format": "moonphase"}}, "required": ["when"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    applied = templates("Qwen-Qwen2.5-7B-Instruct").apply(MESSAGES, tools=[tool], tool_choice="required")
    assert applied.constraint is not None
    assert (
        Follower(applied.constraint).take('<tool_call>\n{"name": "f", "arguments": {"when": "soon"}}\n</tool_call>')
        == ""
    )


@pytest.mark.parametrize(
    "text",
    ['"quoted"', "back\\slash", "new\nline", "tab\t", "<tag>/", "é✓😀", "\u2028", "[x]{2,3}(a|b)*^$.+?", "%json {}"],
)
def test_odd_names_of_tools_are_literal(text: str) -> None:
    tool = {"type": "function", "function": {"name": text, "parameters": {"type": "object", "properties": {}}}}
    wire = templates("Qwen-Qwen2.5-7B-Instruct").apply(MESSAGES, tools=[tool], tool_choice="required").constraint
    call = f'<tool_call>\n{{"name": "{text}", "arguments": {{}}}}\n</tool_call>'
    assert Follower(wire).take(call) == ""
    assert Follower(wire).take(call.replace(text, "other")) != ""


def test_many_tools_make_one_grammar() -> None:
    tools = [
        {**tool, "function": {**tool["function"], "name": f"{tool['function']['name']}_{i}"}}
        for i in range(100)
        for tool in TOOLS
    ]
    for name in ("Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder", "Kimi-K2-Instruct"):
        applied = templates(name).apply(MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=True)
        follower = Follower(applied.constraint)
        assert follower.take(written(name).replace("get_weather", "get_weather_99").rstrip()) == ""


# what a model thinks before a call, and how its calls begin
THOUGHTS = {
    "ByteDance-Seed-OSS": ("<seed:think>Let me think.</seed:think>", "<seed:tool_call>"),
    "GLM-4.6": ("\n<think>Let me think.</think>\n", "<tool_call>"),
    "MiniMax-M3": ("<mm:think>Let me think.</mm:think>", "]<]minimax[>[<tool_call>"),
    "Qwen-Qwen3-0.6B": ("<think>\nLet me think.\n</think>\n\n", "<tool_call>"),
    "google-gemma-4-31B-it": ("<|channel>thought\nLet me think.<channel|>", "<|tool_call>"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("[THINK]Let me think.[/THINK]", "[TOOL_CALLS]"),
    "openai-gpt-oss-120b": (
        "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant"
        "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant",
        " to=",
    ),
}


@pytest.mark.parametrize("name", THOUGHTS)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_of_an_agents_many_tools_stay_within_the_daemons_bounds(name: str, choice: str) -> None:
    """Each call follows a thought. The grammar has the thought once for all tools, not once for each tool."""
    applied = templates(name).apply(MESSAGES, tools=agents_tools(), tool_choice=choice)
    thought, start = THOUGHTS[name]
    text = written(name)
    assert_stays_within_bounds(applied, thought + text[text.index(start) :].rstrip())


@pytest.mark.parametrize("name", WRITES)
def test_every_family_takes_an_agents_many_tools(name: str) -> None:
    """The grammar has the beginning that all calls share only once. Before that, with a call required, Qwen 3.5 refused
    24 tools, Mistral's answers ended early, and Kimi K3 was not constrained.
    """
    for choice in ("auto", "required"):
        applied = templates(name).apply(MESSAGES, tools=agents_tools(), tool_choice=choice)
        assert_stays_within_bounds(applied, written(name).rstrip())


@functools.cache
def agents_tools() -> list[dict[str, Any]]:
    others = [
        {**TOOLS[1], "function": {**TOOLS[1]["function"], "name": f"search_{word}_{i}"}}
        for i in range(19)
        for word in ("in", "near")
    ]
    return [*TOOLS, *others]


def assert_stays_within_bounds(applied: Applied, text: str) -> None:
    """Check the daemon's bounds at every byte of an answer."""
    follower = Follower(applied.constraint, LLParserLimits(**LIMITS))
    for byte in text[min(begins(follower.triggers, text), default=0) :].encode():
        follower.matcher.compute_bitmask()
        assert follower.matcher.consume_token(byte), follower.matcher.get_error()


def large_tools(n: int, **more: Any) -> list[dict[str, Any]]:
    """Return tools whose schemas have nothing in common, each of 0.5 KB."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "parameters": {
                    "type": "object",
                    "properties": {f"an_option_{j}_{i}": {"enum": [j]} for j in range(12)},
                },
                **more,
            },
        }
        for i in range(n)
    ]


def test_where_a_grammar_would_be_too_large_arguments_are_any_object() -> None:
    applied = templates("Qwen-Qwen2.5-7B-Instruct").apply(MESSAGES, tools=large_tools(400), tool_choice="required")
    call = '<tool_call>\n{"name": "tool_399", "arguments": {"other": 1}}\n</tool_call>'
    assert Follower(applied.constraint).take(call) == ""
    assert Follower(applied.constraint).take(call.replace("tool_399", "other")) != ""
    assert constraint.too_large(applied.constraint) == ""


def test_optional_calls_of_hundreds_of_tools_are_left_to_the_model_and_others_are_refused() -> None:
    """Before, 300 tools took 80 s with Llama 3.x and 3,000 took 90 s with Qwen, and then the grammar was refused."""
    model, tools = templates("Qwen-Qwen2.5-7B-Instruct"), large_tools(500)
    assert model.apply(MESSAGES, tools=tools).constraint is None
    with pytest.raises(ChatError, match="500 tools is too large"):
        model.apply(MESSAGES, tools=tools, tool_choice="required")
    with pytest.raises(ChatError, match="too large"):
        model.apply(MESSAGES, tools=large_tools(500, strict=True))


def test_thousands_of_tools_are_refused_at_once() -> None:
    """Before, the library took minutes for 5,000 tools, and its result stopped the gateway's other requests for 16
    s.
    """
    with pytest.raises(ChatError, match="tools: there are 1001, at most 1000") as caught:
        templates("Qwen-Qwen2.5-7B-Instruct").apply(MESSAGES, tools=large_tools(1001))
    assert caught.value.code is ChatCode.BAD_REQUEST
