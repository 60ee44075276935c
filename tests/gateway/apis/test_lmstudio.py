"""LM Studio's endpoints: the lists from which programs choose a model and its context, and chats under its names."""

from __future__ import annotations

import pytest

from tests.gateway.support import GatewayProcess
from tests.late import Late

openai = Late("openai")


def test_both_lists_tell_the_served_model_and_its_context(work_gateway: GatewayProcess) -> None:
    served = work_gateway.get("/v1/models").json["data"][0]
    context = served["context_length"]
    (listed,) = work_gateway.get("/api/v0/models").json["data"]
    assert listed["id"] == served["id"] and listed["state"] == "loaded" and listed["type"] == "llm"
    assert listed["loaded_context_length"] == listed["max_context_length"] == context
    assert listed["compatibility_type"] == "gguf" and listed["capabilities"] == ["tool_use"]
    assert work_gateway.get(f"/api/v0/models/{listed['id']}").json == listed
    (model,) = work_gateway.get("/api/v1/models").json["models"]
    assert model["key"] == served["id"] and model["type"] == "llm" and model["format"] == "gguf"
    assert model["loaded_instances"] == [{"id": served["id"], "config": {"context_length": context}}]
    assert model["max_context_length"] == context and model["capabilities"]["trained_for_tool_use"]
    assert model["size_bytes"] == served["meta"]["size"] > 0 and model["quantization"]["bits_per_weight"] > 0


def test_chats_and_texts_are_openais(gateway: GatewayProcess) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/api/v0", api_key="lm-studio", max_retries=0) as client:
        messages = [{"role": "user", "content": "hello"}]
        whole = client.chat.completions.create(model="any", messages=messages, max_tokens=6, temperature=0)
        parts = client.chat.completions.create(model="any", messages=messages, max_tokens=6, temperature=0, stream=True)
        said = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert said == whole.choices[0].message.content and len(said) == 6
        assert len(client.completions.create(model="any", prompt="hello", max_tokens=5).choices[0].text) == 5


def test_the_served_model_is_loaded_and_no_other(gateway: GatewayProcess) -> None:
    name = gateway.get("/api/v1/models").json["models"][0]["key"]
    loaded = gateway.post("/api/v1/models/load", model=name, context_length=8192)
    assert loaded.status == 200 and loaded.json["instance_id"] == name and loaded.json["status"] == "loaded"
    assert gateway.post("/api/v1/models/load", model="another").status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v0/models/another", 404),
        ("POST", "/api/v1/models/unload", 501),
        ("POST", "/api/v1/models/download", 501),
        ("POST", "/api/v1/chat", 404),
    ],
)
def test_what_is_not_done_says_so(gateway: GatewayProcess, method: str, path: str, status: int) -> None:
    answer = gateway.ask(method, path, {"model": "another"} if method == "POST" else None, None)
    assert answer.status == status and answer.json["error"]["message"] and answer.json["error"]["type"]
