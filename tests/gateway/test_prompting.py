"""From a conversation to the request for the daemon."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from tests.gateway.chat.conftest import FOLDER, SCHEMA, TOOLS, apply, templates
from uma_gateway import large, prompting
from uma_gateway.chat.templates import Templates, Thinking
from uma_gateway.parsing import whole
from uma_gateway.prompting import Chat, behind_thought
from uma_gateway.turns import read_messages

CHOICES = {"choices": ["left", "right"]}


@pytest.mark.parametrize("thinking", [None, Thinking("<think>", "</think>", is_open=False)])
def test_a_constraint_holds_for_the_whole_answer_where_no_thought_is_begun(thinking):
    assert behind_thought(CHOICES, thinking) == CHOICES


def test_a_constraint_holds_behind_a_thought_that_the_template_begins(tiny):
    """As in the daemon, the thought is free, and the text after it is constrained."""
    thinking = apply("Qwen3.5-4B", "tools").thinking
    assert thinking is not None and thinking.is_open
    events = tiny.generate(
        "Think.", constraint=behind_thought(CHOICES, thinking), max_tokens=60, temperature=0, stream=False,
        reasoning={"start": "", "end": "</think>", "budget_tokens": 5},
    )  # fmt: skip
    thought, _, answer = events[-1]["text"].partition("</think>")
    assert thought and answer in CHOICES["choices"] and events[-1]["reason"] == "stop"


def test_a_template_s_stop_texts_have_room_beside_those_of_a_request(tiny):
    stops = [*map(str, range(16)), *apply("poolside-Laguna-XS.2", "tools").stops]
    assert len(stops) > 16
    assert tiny.generate("Hello", stop=stops, max_tokens=1)[-1]["event"] == "eos"


class Served:
    """A model of which only the template is known."""

    def __init__(self, can_constrain: bool = False) -> None:
        self.chat_template = "{{ messages[0].content }}"
        self._can_constrain = can_constrain

    async def templates(self) -> Templates:
        return templates("Qwen-Qwen2.5-7B-Instruct")

    def can(self, field: str) -> bool:
        return self._can_constrain


class Asked:
    """A small request."""

    async def in_thread(self, work: Any, *arguments: Any) -> Any:
        return await large.in_thread(0, work, *arguments)


def test_a_conversation_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation of tens of thousands of messages takes a second, and other clients' streams continue meanwhile."""
    threads = []

    def read(messages: list[Any], template: str) -> list[Any]:
        threads.append(threading.current_thread())
        return read_messages(messages, template)

    monkeypatch.setattr(prompting, "read_messages", read)
    chat = prompting.Chat([{"role": "user", "content": "Hello."}])
    prompt = asyncio.run(prompting.render(cast(Any, Asked()), cast(Any, Served()), chat))
    assert "Hello." in prompt.fields["prompt"]
    assert threads and threading.main_thread() not in threads


@pytest.mark.parametrize("tools", [[], TOOLS])
def test_json_is_read_without_the_fences_that_a_model_may_write(tools: list[Any]) -> None:
    chat = prompting.Chat([{"role": "user", "content": "Hello."}], tools, json_schema=SCHEMA)
    prompt = asyncio.run(prompting.render(cast(Any, Asked()), cast(Any, Served(can_constrain=True)), chat))
    assert "```json" in prompt.fields["constraint"]["lark"]
    assert whole(prompt.parser(), '```json\n{"name": "Ada"}\n```').content == '{"name": "Ada"}'


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def prompt_of(name: str, messages: list[dict[str, Any]]) -> str:
    return prompting._apply(templates(name), Chat(messages), (FOLDER / f"{name}.jinja").read_text()).prompt


# templates that refuse a second system message, and templates that ignore it
ONE_SYSTEM = (
    "Qwen3.5-4B", "mistralai-Ministral-3-14B-Reasoning-2512", "google-gemma-2-2b-it", "MiniMax-M2",
    "openai-gpt-oss-120b", "llama-cpp-deepseek-r1",
)  # fmt: skip


@pytest.mark.parametrize("roles", [("system", "developer"), ("developer", "system"), ("system", "system")])
@pytest.mark.parametrize("name", ONE_SYSTEM)
def test_all_system_messages_at_the_beginning_reach_the_model(name: str, roles: tuple[str, str]) -> None:
    prompt = prompt_of(name, [said(roles[0], "Be kind."), said(roles[1], "Be brief."), said("user", "Hello.")])
    assert 0 <= prompt.index("Be kind.") < prompt.index("Be brief.") < prompt.index("Hello.")


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("name", ONE_SYSTEM)
def test_a_system_message_in_the_middle_reaches_the_model(name: str, role: str) -> None:
    turns = [said("user", "Hello."), said("assistant", "Hi."), said(role, "Be brief."), said("user", "And now?")]
    prompt = prompt_of(name, [said("system", "Be kind."), *turns])
    places = [prompt.index(text) for text in ("Be kind.", "Hello.", "Hi.", "Be brief.", "And now?")]
    assert places == sorted(places)


def test_a_template_that_knows_later_system_messages_gets_them() -> None:
    parts = {"role": "system", "content": [{"type": "text", "text": text} for text in ("Be brief.", "Be kind.")]}
    messages = [said("user", "Hello."), said("assistant", "Hi."), parts, said("user", "And now?")]
    assert "<|im_start|>system\nBe brief.\nBe kind." in prompt_of("Qwen-Qwen2.5-7B-Instruct", messages)
