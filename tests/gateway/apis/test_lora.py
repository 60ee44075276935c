"""LoRA adapters over HTTP: llama-server's field and list, and an adapter as the model of a request."""

from __future__ import annotations

import pytest

from tests.daemon.support import running
from tests.gateway.support import gateway_before


@pytest.fixture
def adapted(folder):
    flags = ("--lora", "tone=tone.gguf", "--lora", "topic=topic.gguf", "--lora-scale", "topic=0.5")
    with running(folder, "--engine", "fake", *flags) as daemon, gateway_before(folder, daemon) as gateway:
        yield gateway


def test_requests_choose_by_number_by_name_and_as_a_model(adapted):
    listed = adapted.get("/lora-adapters").json
    assert listed == [
        {"id": 0, "name": "tone", "path": "tone.gguf", "scale": 0.0, "task_name": "", "prompt_prefix": ""},
        {"id": 1, "name": "topic", "path": "topic.gguf", "scale": 0.5, "task_name": "", "prompt_prefix": ""},
    ]

    def say(path="/completion", **fields):
        answer = adapted.post(path, **{"prompt": "hello", "max_tokens": 12, "temperature": 0, **fields}).json
        return answer["content"] if path == "/completion" else answer["choices"][0]["text"]

    unsaid = say()
    tone = say(lora=[{"id": 0, "scale": 1.0}])
    assert tone == say(lora=[{"id": "tone"}]) == say("/v1/completions", model="tone")
    assert say(lora=[{"id": 1, "scale": 0.5}]) == unsaid == say(lora=[]) == say("/v1/completions", model="anything")
    assert len({unsaid, tone, say(lora=[{"id": 0, "scale": 0}]), say(lora=[{"id": 0}, {"id": 1}])}) == 4
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
    answers = [adapted.post("/v1/chat/completions", **chat, **more).json["choices"][0]["message"]["content"]
               for more in ({}, {"model": "tone"}, {"lora": [{"id": 0}]})]  # fmt: skip
    assert answers[0] != answers[1] == answers[2]


def test_the_settings_of_an_answer_name_adapters_by_number(adapted):
    """`/lora-adapters` and llama-server's settings use numbers too, even if the request used other names."""

    def told(**fields):
        answer = adapted.post("/completion", prompt="hello", n_predict=1, **fields).json
        return answer["generation_settings"]["lora"]

    assert (
        told(lora=[{"id": "topic", "scale": 0.5}]) == told(lora=[{"id": 1, "scale": 0.5}]) == [{"id": 1, "scale": 0.5}]
    )
    assert told(model="tone") == [{"id": 0, "scale": 1.0}] and told() == []


def test_adapters_are_listed_as_models(adapted):
    models = adapted.get("/v1/models").json["data"]
    assert [model["id"] for model in models[1:]] == ["tone", "topic"] and all(
        model["parent"] == models[0]["id"] for model in models[1:]
    )
    assert adapted.get("/v1/models/topic").json["parent"] == models[0]["id"]


@pytest.mark.parametrize(
    "lora", [[{"id": 2}], [{"id": -1}], [{"id": "tonne"}], [{}], [3], [{"id": 0, "scale": "x"}], [{"id": True}]]
)
def test_an_adapter_that_is_not_there_is_refused(adapted, lora):
    answer = adapted.post("/completion", prompt="hello", n_predict=2, lora=lora)
    assert answer.status == 400 and "lora" in answer.error["message"]


def test_nobody_changes_everybodys_scales(adapted):
    answer = adapted.post("/lora-adapters")
    assert answer.status == 501 and "engine.lora_scale" in answer.error["message"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollamas_clients_name_an_adapter_as_their_model(adapted, path):
    def say(**fields):
        asked = {"messages": [{"role": "user", "content": "hello"}], "prompt": "hello", "raw": True, "stream": False}
        answer = adapted.post(path, **asked, options={"num_predict": 12, "temperature": 0}, **fields).json
        return answer["message"]["content"] if path == "/api/chat" else answer["response"]

    assert say(model="any") != say(model="tone") == say(model="tone:latest") == say(lora=[{"id": 0}])
    assert [model["name"] for model in adapted.get("/api/tags").json["models"][1:]] == ["tone", "topic"]
