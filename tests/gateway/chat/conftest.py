"""The templates in llama.cpp's source, and the text that each expects from a model."""

from __future__ import annotations

import ctypes
import functools
import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from native.chat_build import chat_source
from native.pin import load_pin
from native.progress import Progress
from uma_gateway.chat import check
from uma_gateway.chat import templates as templates_module
from uma_gateway.chat.library import call
from uma_gateway.chat.templates import Applied, Templates

FOLDER = chat_source(load_pin(), Progress(io.StringIO())) / "models" / "templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Searches.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "limit": {"type": "integer"},
                    "filters": {"type": "object", "properties": {"tag": {"type": "string"}}},
                },
                "required": ["query", "limit"],
            },
        },
    },
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age"],
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "What is the weather in Paris?"},
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": "Paris"}),
    ("search", {"query": "hotels", "limit": 3}),
]
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "search"}}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS},
    "parallel": {"tools": TOOLS, "parallel_tool_calls": True},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "required-parallel": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": True},
    "named": {"tools": TOOLS, "tool_choice": NAMED},
    "none": {"tools": TOOLS, "tool_choice": "none"},
    "json": {"json_schema": SCHEMA},
    "json-and-tools": {"json_schema": SCHEMA, "tools": TOOLS},
    "no-thinking": {"tools": TOOLS, "enable_thinking": False},
}


# these describe no tools, or llama.cpp recognizes no form of calls in them: the generic form is used
WITHOUT_CALLS = {
    "HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1", "fireworks-ai-llama-3-firefunction-v2", "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
}  # fmt: skip


ENDS_OF_TEXT = {"bos": "<s>", "eos": "</s>"}
KEPT_POINTERS: set[int | None] = set()  # of templates that are never freed, so no others get the same ones


def source(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@functools.cache
def templates(name: str) -> Templates:
    """A bundled template. Those of Mistral and others need BOS and EOS as their models define them.

    test_check.py tries them all: a process for each would take most of the time of many files.
    """
    with mock.patch.object(templates_module, "check_template", lambda _: check.DEPTHS[0]):
        made = Templates(source(name), **ENDS_OF_TEXT)
    KEPT_POINTERS.update(handle.pointer.value for handle in (made._handle, made._parse_handle))
    return made


@functools.cache
def _applied(pointer: int, request: bytes) -> Any:
    return call("uma_chat_apply", ctypes.c_void_p(pointer), request)


@pytest.fixture
def each_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library analyses a template again for each request, for 10 ms and more. Tests of what is made of the result
    get that of an equal request before. test_templates.py sends equal requests again and again.
    """

    def once(function: str, *arguments: Any) -> Any:
        is_apply = function == "uma_chat_apply" and arguments[0].value in KEPT_POINTERS
        return _applied(arguments[0].value, arguments[1]) if is_apply else call(function, *arguments)

    monkeypatch.setattr(templates_module, "call", once)


@functools.cache
def apply(name: str, kind: str) -> Applied:
    return templates(name).apply(MESSAGES, **REQUESTS[kind])


# texts that end a message: the daemon stops there, so no answer contains them
ENDS = (
    "<|im_end|>", "<|eot_id|>", "</s>", "<｜end▁of▁sentence｜>", "<|role_end|>", "<|end_of_text|>", "<end_of_sentence>",
    "[e~[", "<|call|>",
    "<|eot|>", "<sep>", "<turn|>", "<|tool_response>", "<seed:eos>", "<|eom_id|>", "</assistant>",
    "<｜hy_eos:opensource｜>", "<|end_of_msg|>",
    "<|end|>", "<|END_OF_TURN_TOKEN|>", "<SPECIAL_12>", "<|eom|>", "<|calls|>", "<|message_sep|>\n\n",
)  # fmt: skip
# these templates' texts of a message are not answers: they leave calls out, or change earlier messages
UNWRITTEN = ("CohereForAI-c4ai-command-r-plus-tool_use", "LFM2-8B-A1B", "LFM2.5-Instruct")


def written(name: str, calls: list[tuple[str, dict[str, Any]]] | None = None) -> str:
    """Return the text that the template itself writes for a message with calls. The model was trained to answer so."""
    return _written(name, json.dumps(calls or CALLS[:1]))


@functools.cache  # the template takes 20 to 80 ms, and many tests ask for the same text
def _written(name: str, calls: str) -> str:
    loaded = templates(name)
    made = [  # Solar's parser reads the first id as a part of the form
        {"id": f"call0000{i + 1}", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        for i, (tool, arguments) in enumerate(json.loads(calls))
    ]
    message = {"role": "assistant", "content": "", "tool_calls": made}
    base = loaded.render({"messages": MESSAGES, "tools": TOOLS})
    whole = loaded.render({"messages": [*MESSAGES, message], "tools": TOOLS, "add_generation_prompt": False})["prompt"]
    if whole.startswith(base["prompt"]):
        return _without_end(whole[len(base["prompt"]) :])
    # the prompt opens the thought, and the template leaves thoughts out of earlier messages
    start = base["grammar_triggers"][0]["value"].strip()
    text = whole[whole.index(start, len(base["prompt"]) - 60) :]
    thinking = apply(name, "tools").thinking
    thought = f"Let me think.{thinking.end}" if thinking and thinking.is_open else ""
    return thought + _without_end(text)


def run_on_small_stack(work: Callable[[], None]) -> None:
    """Run `work` on a stack of 512 KB, which is macOS's size. Exceptions in `work` are raised here."""
    caught: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            caught.append(error)

    before = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    if caught:
        raise caught[0]


def _without_end(text: str) -> str:
    ends = [text.rindex(end) for end in ENDS if end in text[1:]]
    return text[: min(ends)] if ends else text


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
