"""Inputs that become vectors: what is refused before anything is computed, and what is computed next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from uma_core.engine.api import EmbeddingInfo, Rows
from uma_core.errors import ErrorCode, UmaError
from uma_core.session.embedding import Embedding, Pool, normalized
from uma_core.types import Embed

CHUNKS = EmbeddingInfo(n_embd=4, pooling="mean", poolings=("none", "mean", "cls", "last"), n_input=8, n_rows=3)
WHOLE = CHUNKS._replace(is_whole=True, n_inputs=3)


def embedding(*sizes: int, info: EmbeddingInfo = CHUNKS, op: str = "embed", **fields: Any) -> Embedding:
    """Return an embedding of inputs of these lengths, whose tokens are numbered from 0."""
    return Embedding(Embed(op, **fields), np.arange(sum(sizes), dtype=np.int32), np.cumsum(sizes).tolist(), info)


def rows(*values: float) -> np.ndarray:
    return np.array([[value, 0, 0, 0] for value in values], np.float32)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("sizes", "fields", "code", "detail"),
        [
            ((3,), {"pooling": "max"}, ErrorCode.UNSUPPORTED, {"pooling": "max"}),
            ((3,), {"op": "rerank"}, ErrorCode.UNSUPPORTED, {"pooling": "rank"}),
            ((3,), {"dimensions": 5}, ErrorCode.BAD_REQUEST, {"limit": 4}),
            ((3, 0, 2), {}, ErrorCode.BAD_REQUEST, {"index": 1, "field": "input"}),
            ((3, 9, 10), {}, ErrorCode.PROMPT_TOO_LARGE, {"index": 1, "n_tokens": 9, "limit": 8}),
            ((3, 3), {"reply_bytes": 127}, ErrorCode.PROMPT_TOO_LARGE, {"n_bytes": 128}),
            ((3, 3), {"reply_bytes": 383, "pooling": "none"}, ErrorCode.PROMPT_TOO_LARGE, {"n_bytes": 384}),
        ],
    )
    def test_it_is_named(self, sizes, fields, code, detail):
        with pytest.raises(UmaError) as caught:
            embedding(*sizes, **fields)
        assert caught.value.error is code and detail.items() <= caught.value.detail.items()

    def test_documents_without_tokens_are_called_documents(self):
        with pytest.raises(UmaError) as caught:
            embedding(3, 0, op="rerank", info=CHUNKS._replace(poolings=("rank",)))
        assert caught.value.detail["field"] == "documents"

    @pytest.mark.parametrize("fields", [{}, {"dimensions": 2}, {"is_base64": True}])
    def test_a_reply_that_just_fits_is_not(self, fields):
        n_bytes = {"dimensions": 64, "is_base64": 42}.get(next(iter(fields), ""), 128)
        assert embedding(3, 3, reply_bytes=n_bytes, **fields).n_inputs == 2
        with pytest.raises(UmaError):
            embedding(3, 3, reply_bytes=n_bytes - 1, **fields)


def test_an_input_that_is_too_long_keeps_its_last_token():
    it = embedding(3, 10, 2, truncate=True)
    assert [it.input(n).tolist() for n in range(3)] == [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9, 12], [13, 14]]
    assert (it.longest, it.n_tokens) == (8, 13)


class TestChunkByChunk:
    def test_inputs_are_pooled_one_after_another(self):
        it = embedding(5, 2, normalize=False)
        assert (it.n_done, it.n_later, it.is_done) == (0, 2, False)
        tokens, wanted = it.chunk(0, 4)
        assert tokens.tolist() == [0, 1, 2] and wanted is Rows.ALL, "as many as have hidden states"
        assert not it.add(3, rows(1, 2, 3))
        assert it.chunk(3, 4)[0].tolist() == [3, 4]
        assert it.add(2, rows(4, 5))
        assert (it.n_done, it.n_later) == (5, 0) and it.current.tolist() == [5, 6]
        assert it.add(2, rows(7, 9)) and it.is_done and it.n_later == 0
        assert [vector[0, 0] for vector in it.vectors] == [3, 8]

    def test_an_input_that_starts_over_counts_nothing_twice(self):
        it = embedding(4, normalize=False)
        it.add(2, rows(100, 100))
        it.restart()
        assert not it.add(2, rows(1, 1)) and it.add(2, rows(2, 2))
        assert it.vectors[0][0, 0] == 1.5

    @pytest.mark.parametrize(
        ("pooling", "wanted"),
        [
            ("none", [Rows.ALL, Rows.ALL, Rows.ALL]),
            ("mean", [Rows.ALL, Rows.ALL, Rows.ALL]),
            ("cls", [Rows.FIRST, Rows.NONE, Rows.NONE]),
            ("last", [Rows.NONE, Rows.NONE, Rows.LAST]),
        ],
    )
    def test_no_more_states_are_asked_for_than_pooling_needs(self, pooling, wanted):
        pool = Pool(pooling)
        assert [pool.wants(start, 6 - start - 2) for start in (0, 2, 4)] == wanted

    def test_a_chunk_is_as_long_as_it_may_be_where_few_states_are_needed(self):
        assert embedding(8, pooling="last").chunk(0, 7)[0].size == 7

    def test_a_vector_that_is_no_number_is_an_error_and_not_an_answer(self):
        it = embedding(1)
        with pytest.raises(UmaError) as caught:
            it.add(1, rows(float("nan")))
        assert caught.value.error is ErrorCode.DECODE_FAILED


class TestWholeInputs:
    def test_a_call_takes_as_many_as_fit_and_at_least_one(self):
        it = embedding(4, 3, 2, 1, 1, info=WHOLE)
        assert [tokens.size for tokens in it.call(9, 100)] == [4, 3, 2]
        assert [tokens.size for tokens in it.call(8, 100)] == [4, 3]
        assert [tokens.size for tokens in it.call(100, 7)] == [4, 3]
        assert [tokens.size for tokens in it.call(1, 100)] == [4]
        it.add_whole([rows(1)] * 4)
        assert [tokens.size for tokens in it.call(100, 100)] == [1] and not it.is_done


class TestVectors:
    def test_they_are_cut_first_and_have_length_one(self):
        it = embedding(1, dimensions=2)
        it.add(1, np.array([[3, 4, 12, 0]], np.float32))
        assert it.vectors[0].tolist() == [pytest.approx([0.6, 0.8])]

    @pytest.mark.parametrize(
        ("fields", "is_normal"),
        [
            ({}, True),
            ({"normalize": False}, False),
            ({"pooling": "none"}, False),
            ({"pooling": "none", "normalize": True}, True),
        ],
    )
    def test_they_are_normalized_unless_asked_or_token_by_token(self, fields, is_normal):
        it = embedding(1, **fields)
        it.add(1, rows(5))
        assert it.vectors[0][0, 0] == (1 if is_normal else 5)

    def test_scores_stay_what_they_are(self):
        it = embedding(1, op="rerank", normalize=True, info=CHUNKS._replace(poolings=("rank",), is_whole=True))
        it.add_whole([np.array([[-2.5]], np.float32)])
        assert it.vectors[0].tolist() == [[-2.5]]

    def test_zeros_have_no_direction(self):
        assert normalized(np.zeros((1, 3), np.float32)).tolist() == [[0, 0, 0]]
