"""Whatever the declared ranges allow gives a token or none: no row and no values end the process."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.drive import draw
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.errors import UmaError
from uma_core.protocol.fields import Field, Kind, check_fields
from uma_core.protocol.sampling import SAMPLING_FIELDS, to_params


def values(field: Field) -> st.SearchStrategy[Any]:
    if field.name == "samplers":
        return st.lists(st.sampled_from(field.choices), unique=True)
    if field.kind is Kind.STRINGS:
        return st.lists(st.sampled_from(["\n", "e", "th", "日", "\U0001f680" * 30, "x" * 200]), max_size=3)
    if field.kind is Kind.BIASES:
        bias = st.one_of(st.just(False), st.sampled_from([-1e6, 1e6, 1e-30]), st.floats(-5, 5))
        return st.lists(st.tuples(st.integers(0, 999), bias).map(list), max_size=5)
    low, high = field.low or 0, field.high or 0
    ends = st.sampled_from([low, high, min(high, low + 1), (low + high) // 2])
    if field.kind is Kind.INTEGER:
        return st.one_of(ends.map(int), st.integers(int(low), min(int(high), 200)))
    smallest = st.sampled_from([max(low, 5e-324), max(low, 1e-39), max(low, 1e-7)])
    return st.one_of(ends.filter(lambda x: x > low or not field.is_open_low), smallest, st.floats(max(low, 1e-9), high))


FIELDS = st.fixed_dictionaries({}, optional={field.name: values(field) for field in SAMPLING_FIELDS})
SHAPES = ("usual", "flat", "steep", "one", "none", "huge", "tiny", "nan", "inf", "few")


def row_of(shape: str, n: int, seed: int) -> np.ndarray:
    row = np.random.default_rng(seed).normal(0.0, 4.0, n)
    if shape in ("flat", "tiny"):
        row[:] = 0.0 if shape == "flat" else -1e38
    elif shape in ("steep", "huge"):
        row *= 100 if shape == "steep" else 1e36
    elif shape in ("one", "none", "few"):
        kept = row[[5, 6, 7]]
        row[:] = -np.inf
        row[[5, 6, 7][: {"one": 1, "none": 0, "few": 3}[shape]]] = kept[: {"one": 1, "none": 0, "few": 3}[shape]]
    elif shape in ("nan", "inf"):
        row[7] = np.nan if shape == "nan" else np.inf
    return row.astype(np.float32)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FIELDS, st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6), st.booleans(), st.integers(0, 9))
def test_absurd_values_on_absurd_rows(
    small: LlamaEngine, fields: Any, shapes: list[str], is_masked: bool, seed: int
) -> None:
    asked = {
        "stop_token_ids": (),
        "logprobs": seed,
        "post_sampling_probs": is_masked,
        **check_fields(SAMPLING_FIELDS, fields),
    }
    try:
        params = to_params(asked)
        small.prepare(params)
    except UmaError:
        return
    sampler = small.sampler(params, seed)
    sampler.accept(np.array([5, 6, 5, 6, 5, 900, 5, 6], np.int32))
    if is_masked:
        sampler.set_mask(np.full(-(-small.info.n_vocab // 32), 0b11100000, np.uint32))
    banned = {token for token, bias in params.logit_bias if bias == -np.inf}
    for i, shape in enumerate(shapes):
        row = row_of(shape, small.info.n_vocab, seed + i)
        before = row.tobytes()
        token = draw(row, sampler.handle)
        assert row.tobytes() == before
        assert -1 <= token < small.info.n_vocab
        if token >= 0:
            assert token not in banned and row[token] > -np.inf
            assert not is_masked or token % 32 in (5, 6, 7)
            told = sampler.logprobs()
            assert told is not None and all(p <= 1e-6 for p in (told.logprob, *(p for _, p in told.top))), "or NaN"
        if shape in ("none", "nan", "inf"):
            assert token == -1
    sampler.close()
