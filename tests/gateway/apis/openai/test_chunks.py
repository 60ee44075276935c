"""Pieces that OpenAI's answers share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from uma_gateway.apis.openai import chunks
from uma_gateway.apis.openai.chunks import ChatChunks
from uma_gateway.apis.openai.request import Shape

COUNTS = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3}


@pytest.mark.parametrize("text", ["a", "\0", '"\\u0000"', "\n\n", "\u2028é"])
def test_a_text_is_written_as_it_is_whatever_its_letters(text: str) -> None:
    made = ChatChunks(Shape("id", 1, "a\0b", "fp", {}))
    for index in (0, 1, 0):
        data = made.content(index, text)
        assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
        told = json.loads(data[len(b"data: ") :])
        (choice,) = told["choices"]
        assert (choice["delta"]["content"], choice["index"], told["model"]) == (text, index, "a\0b")


def test_cached_tokens_are_not_told_as_read() -> None:
    told = chunks.timings({"usage": COUNTS, "timing": {"ttft_ms": 60.0, "total_ms": 80.0}})
    assert (told["cache_n"], told["prompt_n"], told["predicted_n"]) == (4, 6, 3)
    assert told["prompt_per_second"] == 100.0 and told["predicted_per_second"] == 100.0


def test_rates_are_never_null() -> None:
    none = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}
    told = chunks.timings({"usage": none, "timing": {"ttft_ms": 0.0, "total_ms": 0.0}})
    assert not [name for name, value in told.items() if value is None] and "draft_n" not in told


def test_drafts_are_those_that_were_verified() -> None:
    counts = {**COUNTS, "accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1}
    told = chunks.timings({"usage": counts, "timing": {"ttft_ms": 1.0, "total_ms": 2.0}})
    assert (told["draft_n"], told["draft_n_accepted"]) == (3, 2)
    assert chunks.usage(counts)["total_tokens"] == 13


def entry(token_id: int, data: bytes, **more: Any) -> dict[str, Any]:
    return {"id": token_id, "bytes": list(data), "logprob": -0.5, **more}


def test_half_a_character_is_told_by_its_bytes() -> None:
    (told,) = chunks.logprobs([entry(1, b"\xc3", top=[entry(2, b"a")])])
    assert (told["token"], told["bytes"]) == ("\ufffd", [0xC3])
    assert [other["token"] for other in told["top_logprobs"]] == ["a"]


def test_a_prompt_s_token_is_told_first_and_has_its_rank() -> None:
    first = {"id": 0, "bytes": [], "logprob": None}
    seen = entry(2, b"b", top=[entry(1, b"a"), entry(2, b"b")])
    unlikely = entry(3, b"c", top=[entry(1, b"a")])
    none, ranked, unranked = chunks.prompt_logprobs([first, seen, unlikely])["prompt_logprobs"]
    assert none is None and list(ranked) == ["2", "1"]
    assert (ranked["2"]["rank"], unranked["3"]["rank"], unranked["1"]["rank"]) == (2, None, 1)
