"""Options of vectors and scores, read. tests/gateway/test_embedding.py asks the endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.apis.llama.embeddings import _check_cut, _may_cut, tei_object
from uma_gateway.errors import GatewayError, Kind


@pytest.mark.parametrize(
    ("body", "may_cut"),
    [
        ({}, False),
        ({"max_tokens_per_doc": 4096}, True),  # Cohere's clients send it with every request
        ({"max_tokens_per_doc": 4096, "truncate": False}, False),
        ({"truncate": True}, True),
    ],
)
def test_long_documents_are_cut_where_it_is_asked_for(body: dict[str, Any], may_cut: bool) -> None:
    assert _may_cut(body) is may_cut


def test_the_beginning_of_a_text_is_never_cut_off() -> None:
    for body in ({}, {"truncation_direction": "Left"}, {"truncation_direction": "right", "truncate": True}):
        _check_cut(body)
    with pytest.raises(GatewayError) as caught:
        _check_cut({"truncation_direction": "Left", "truncate": True})
    assert (caught.value.kind, caught.value.param) == (Kind.NOT_SUPPORTED, "truncation_direction")


def test_a_score_has_its_text_by_the_document_s_number() -> None:
    result = {"index": 1, "relevance_score": 0.5}
    assert tei_object(result, ["a", "b"], has_text=True) == {"index": 1, "score": 0.5, "text": "b"}
    assert tei_object(result, ["a", "b"], has_text=False) == {"index": 1, "score": 0.5}
