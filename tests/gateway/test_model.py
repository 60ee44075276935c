"""The served model in clients' words."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.model import Model, quantisation, size_text


def model_of(facts: dict[str, Any] | None = None, alias: str = "", **props: Any) -> Model:
    given = {"name": "tiny", "path": "/models/file.gguf", "fingerprint": "0123456789abcdef", "n_ctx_train": 64}
    can = {"generate": ["seed"], "chat": True, "infill": False, "rerank": False, "embeddings": True}
    told = {"n_ctx_seq": 32, "limits": {"max_tokens": 16}, "chat_template": None, "special": {}}
    return Model({"model": {**given, "n_vocab": 8, **(facts or {})}, "capabilities": can, **told, **props}, alias)


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("llama 1B Q4_K - Medium", "Q4_K_M"),
        ("qwen3moe 30B.A3B Q5_K - Small", "Q5_K_S"),
        ("llama 1B Q2_K - Medium", "Q2_K"),  # the file type's name, in llama.cpp and in Ollama
        ("llama 1B Q6_K", "Q6_K"),
        ("llama 1B all F32", "F32"),
        ("llama 1B (guessed) Q8_0", "Q8_0"),
        ("llama 1B IQ4_XS - 4.25 bpw", "IQ4_XS"),
        ("llama 1B IQ3_S mix - 3.66 bpw", "IQ3_M"),
        ("llama 1B TQ1_0 - 1.69 bpw ternary", "TQ1_0"),
        ("gpt-oss 20B MXFP4 MoE", "MXFP4"),
        ("llama 1B unknown, may not work", "unknown"),
        ("bert ?B Q4_K_M", "Q4_K_M"),  # of a file whose weights llama.cpp did not load
        ("", "unknown"),
    ],
)
def test_the_quantisation_has_the_name_that_files_are_published_under(description: str, name: str) -> None:
    assert quantisation(description) == name


@pytest.mark.parametrize(("n", "told"), [(400_000, "0M"), (135_000_000, "135M"), (1_540_000_000, "1.5B")])
def test_sizes_are_told_in_millions_or_billions(n: int, told: str) -> None:
    assert size_text(n) == told


@pytest.mark.parametrize(
    ("name", "path", "alias", "told"),
    [
        ("Qwen3-0.6B", "/m/file.gguf", "", "Qwen3-0.6B"),
        ("Llama 3.2 1B", "/m/file.gguf", "", "file"),  # spaces and slashes confuse clients that write URLs
        ("org/model", "/m/file.gguf", "", "file"),
        ("", "", "", "model"),
        ("Qwen3-0.6B", "/m/file.gguf", "mine", "mine"),
    ],
)
def test_the_name_fits_into_an_url(name: str, path: str, alias: str, told: str) -> None:
    assert model_of({"name": name, "path": path}, alias).name == told


def test_adapters_are_names_too() -> None:
    assert model_of(adapters=[{"id": "sql"}, {"id": "poet"}]).names == ["tiny", "sql", "poet"]


def test_a_model_that_chats_and_embeds_is_offered_for_chats() -> None:
    can = {"generate": [], "chat": True, "infill": True, "rerank": False, "embeddings": True}
    chats = model_of(capabilities=can, chat_template="{{ tools }} <think>")
    assert chats.abilities == ["completion", "tools", "thinking", "insert"]
    encoder = model_of(capabilities={**can, "infill": False, "completion": False})
    assert encoder.abilities == ["embedding"]
    reranker = model_of(capabilities={**can, "infill": False, "completion": False, "rerank": True})
    assert reranker.abilities == []


def test_special_tokens_that_the_model_lacks() -> None:
    model = model_of(special={"eos": {"id": 2, "text": "</s>"}})
    assert (model.special("eos"), model.special("bos")) == ("</s>", "")
    assert (model.special_id("bos", "eos"), model.special_id("bos")) == (2, None)
