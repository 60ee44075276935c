"""The model in `/v1/models`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from uma_gateway.apis.openai.models import adapter_object, anthropic_fields, model_object
from uma_gateway.model import Model

FACTS = {"vocab_type": "bpe", "n_embd": 8, "n_params": 100, "n_bytes": 200}
MODEL = cast("Model", SimpleNamespace(name="m", n_ctx=64, n_ctx_train=128, n_vocab=32, props={"model": FACTS}))


def test_the_context_is_where_each_client_looks_for_it() -> None:
    told = model_object(MODEL, 5)
    assert told["context_length"] == told["max_model_len"] == told["meta"]["n_ctx"] == 64
    assert (told["meta"]["n_ctx_train"], told["meta"]["vocab_type"], told["created"]) == (128, 2, 5)
    assert anthropic_fields(MODEL, "m", 0)["created_at"] == "1970-01-01T00:00:00Z"


def test_an_adapter_is_a_model_with_a_parent() -> None:
    told = adapter_object(MODEL, "sql", 5)
    assert (told["id"], told["parent"], told["max_model_len"]) == ("sql", "m", 64)
