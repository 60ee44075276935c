"""What a request may say about sampling, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.messages import decode
from uma_core.types import SamplingParams


def params(**fields: Any) -> SamplingParams:
    request = decode({"prompt": "hi", **fields}, None).request
    assert request is not None
    return request.sampling


def test_without_fields_nothing_is_on():
    assert params() == SamplingParams()


def test_every_field_arrives_under_its_name():
    fields = {
        "temperature": 0.5, "dynatemp_range": 0.25, "dynatemp_exponent": 2.0, "top_k": 7, "top_p": 0.5, "min_p": 0.125,
        "typical_p": 0.75, "min_keep": 3,
        "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.25, "repeat_penalty": 1.5, "repeat_last_n": -1,
        "frequency_penalty": -0.5, "presence_penalty": 0.5, "dry_multiplier": 1.0, "dry_base": 1.5,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 99, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.5, "adaptive_decay": 0.5,
        "seed": 3, "min_tokens": 4,
    }  # fmt: skip
    asked = {**fields, "dry_sequence_breakers": ["a"], "samplers": ["top_p", "temperature"], "stop_token_ids": [5, 6]}
    arrived = params(**asked, logit_bias=[[5, 1], ["no", False]])
    assert {name: getattr(arrived, name) for name in fields} == fields
    assert arrived.dry_sequence_breakers == ("a",) and arrived.samplers == ("top_p", "temperature")
    assert arrived.logit_bias == ((5, 1.0), ("no", -math.inf)) and arrived.stop_token_ids == (5, 6)


def test_a_target_is_enough_for_adaptive_p():
    assert params(adaptive_target=0.5).samplers == (*SamplingParams().samplers, "adaptive_p")
    assert params(adaptive_target=0.5, samplers=["top_k"]).samplers == ("top_k",)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"samplers": ["topk"]}, "samplers", "did you mean 'top_k'"),
        ({"samplers": ["top_k", "top_k"]}, "samplers", "twice"),
        ({"samplers": ["infill"]}, "samplers", "before `infill`"),
        ({"samplers": ["infill", "top_k"]}, "samplers", "before `infill`"),
        ({"samplers": ["top_k", "infill"], "top_k": 101}, "samplers", "from 1 to 100"),
        ({"samplers": ["top_k", "infill"], "top_k": 0}, "samplers", "from 1 to 100"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"repeat_penalty": 0}, "repeat_penalty", "at least 0.01"),
        ({"mirostat": 3}, "mirostat", "at most 2"),
        ({"mirostat": True}, "mirostat", "integer"),
        ({"frequency_penalty": 1e9}, "frequency_penalty", "at most 100"),
        ({"adaptive_decay": 1}, "adaptive_decay", "at most 0.99"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "array"),
        ({"logit_bias": [[5]]}, "logit_bias[0]", "array of two"),
        ({"logit_bias": [[5, 1], [-1, 1]]}, "logit_bias[1]", "token id"),
        ({"logit_bias": [["", 1]]}, "logit_bias[0]", "non-empty"),
        ({"logit_bias": [[True, 1]]}, "logit_bias[0]", "token id"),
        ({"logit_bias": [[5, True]]}, "logit_bias[0]", "number or false"),
        ({"logit_bias": [[5, 1e7]]}, "logit_bias[0]", "at most 1000000"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "integers from 0"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids", "at most 64"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"dry_sequence_breakers": ["\n", ""]}, "dry_sequence_breakers", "non-empty"),
    ],
)
def test_a_wrong_value_is_refused_and_named(fields, field, words):
    with pytest.raises(UmaError, match=words) as caught:
        params(**fields)
    assert caught.value.error is ErrorCode.BAD_REQUEST and caught.value.detail["field"] == field


def test_empty_lists_are_none():
    assert params(stop_token_ids=[], logit_bias=[], dry_sequence_breakers=[]).logit_bias == ()
    assert params(dry_sequence_breakers=[]).dry_sequence_breakers == ()
