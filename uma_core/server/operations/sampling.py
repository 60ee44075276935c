"""Translates the texts and token ids of a request into the model's vocabulary. Runs on the intake's threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.ports import TextPort
from uma_core.types import Request, SamplingParams, TokenId


def resolve(text: TextPort, request: Request) -> Request:
    """Return the request with its texts replaced by token ids. Raises: BAD_REQUEST."""
    if request.preserved_tokens:
        request = replace(request, preserved_tokens=_single_tokens(text, request.preserved_tokens))
    if isinstance(request.prediction, str) and request.prediction:
        request = replace(request, prediction=tuple(text.tokenize(request.prediction, False, True)))
    params = request.sampling
    if not params.needs_sampler and not params.stop_token_ids:
        return request
    check_ids(text, params.stop_token_ids, "stop_token_ids")
    sampling = replace(params, logit_bias=_biases(text, params))
    text.prepare(sampling)
    return replace(request, sampling=sampling)


def check_ids(text: TextPort, tokens: Iterable[TokenId], field: str) -> None:
    """Check that the model has these token ids. Raises: BAD_REQUEST."""
    if any(token >= text.n_vocab for token in tokens):
        raise UmaError(ErrorCode.BAD_REQUEST, f"`{field}`: token ids go from 0 to {text.n_vocab - 1}", field=field)


def _single_tokens(text: TextPort, named: Iterable[str | TokenId]) -> tuple[TokenId, ...]:
    """Drop texts of more than one token: they are plain text, which always appears."""
    found = [text.tokenize(name, False, True) for name in named if isinstance(name, str)]
    return tuple(tokens[0] for tokens in found if len(tokens) == 1)


def _biases(text: TextPort, params: SamplingParams) -> tuple[tuple[TokenId | str, float], ...]:
    """Return one bias per token: the sum over all entries that name it."""
    biases: dict[TokenId, float] = {}
    for named, value in params.logit_bias:
        tokens = text.tokenize(named, False, False) if isinstance(named, str) else [named]
        check_ids(text, tokens, "logit_bias")
        for token in dict.fromkeys(tokens):
            biases[token] = biases.get(token, 0.0) + value
    return tuple(biases.items())
