"""What requests for vectors and for scores may say."""

from __future__ import annotations

from typing import Any

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.messages import decode
from uma_core.types import Embed, Priority, Request


def asked(op: str, **fields: Any) -> Request:
    request = decode({"type": op, "id": "a", **fields}, None).request
    assert request is not None
    return request


COMMON = {
    "truncate": True,
    "priority": "background",
    "timeout_ms": 1.5,
    "model": "m",
    "account": "c",
    "metadata": {"k": "v"},
}


@pytest.mark.parametrize("op", ["embed", "rerank"])
def test_what_both_may_say_arrives(op: str) -> None:
    needed = {"input": "x"} if op == "embed" else {"query": "q", "documents": ["d"]}
    plain, full = asked(op, **needed), asked(op, **needed, **COMMON)
    assert plain.embed is not None and full.embed is not None
    assert (plain.priority, plain.timeout_ns, plain.model, plain.account, plain.metadata) == (None, 0, "", "", {})
    assert (full.priority, full.timeout_ns, full.model) == (Priority.BACKGROUND, 1_500_000, "m")
    assert (full.account, full.metadata) == ("c", {"k": "v"})
    assert (plain.embed.truncate, full.embed.truncate) == (False, True)
    assert not plain.stream and not plain.cache_prompt


def test_how_vectors_are_made_arrives() -> None:
    assert asked("embed", input=["x", [1, 2]]).embed == Embed("embed", inputs=("x", (1, 2)))
    how = {"pooling": "cls", "normalize": False, "dimensions": 1, "encoding": "base64"}
    assert asked("embed", input="x", **how).embed == Embed(
        "embed", inputs=("x",), pooling="cls", normalize=False, dimensions=1, is_base64=True
    )


def test_what_documents_are_judged_by_arrives() -> None:
    assert asked("rerank", query="q", documents=["a", "b"], top_n=1).embed == Embed(
        "rerank", query="q", documents=("a", "b"), top_n=1
    )


@pytest.mark.parametrize(
    ("op", "fields", "field"),
    [
        ("embed", {"input": []}, "input"),
        ("embed", {"input": ["x", ""]}, "input[1]"),
        ("embed", {"input": ["x"] * 4097}, "input"),
        ("embed", {"input": "x", "dimensions": 0}, "dimensions"),
        ("embed", {"input": "x", "priority": "urgent"}, "priority"),
        ("rerank", {"query": "q", "documents": []}, "documents"),
        ("rerank", {"query": "", "documents": ["d"]}, "query"),
        ("rerank", {"query": "q", "documents": ["d"], "top_n": 0}, "top_n"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(op: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UmaError) as caught:
        asked(op, **fields)
    assert (caught.value.error, caught.value.detail["field"]) == (ErrorCode.BAD_REQUEST, field)


@pytest.mark.parametrize(
    ("op", "fields", "field"),
    [
        ("embed", {"input": []}, "input"),
        ("generate", {"prompt": ""}, "prompt"),
        ("generate", {"tokens": []}, "tokens"),
    ],
)
def test_a_field_that_must_not_be_empty_is_refused_in_these_words(op: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UmaError, match=f"`{field}` must not be empty"):
        asked(op, **fields)
