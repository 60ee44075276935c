from __future__ import annotations

import json
import random
import threading
from typing import Any

import pytest

from tests.gateway.chat.conftest import (
    CALLS,
    MESSAGES,
    NAMES,
    REQUESTS,
    UNWRITTEN,
    WITHOUT_CALLS,
    apply,
    run_on_small_stack,
    templates,
    written,
)
from uma_gateway.chat.diff import Message
from uma_gateway.chat.parser import Parser
from uma_gateway.chat.templates import Applied

pytestmark = pytest.mark.usefixtures("each_request_once")

TEXTS = (
    "Hello < world <",
    "I like <tool",
    '```json\n{"a":1}\n```',
    "a {",
    "x [TOOL_",
    "<",
    "Hi",
    "{",
    "Il pleut à Paris ✓ 😀",
)
# written by hand from the documentation of the models' makers: family, answer, content, reasoning, calls
KNOWN: list[tuple[str, str, str, str, list[tuple[str, dict[str, Any]]]]] = [
    ("Qwen-Qwen3-0.6B", "<think>\nHm.\n</think>\n\nIt rains.", "It rains.", "Hm.", []),
    (
        "Qwen-Qwen2.5-7B-Instruct",
        'Let me look.\n<tool_call>\n{"name": "search", "arguments": {"query": "a", "limit": 2}}\n</tool_call>',
        "Let me look.\n", "", [("search", {"query": "a", "limit": 2})],
    ),
    (
        "Qwen3-Coder",
        "<tool_call>\n<function=search>\n<parameter=query>\nfoo\nbar\n</parameter>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>",
        "", "", [("search", {"query": "foo\nbar", "limit": 3})],
    ),
    (
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Done.",
        "Done.", "Think.", [],
    ),
    (
        "openai-gpt-oss-120b",
        '<|channel|>analysis<|message|>Think.<|end|><|start|>assistant'
        '<|channel|>commentary to=functions.get_weather <|constrain|>json'
        '<|message|>{"city":"Paris"}',
        "", "Think.", [("get_weather", {"city": "Paris"})],
    ),
    ("meta-llama-Llama-3.1-8B-Instruct", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "",
    [("get_weather", {"city": "Paris"})]),
    ("mistralai-Mistral-Nemo-Instruct-2407",
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "123456789"}]', "", "",
     [("get_weather", {"city": "Paris"})]),
    ("Mistral-Small-3.2-24B-Instruct-2506", '[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Paris"}', "", "",
     [("get_weather", {"city": "Paris"})]),
    ("mistralai-Ministral-3-14B-Reasoning-2512", '[THINK]Hm.[/THINK]Yes.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    "Yes.", "Hm.",
     [("get_weather", {"city": "Paris"})]),
    (
        "Kimi-K2-Thinking",
        '<think>Hm.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0'
        '<|tool_call_argument_begin|>{"city": "Paris"}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "", "Hm.", [("get_weather", {"city": "Paris"})],
    ),
    ("deepseek-ai-DeepSeek-V3.2", "Hm.</think>It rains.", "It rains.", "Hm.", []),
    ("google-gemma-4-31B-it", '<|tool_call>call:search{query:<|"|>a "b"<|"|>,limit:3}<tool_call|>', "", "",
    [("search", {"query": 'a "b"', "limit": 3})]),
    ("LFM2-8B-A1B", '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>', "", "",
    [("get_weather", {"city": "Paris"})]),
    ("meetkai-functionary-medium-v3.2", "all\nLet me see.", "Let me see.", "", []),
    ("meetkai-functionary-medium-v3.2", 'get_weather\n{"city": "Paris"}', "", "", [("get_weather", {"city": "Paris"})]),
    ("GLM-4.6", "\n<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
     "<arg_value>Paris</arg_value>\n</tool_call>\n", "", "Hm.",
     [("get_weather", {"city": "Paris"})]),
    (
        "MiniMax-M2",
        'Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>',
        "", "Hm.", [("get_weather", {"city": "Paris"})],
    ),
    ("LFM2.5-8B-A1B", "[CALL]", "[CALL]", "", []),
]  # fmt: skip


def read(applied: Applied, text: str, step: int = 0, new_id: Any = None) -> Parser:
    """Feed the text in pieces of this many bytes; 0: in one piece."""
    made = Parser(applied, **({"new_id": new_id} if new_id else {}))
    data, kept = text.encode(), b""
    for i in range(0, len(data), step) if step else ():
        kept += data[i : i + step]
        piece = kept.decode(errors="ignore")  # the daemon never splits a character
        kept = kept[len(piece.encode()) :]
        made.feed(piece)
    made.feed(text if not step else "", is_final=True)
    return made


def calls_of(answer: Message) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]


def without_ids(answer: Message) -> tuple[Any, ...]:
    """Leave out ids. An id that follows the arguments comes too late for a stream, which has already sent one."""
    return answer.content.strip(), answer.reasoning.strip(), calls_of(answer)


@pytest.mark.parametrize(("name", "text", "content", "reasoning", "calls"), KNOWN)
@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 5, 50])
def test_known_answers(
    name: str, text: str, content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]], step: int
) -> None:
    answer = read(apply(name, "parallel"), text, step).answer
    assert (answer.content.strip(), answer.reasoning.strip()) == (content.strip(), reasoning)
    assert calls_of(answer) == calls


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*UNWRITTEN, *WITHOUT_CALLS)])
@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 5])
def test_what_a_template_writes_is_read_back(name: str, step: int) -> None:
    parser = read(apply(name, "tools"), written(name), step)
    assert calls_of(parser.answer) == CALLS[:1]
    assert parser.answer.tool_calls[0].is_complete and parser.answer.tool_calls[0].id


def test_the_pieces_add_up_to_the_whole(name: str) -> None:
    """For every template: text and calls, in steps of 1 to 5 bytes."""
    applied = apply(name, "parallel")
    thought = f"Hm.{applied.thinking.end}" if applied.thinking and applied.thinking.is_open else ""
    texts = [thought + "It is sunny < there."]
    if name not in (*UNWRITTEN, *WITHOUT_CALLS):
        texts += [written(name), written(name) + "\n", written(name) + "Garbage."]
    for text in texts:
        whole = without_ids(read(applied, text).answer)
        for step in (1, 2, 3, 4, 5):
            assert without_ids(read(applied, text, step).answer) == whole


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("MiniMax-M1", '{"name": "search"'),
        ("MiniMax-M2", '<invoke name="search">'),
        ("meetkai-functionary-medium-v3.2", ">>>search"),
        ("upstage-Solar-Open-100B", "call00002"),
    ],
)
@pytest.mark.parametrize("step", [0, 1, 5])
def test_a_second_call_that_a_parser_does_not_take_is_text(name: str, rest: str, step: int) -> None:
    """For these families, llama.cpp's parsers know only one call."""
    answer = read(apply(name, "parallel"), written(name, CALLS), step).answer
    assert calls_of(answer) == CALLS[:1]
    assert answer.content.strip().startswith(rest)


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_is_ever_lost(name: str, text: str) -> None:
    """This holds also if the text ends with half a delimiter, or does not have the template's form at all."""
    applied = apply(name, "tools")
    thought = f"Hm.{applied.thinking.end}" if applied.thinking and applied.thinking.is_open else ""
    for step in (0, 1, 3):
        answer = read(applied, thought + text, step).answer
        assert answer.content.strip() == text.strip()
        assert answer.tool_calls == []
        assert not thought or "Hm." in answer.reasoning


@pytest.mark.parametrize("step", [0, 1, 7])
def test_a_call_of_an_unknown_tool_comes_back_as_text(step: int) -> None:
    text = '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>'
    assert read(apply("Qwen-Qwen2.5-7B-Instruct", "tools"), text, step).answer == Message(content=text)


@pytest.mark.parametrize("step", [0, 1, 7])
def test_a_call_without_json_comes_back_as_text(step: int) -> None:
    text = "Look: <tool_call>\nget_weather(Paris)\n</tool_call>"
    answer = read(apply("Qwen-Qwen2.5-7B-Instruct", "tools"), text, step).answer
    assert answer.content == text and answer.tool_calls == []


def test_cut_arguments_are_told() -> None:
    """The library counts cut arguments as a success; the answer's finish reason shows that they are cut."""
    applied = apply("Qwen-Qwen2.5-7B-Instruct", "tools")
    cut = read(applied, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par', 1).answer
    assert cut.tool_calls[0].name == "get_weather" and not cut.tool_calls[0].is_complete
    assert cut.tool_calls[0].arguments.startswith('{"city": "Par')


def test_a_call_whose_name_was_cut_is_not_lost() -> None:
    answer = read(apply("Qwen-Qwen2.5-7B-Instruct", "tools"), 'Well.\n<tool_call>\n{"name": "get_wea', 1).answer
    assert answer.content == 'Well.\n<tool_call>\n{"name": "get_wea'


def test_unclosed_thinking_is_reasoning() -> None:
    answer = read(apply("Qwen3.5-4B", "tools"), "I think and think </thi", 1).answer
    assert (answer.reasoning.strip(), answer.content) == ("I think and think </thi", "")


def test_reasoning_can_stay_in_the_text() -> None:
    applied = templates("Qwen-Qwen3-0.6B").apply(MESSAGES, reasoning_format="none")
    assert read(applied, "<think>\nHm.\n</think>\n\nYes.").answer == Message(content="<think>\nHm.\n</think>\n\nYes.")


@pytest.mark.parametrize("depth", [900, 4_000, 200_000])
@pytest.mark.parametrize("step", [0, 1000])
def test_deep_output_ends_nothing_and_is_not_lost(depth: int, step: int) -> None:
    for name, start in (
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>\n{"name": "get_weather", "arguments": {"city": '),
        ("google-gemma-4-31B-it", "<|tool_call>call:get_weather{city:"),
        ("LFM2-8B-A1B", "<|tool_call_start|>[get_weather(city="),
    ):
        text = start + "[" * depth
        answer = read(apply(name, "tools"), text, step).answer
        assert answer.tool_calls or answer.content == text


def test_deep_output_ends_no_thread_with_a_small_stack() -> None:
    answers: list[Message] = []

    def work() -> None:
        for depth in (10, 100, 900):
            arguments = '{"city": ' + "[" * depth + "]" * depth + "}"
            text = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
            answers.append(read(apply("Qwen-Qwen2.5-7B-Instruct", "tools"), text, 50).answer)

    apply("Qwen-Qwen2.5-7B-Instruct", "tools")
    run_on_small_stack(work)
    assert len(answers) == 3 and len(answers[0].tool_calls) == 1
    assert all(answer.content or answer.tool_calls for answer in answers)


def beginnings(applied: Applied) -> list[str]:
    """Return the texts after which content begins, and those after which reasoning begins."""
    thinking = applied.thinking
    if thinking is None:
        return [""]
    return [f"Hm.{thinking.end}", "Hm."] if thinking.is_open else ["", f"{thinking.start}Hm."]


@pytest.mark.parametrize("kind", ["plain", "parallel", "json-and-tools"])
def test_every_token_of_a_text_reaches_the_reader_at_once(name: str, kind: str) -> None:
    """For every template, in content and in reasoning, whatever the text's length. Only a `<` waits for the next
    token.
    """
    for beginning in beginnings(apply(name, kind)):
        made = Parser(apply(name, kind))
        made.feed(beginning)
        made.feed("First")  # the end of a tag may take the white space behind it
        for i in range(200):
            token = f" 2 < {i} [it's]\n{{so}}"
            assert "".join(diff.content + diff.reasoning for diff in made.feed(token)) == token
        n_parsed = made.n_parsed
        for _ in range(200):
            made.feed("word ")
        assert made.n_parsed == n_parsed  # no part of it was parsed again


@pytest.mark.parametrize(
    ("name", "start", "token"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "', 'a \\"b\\"\\n'),
        ("Qwen3-Coder", "<tool_call>\n<function=search>\n<parameter=query>\n", 'a "b" < c\n'),
        ("google-gemma-4-31B-it", '<|tool_call>call:search{query:<|"|>', 'a "b" < c\n'),
        ("mistralai-Mistral-Nemo-Instruct-2407",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "', "a [b] \\u00e9"),
        ("openai-gpt-oss-120b", "<|channel|>commentary to=functions.get_weather "
                                "<|constrain|>json<|message|>{\"city\":\"", "a <b> "),
    ],
)  # fmt: skip
def test_every_token_of_a_long_argument_reaches_the_reader_at_once(name: str, start: str, token: str) -> None:
    made = Parser(apply(name, "tools"))
    made.feed(start)
    made.feed("First")
    n_parsed = made.n_parsed
    for _ in range(200):
        assert "".join(diff.tool_arguments for diff in made.feed(token))
    assert made.n_parsed == n_parsed
    (argument,) = json.loads(made.answer.tool_calls[0].arguments + '"}').values()
    text = token if "<" in token and '"' in token else json.loads(f'"{token}"')  # either plain or already in JSON
    assert argument.strip() == ("First" + text * 200).strip()


@pytest.mark.parametrize("seed", range(2))
def test_random_pieces_tell_at_each_point_what_a_parse_of_the_whole_tells(name: str, seed: int) -> None:
    """The exception is white space at the end of arguments, which waits for the text after it."""
    applied, dice = apply(name, "parallel"), random.Random(f"{name}{seed}")
    parts = ["It is sunny < there.", ' 😀 is\n\n"that" so?', "```c\na <b> [1] {2}\n```\n", " <", "  \n"]
    beginning = dice.choice(beginnings(applied))
    texts = [beginning + "".join(dice.choices(parts, k=4))]
    if name not in (*UNWRITTEN, *WITHOUT_CALLS):
        long = 'a "quoted" \\ text\n< with [brackets] {and} é 😀 ' * 3
        n_calls = dice.choice([1, 2]) if templates(name).capabilities["supports_parallel_tool_calls"] else 1
        call = written(name, [("search", {"query": long, "limit": 3}), ("get_weather", {"city": "Paris"})][:n_calls])
        texts += [call, call + dice.choice(parts), call[: dice.randrange(len(call))]]
    for text in texts:
        made, at = Parser(applied, new_id=str), 0
        while at < len(text):
            size = dice.choice([1, 1, 2, 3, 5, 8, 30])
            made.feed(text[at : at + size])
            at += size
            if dice.random() < 0.7:
                continue
            once = Parser(applied, new_id=str)
            once.feed(text[:at])
            assert shown(made.answer) == shown(once.answer)
        made.feed("", is_final=True)
        whole = read(applied, text).answer
        assert made.answer.content.strip() == whole.content.strip() and shown(made.answer)[1:] == shown(whole)[1:]


def shown(answer: Message) -> tuple[Any, ...]:
    return answer.content, answer.reasoning, [(call.name, call.arguments.rstrip()) for call in answer.tool_calls]


HARD = {  # texts for which the parser must run at every token
    "numbers": '<tool_call>\n{"name": "search", "arguments": {"query": "a", "limit": 3, "filters": [' + "12, " * 3_500,
    "names": '<tool_call>\n{"name": "search", "arguments": {"filters": {' + '"name": {"a": 1}, ' * 800,
    "calls": '<tool_call>\n{"name": "search", "arguments": {"query": "a", "limit": 3}}\n</tool_call>\n' * 190,
    "tags": "text <tool_call text <tool_call " * 1_000,
    "no form": "<tool_call>\nno call " * 1_500,
    "text": "word " * 5_000,
}  # fmt: skip


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_the_cost_stays_in_proportion_to_the_answer(text: str) -> None:
    """Counts the bytes that the library parses. Parsing at every token would cost half the answer's length times its
    number of tokens: from 11 KB on, more than the bound.
    """
    made = Parser(apply("Qwen-Qwen2.5-7B-Instruct", "parallel"))
    for at in range(0, len(text), 4):
        made.feed(text[at : at + 4])
        assert made.n_parsed <= (8 << 20) + 516 * (at + 4)
    made.feed("", is_final=True)
    assert made.n_parsed <= (8 << 20) + 520 * len(text)


def test_what_follows_the_end_of_the_form_streams_as_content() -> None:
    """After an invalid call the rest can only be text, so the reader need not wait for the end of the answer."""
    made = Parser(apply("Qwen-Qwen2.5-7B-Instruct", "tools"))
    made.feed('<tool_call>\n{"name": "fly", ')
    for _ in range(3):
        assert "".join(diff.content for diff in made.feed("word ")) == "word "
    made.feed("", is_final=True)
    assert made.answer == Message(content='<tool_call>\n{"name": "fly", word word word ')


def test_streamed_calls_tell_name_and_id_once_and_arguments_in_pieces() -> None:
    made = Parser(apply("Qwen-Qwen2.5-7B-Instruct", "tools"), new_id=lambda: "call_1")
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    diffs = [diff for character in text for diff in made.feed(character)] + made.feed("", is_final=True)
    assert [(diff.tool, diff.tool_id, diff.tool_name) for diff in diffs if diff.tool_name or diff.tool_id] == [
        (0, "call_1", "get_weather")
    ]
    assert len(diffs) > 5 and "".join(diff.tool_arguments for diff in diffs) == '{"city": "Paris"}'


def test_ids_that_the_model_gives_are_kept_and_others_are_new() -> None:
    given = read(
        apply("Mistral-Small-3.2-24B-Instruct-2506", "tools"),
        '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}',
    )
    assert given.answer.tool_calls[0].id == "abcdefghi"
    text = written("Qwen-Qwen2.5-7B-Instruct")
    ids = {read(apply("Qwen-Qwen2.5-7B-Instruct", "tools"), text).answer.tool_calls[0].id for _ in range(20)}
    assert len(ids) == 20 and "" not in ids


def test_threads_read_answers_of_one_template() -> None:
    applied = apply("openai-gpt-oss-120b", "parallel")
    text = next(text for name, text, *_ in KNOWN if name == "openai-gpt-oss-120b" and "get_weather" in text)
    answers: list[list[tuple[str, dict[str, Any]]]] = []
    threads = [
        threading.Thread(target=lambda: answers.extend(calls_of(read(applied, text, 3).answer) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[("get_weather", {"city": "Paris"})]] * 80


def test_a_request_without_tools_reads_no_calls() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert read(templates("Qwen-Qwen2.5-7B-Instruct").apply(MESSAGES, **REQUESTS["plain"]), text, 3).answer == Message(
        content=text
    )
