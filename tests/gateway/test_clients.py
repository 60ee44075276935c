"""Clients that many programs are built on, unmodified: each chats, streams, calls tools, fills a form, raises, and is
cancelled.

If the model that was trained to call tools and to write JSON is there, the tests use it. Their requests are enforced on
any model.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it uses the network at import
os.environ["LANGSMITH_TRACING"] = "false"

from pydantic import BaseModel, Field

from tests.daemon.support import WAIT_S, eventually
from tests.forks import Forked, server_of
from tests.gateway.support import GatewayProcess, n_busy
from tests.late import Late

openai = Late("openai")

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI  # imported only where it is used, as litellm: they take 6 s

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CITIES = ("Paris", "Rome")


class Form(BaseModel):
    """Age and kind of an animal."""

    age: int = Field(ge=0, le=9)
    kind: str = Field(pattern="^(cat|dog)$")


# --- LangChain


def langchain(gateway: GatewayProcess, **options) -> ChatOpenAI:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", model="any", **{"max_retries": 0, "temperature": 0, **options}
    )


def test_langchain_chats_and_streams(gateway):
    chat = langchain(gateway, max_tokens=9)
    whole = chat.invoke("Hello")
    assert len(whole.content) == 9 and whole.usage_metadata["output_tokens"] == 9
    assert whole.response_metadata["finish_reason"] == "length"
    pieces = list(langchain(gateway, max_tokens=9, stream_usage=True).stream("Hello"))
    assert "".join(piece.content for piece in pieces) == whole.content and len(pieces) > 5
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) == 9
    assert len(chat.batch(["Hello", "Hi"])) == 2


def test_langchain_calls_a_tool_and_fills_a_form(work_gateway):
    chat = langchain(work_gateway, max_tokens=400)
    bound = chat.bind_tools([WEATHER], tool_choice="get_weather")
    (call,) = bound.invoke("What is the weather in Paris?").tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in CITIES and call["id"]
    streamed = None
    for piece in bound.stream("What is the weather in Paris?"):
        streamed = piece if streamed is None else streamed + piece
    assert [(one["name"], one["args"]) for one in streamed.tool_calls] == [(call["name"], call["args"])]
    for method in ("json_schema", "function_calling"):
        form = chat.with_structured_output(Form, method=method).invoke("A cat of three years")
        assert isinstance(form, Form) and form.kind in ("cat", "dog")


def test_langchain_raises_and_cancels(gateway, fake, levers):
    from langchain_core.exceptions import ContextOverflowError

    with pytest.raises(ContextOverflowError):
        langchain(gateway).invoke("x" * fake.ask("props")["n_ctx_seq"] * 2)
    with pytest.raises(openai.BadRequestError) as caught:
        langchain(gateway, temperature=1000).invoke("Hello")
    assert caught.value.param == "temperature"
    levers(step_ms=20)
    stream = langchain(gateway, max_tokens=1000).stream("Hello")
    next(stream)
    assert n_busy(fake) == 1
    stream.close()
    eventually(lambda: n_busy(fake) == 0)


# --- LiteLLM


def ask_litellm(gateway: GatewayProcess, provider: str = "openai", **fields):
    base = gateway.url if provider == "ollama_chat" else f"{gateway.url}/v1" if provider == "openai" else gateway.url
    ask = {"messages": HELLO, "temperature": 0, "num_retries": 0, "api_key": "none", "api_base": base}
    import litellm

    return litellm.completion(model=f"{provider}/any", **{**ask, **fields})


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama_chat"])
def test_litellm_chats_and_streams(gateway, provider):
    """With each API that it can use for a server of one's own."""
    whole = ask_litellm(gateway, provider, max_tokens=9)
    assert len(whole.choices[0].message.content) == 9
    assert whole.choices[0].finish_reason == "length" or provider == "ollama_chat"  # LiteLLM always reports stop for it
    assert whole.usage.completion_tokens == 9 and whole.usage.prompt_tokens > 0
    pieces = list(ask_litellm(gateway, provider, max_tokens=9, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.choices[0].message.content


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_litellm_calls_a_tool(work_gateway, provider):
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask_litellm(work_gateway, provider, max_tokens=400, tools=[WEATHER], tool_choice=named)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] in CITIES
    assert answer.choices[0].finish_reason in ("tool_calls", "stop")


def test_litellm_fills_a_form(tiny_gateway):
    answer = ask_litellm(tiny_gateway, max_tokens=200, response_format=Form)
    assert Form.model_validate_json(answer.choices[0].message.content).kind in ("cat", "dog")


def test_litellm_raises_and_cancels(gateway, fake, levers):
    import litellm

    with pytest.raises(litellm.ContextWindowExceededError):
        ask_litellm(gateway, messages=[{"role": "user", "content": "x" * fake.ask("props")["n_ctx_seq"] * 2}])
    with pytest.raises(litellm.BadRequestError):
        ask_litellm(gateway, temperature=1000)
    levers(step_ms=20)
    stream = ask_litellm(gateway, max_tokens=1000, stream=True)
    next(stream)
    assert n_busy(fake) == 1
    stream.completion_stream.close()
    eventually(lambda: n_busy(fake) == 0)


# --- llm, a command line


class Llm:
    """The command `llm`, with our model in its file of additional models. It is forked: its imports take seconds."""

    def __init__(self, folder: Path, gateway: GatewayProcess) -> None:
        self._folder = folder
        self._errors = folder / "errors"
        entry = {
            "model_id": "here",
            "model_name": "any",
            "api_base": f"{gateway.url}/v1",
            "supports_tools": True,
            "supports_schema": True,
        }
        (folder / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
        (folder / "keys.json").write_text(json.dumps({"openai": "none"}))

    def start(self, *args: str) -> Forked:
        environ = {**os.environ, "LLM_USER_PATH": str(self._folder), "OPENAI_API_KEY": "none"}
        forks = server_of("llm.cli", "llm.default_plugins.openai_models", "openai")
        with self._errors.open("wb") as errors:
            process = forks.start("llm", args, environ=environ, has_pipes=True, stderr=errors.fileno())
        process.stdin.close()  # it would read its prompt there
        return process

    def run(self, *args: str) -> tuple[int, str, str]:
        process = self.start(*args)
        with process.stdout:
            out = process.stdout.read().decode()
        return process.wait(WAIT_S), out, self._errors.read_text()


def test_llm_chats_and_streams(gateway, folder):
    llm = Llm(folder, gateway)
    code, whole, err = llm.run("-m", "here", "Hello", "--no-stream", "-o", "max_tokens", "9", "-o", "temperature", "0")
    assert code == 0 and len(whole.rstrip("\n")) == 9, err
    assert llm.run("-m", "here", "Hello", "-o", "max_tokens", "9", "-o", "temperature", "0")[:2] == (0, whole)


def test_llm_fills_a_form_and_calls_a_tool(work_gateway, tiny_gateway, folder):
    llm = Llm(folder, tiny_gateway)
    code, out, err = llm.run(
        "-m",
        "here",
        "A cat of three years",
        "--schema",
        json.dumps(Form.model_json_schema()),
        "-o",
        "max_tokens",
        "200",
    )
    assert code == 0 and Form.model_validate_json(out).kind in ("cat", "dog"), err
    llm = Llm(folder, work_gateway)
    (folder / "tools.py").write_text(
        'def get_weather(city: str) -> str:\n    "Get the weather of a city"\n    return f"Sun in {city}"\n'
    )
    ask = (
        "-m",
        "here",
        "What is the weather in Paris?",
        "--functions",
        str(folder / "tools.py"),
        "--td",
        "-o",
        "temperature",
        "0",
    )
    code, _, err = llm.run(*ask, "-o", "max_tokens", "150")
    assert code == 0 and "Sun in Paris" in err  # --td shows the results of tools


def test_llm_raises_and_cancels(gateway, fake, levers, folder):
    llm = Llm(folder, gateway)
    code, _, err = llm.run("-m", "here", "Hello", "-o", "max_tokens", "0")
    assert code != 0 and "max_tokens" in err
    levers(step_ms=20)
    process = llm.start("-m", "here", "Hello", "-o", "max_tokens", "2000")
    with process.stdout:
        eventually(lambda: n_busy(fake) == 1)
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
    eventually(lambda: n_busy(fake) == 0)
