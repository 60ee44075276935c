"""Tokenises the inputs of `embed` and `rerank`, and encodes their replies. Runs on the intake's threads."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from uma_core.engine.api import ModelFacts
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.ports import Reading
from uma_core.session.embedding import Embedding
from uma_core.types import Embed, TokenId

SLICE = 2048  # numbers to format without releasing the GIL


def input_tokens(text: Reading, wanted: Embed) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the tokens of all inputs, concatenated as int32, and where each input ends.

    Blocks for as long as the tokeniser takes. Raises: BAD_REQUEST.
    """
    inputs = _pairs(text, wanted) if wanted.op == "rerank" else [_tokens(text, item) for item in wanted.inputs]
    for i, tokens in enumerate(inputs):
        if not len(tokens):
            field = "documents" if wanted.op == "rerank" else "input"
            raise UmaError(ErrorCode.BAD_REQUEST, f"`{field}[{i}]` has no tokens", field=f"{field}[{i}]")
    ends = np.cumsum([len(tokens) for tokens in inputs])
    return np.concatenate([np.array(tokens, np.int32) for tokens in inputs]), tuple(ends.tolist())


def _tokens(text: Reading, item: str | tuple[TokenId, ...]) -> Sequence[TokenId]:
    return text.tokenize(item, True, True) if isinstance(item, str) else item


def _pairs(text: Reading, wanted: Embed) -> list[list[TokenId]]:
    """Return query and document pairs as llama-server builds them: with the model's template, or between special
    tokens.
    """
    facts = text.facts()
    if facts.rerank_template:
        parts = re.split(r"(\{query\}|\{document\})", facts.rerank_template)  # a query may contain these words
        texts = ({"{query}": wanted.query, "{document}": document} for document in wanted.documents)
        return [text.tokenize("".join(given.get(part, part) for part in parts), False, True) for given in texts]
    query = text.tokenize(wanted.query, False, False)
    return [_pair(facts, query, text.tokenize(document, False, False)) for document in wanted.documents]


def _pair(facts: ModelFacts, query: list[TokenId], document: list[TokenId]) -> list[TokenId]:
    def special(name: str, is_wanted: bool) -> list[TokenId]:
        return [facts.special[name][0]] if is_wanted and name in facts.special else []

    end = special("eos" if "eos" in facts.special else "sep", facts.add_eos)
    return [*special("bos", facts.add_bos), *query, *end, *special("sep", facts.add_sep), *document, *end]


def reply_json(embedding: Embedding, usage: dict[str, int], timing: dict[str, float]) -> bytes:
    """Return the reply's fields as JSON, without braces."""
    common = {
        "usage": {"prompt_tokens": usage["prompt_tokens"]},
        "timing": {name: timing[name] for name in ("queue_ms", "total_ms") if name in timing},
    }
    if embedding.wanted.op == "rerank":
        return json.dumps({"results": _results(embedding), **common})[1:-1].encode()
    items = [_item(embedding, rows) for rows in embedding.vectors]
    return f'"embeddings":[{",".join(items)}],{json.dumps(common)[1:-1]}'.encode()


def _results(embedding: Embedding) -> list[dict[str, Any]]:
    scores = [float(rows[0, 0]) for rows in embedding.vectors]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: embedding.wanted.top_n or None]
    return [{"index": i, "relevance_score": float(f"{scores[i]:.9g}")} for i in order]


def _item(embedding: Embedding, rows: np.ndarray) -> str:
    write = _base64 if embedding.wanted.is_base64 else _numbers
    return write(rows[0]) if embedding.pooling != "none" else f"[{','.join(map(write, rows))}]"


def _base64(vector: np.ndarray) -> str:
    return f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'


def _numbers(vector: np.ndarray) -> str:
    """Write floats with nine digits, which distinguish all 32-bit floats. Works in slices, so that other threads get
    the GIL in between.
    """
    parts = [",".join([f"{x:.9g}" for x in vector[i : i + SLICE].tolist()]) for i in range(0, len(vector), SLICE)]
    return f"[{','.join(parts)}]"
