"""Answers that chance or an adversary writes under a matcher."""

from __future__ import annotations

import functools
import json
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

import jsonschema
import numpy as np

from uma_core.constraint.compiler import Compiler
from uma_core.constraint.matcher import Matcher
from uma_core.constraint.vocabulary import Text
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import Constraint

N_TOKENS_MOST = 400


def allowed(matcher: Matcher, n_vocab: int) -> np.ndarray:
    """Return the ids that may come next."""
    if matcher.forced:
        return np.array([matcher.forced[0]])
    assert matcher.mask is not None
    return np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")[:n_vocab])


def write(
    text: Text, matcher: Matcher, weights: np.ndarray, seed: int, n_most: int = N_TOKENS_MOST, watch: Any = None
) -> tuple[bytes, str]:
    """Draw tokens by weight among the allowed ones. Return the answer, and how it ended: stop or length.

    `watch` must allow these tokens too.
    """
    rng, out = np.random.default_rng(seed), bytearray()
    for _ in range(n_most):
        ids = allowed(matcher, text.n_vocab)
        sums = np.cumsum(weights[ids] + 1e-12)  # rng.choice draws in the same way, and takes three times as long
        token = int(ids[np.searchsorted(sums, rng.random() * sums[-1], side="right")])
        if text.is_eog(token):
            return bytes(out), "stop"
        out += text.piece(token)
        matcher.accept(token)
        if watch is not None:
            assert watch.allowed([token]), bytes(out)
            watch.accept(token)
        if matcher.is_done:
            return bytes(out), "stop"
    return bytes(out), "length"


def can_begin(text: Text, matcher: Matcher, data: bytes) -> bool:
    """Whether these bytes, each of them a token, may come next."""
    for byte in data:
        if matcher.is_done or byte not in allowed(matcher, text.n_vocab):
            return False
        matcher.accept(byte)
    return True


def can_write(text: Text, matcher: Matcher, data: bytes) -> bool:
    """Whether the whole rest of the answer may consist of these bytes."""
    return can_begin(text, matcher, data) and (matcher.is_done or any(map(text.is_eog, allowed(matcher, text.n_vocab))))


def even(text: Text) -> np.ndarray:
    return np.ones(text.n_vocab)


@functools.lru_cache(maxsize=4)  # a vocabulary of 8,192 tokens takes 10 ms, and tests ask for each answer
def hasty(text: Text) -> np.ndarray:
    """Prefer tokens that end things, so that complete answers come sooner."""
    weights = np.ones(text.n_vocab)
    for token in range(text.n_vocab):
        piece = text.piece(token)
        if text.is_eog(token):
            weights[token] = 30
        elif piece[-1:] in (b'"', b"}", b"]"):
            weights[token] = 12
        elif not piece.strip():
            weights[token] = 0.3
    return weights


def contrary(text: Text) -> np.ndarray:
    """An adversary: avoid tokens that end things for as long as another token is allowed."""
    return 1 / hasty(text) ** 6


def schema(value: Any) -> Constraint:
    return Constraint("json_schema", value)


def answer(compiler: Compiler, text: Text, constraint: Constraint, seed: int = 0, n_most: int = N_TOKENS_MOST) -> str:
    """Return a complete answer."""
    data, end = write(text, compiler.compile(text, constraint), hasty(text), seed, n_most)
    assert end == "stop"
    return data.decode()


def keyword_of(compiler: Compiler, text: Text, value: Any) -> str:
    """Return the keyword for which the schema is refused; "" if it is accepted."""
    try:
        compiler.compile(text, schema(value))
    except UmaError as error:
        keyword: str = error.detail["keyword"]
        assert error.error is ErrorCode.CONSTRAINT_REFUSED
        assert error.detail["field"] == "constraint.json_schema" and error.detail["path"].endswith(keyword)
        return keyword
    return ""


def check_valid(value: Any, schema: Any) -> None:
    """Raises: jsonschema.ValidationError.

    `multipleOf` is checked in decimal arithmetic: a float's remainder is not what JSON Schema means.
    """
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind = jsonschema.validators.extend(kind, {"multipleOf": _multiple_of})
    kind(schema).validate(value)


def _multiple_of(validator: Any, factor: Any, instance: Any, schema: Any) -> Any:
    is_number = isinstance(instance, int | float | Decimal) and not isinstance(instance, bool)
    with localcontext() as context:  # answers may have hundreds of digits
        context.prec = 2000
        if is_number and Decimal(str(instance)) % Decimal(str(factor)):
            yield jsonschema.ValidationError(f"{instance} is not a multiple of {factor}")


def parse(text: str) -> Any:
    """Keep every digit: an answer may have more digits than a float."""
    return json.loads(text, parse_float=_number)


def _number(digits: str) -> Decimal | float:
    try:
        return Decimal(digits)
    except InvalidOperation:  # the exponent is too large
        return float(digits)


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
