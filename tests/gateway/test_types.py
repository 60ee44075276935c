"""Answers and stream events have all fields that the types of OpenAI's, Anthropic's and Ollama's packages promise.

Their clients accept anything and check nothing: a missing field becomes an AttributeError in the user's program.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.promised import adapter_of

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Tells the weather", "parameters": CITY}
GREEDY = {"model": "any", "temperature": 0}
CHAT = {**GREEDY, "messages": ASK, "max_tokens": 150}
OLDER = {**GREEDY, "prompt": "The weather", "max_tokens": 5}
ITEMS = {**GREEDY, "input": "What is the weather in Paris?", "max_output_tokens": 150}
OLLAMA = {"model": "any", "messages": ASK, "options": {"temperature": 0, "num_predict": 150}}
GENERATE = {"model": "any", "prompt": "The weather", "options": {"num_predict": 5}}
CASES = [
    *(
        (
            "/v1/chat/completions",
            {**CHAT, **fields},
            "openai.types.chat:ChatCompletion",
            "openai.types.chat:ChatCompletionChunk",
        )
        for fields in (
            {},
            {"max_tokens": 3},
            {"n": 2},
            {"logprobs": True, "top_logprobs": 2},
            {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
            {"reasoning_effort": "high", "service_tier": "flex"},
            {"return_progress": True, "timings_per_token": True},
        )
    ),
    # OpenAI's type of a stream's chunks says that `finish_reason` is never null, but its own servers send null
    *(
        ("/v1/completions", {**OLDER, **fields}, "openai.types:Completion", None)
        for fields in ({}, {"logprobs": 2, "echo": True}, {"logprobs": 0})
    ),
    *(
        (
            "/v1/responses",
            {**ITEMS, **fields},
            "openai.types.responses:Response",
            "openai.types.responses:ResponseStreamEvent",
        )
        for fields in (
            {},
            {"max_output_tokens": 3, "store": False, "instructions": "Be kind.", "metadata": {"a": "b"}},
            {"tools": [{"type": "function", **FUNCTION, "strict": True}], "tool_choice": "required"},
            {
                "tools": [{"type": "function", **FUNCTION, "strict": True}],
                "tool_choice": {"type": "function", "name": "get_weather"},
            },
            {"tools": [{"type": "custom", "name": "say"}], "tool_choice": {"type": "custom", "name": "say"}},
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
            {"text": {"format": {"type": "json_schema", "name": "city", "schema": CITY}, "verbosity": "low"}},
            {"reasoning": {"effort": "high", "summary": "auto"}, "truncation": "auto"},
        )
    ),
    *(
        ("/v1/messages", {**CHAT, **fields}, "anthropic.types:Message", "anthropic.types:RawMessageStreamEvent")
        for fields in (
            {},
            {"max_tokens": 3},
            {"stop_sequences": ["e"]},
            {"tools": [{"name": "get_weather", "input_schema": CITY}], "tool_choice": {"type": "any"}},
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1400},
        )
    ),
    *(
        ("/api/chat", {**OLLAMA, **fields}, "ollama:ChatResponse", "ollama:ChatResponse")
        for fields in (
            {},
            {"tools": [{"type": "function", "function": FUNCTION}]},
            {"think": True},
            {"format": CITY},
            {"logprobs": True, "top_logprobs": 2},
        )
    ),
    ("/api/generate", GENERATE, "ollama:GenerateResponse", "ollama:GenerateResponse"),
    ("/api/embed", {"model": "any", "input": ["a", "b"]}, "ollama:EmbedResponse", None),
    ("/v1/embeddings", {"model": "any", "input": "a"}, "openai.types:CreateEmbeddingResponse", None),
    ("/v1/messages/count_tokens", {"model": "any", "messages": ASK}, "anthropic.types:MessageTokensCount", None),
    (
        "/v1/responses/input_tokens",
        {"model": "any", "input": "a"},
        "openai.types.responses.input_token_count_response:InputTokenCountResponse",
        None,
    ),
]


def hold(kind: str, values: list[Any]) -> None:
    """Raises: pydantic.ValidationError, also if a text stands for a number."""
    assert values
    for value in values:
        adapter_of(kind).validate_json(json.dumps(value), strict=True)


@pytest.mark.parametrize(("path", "fields", "whole", "part"), CASES)
def test_answers_are_what_their_clients_types_say(work_gateway, path, fields, whole, part):
    answer = work_gateway.post(path, **fields, **({"stream": False} if path.startswith("/api/") else {}))
    assert answer.status == 200, answer.body
    hold(whole, [answer.json])
    if part is None:
        return
    answer = work_gateway.post(path, **fields, stream=True)
    lines = [json.loads(line) for line in answer.body.splitlines()] if path.startswith("/api/") else answer.events
    hold(part, [line for line in lines if line.get("type") != "ping"])  # Anthropic's client skips pings first


def test_lists_are_what_their_client_s_types_say(work_gateway):
    hold("openai.types:Model", work_gateway.get("/v1/models").json["data"])
    response = work_gateway.post("/v1/responses", **ITEMS).json
    hold("openai.types.responses:Response", [work_gateway.get(f"/v1/responses/{response['id']}").json])
    hold(
        "openai.types.responses:ResponseItem",
        work_gateway.get(f"/v1/responses/{response['id']}/input_items").json["data"],
    )
