"""Fields of a body: which are refused, and what reaches the daemon."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from uma_core.protocol.messages import decode
from uma_gateway.apis.ollama import options_of as ollama_options
from uma_gateway.config import AnswerOptions
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.fields import _SAMPLERS, PARAMS, _in_range, logit_bias, sampling_fields
from uma_gateway.jsons import parse_object


def test_a_token_of_more_than_64_bits_is_none():
    with pytest.raises(GatewayError) as caught:
        logit_bias({"99999999999999999999": 1})
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "logit_bias")
    assert logit_bias({"5": 1, "word": -1}) == [[5, 1], ["word", -1]]


class Counted(list):
    n_read = 0

    def __iter__(self):
        for item in super().__iter__():
            self.n_read += 1
            yield item


def test_an_endless_list_of_samplers_is_not_compared_with_itself():
    """Before, 200,000 of them held up all streams for minutes."""
    given = Counted(f"s{i}" for i in range(1000))
    named = _in_range({"samplers": given})["samplers"]
    assert given.n_read == len(named) == len(_SAMPLERS) + 1  # the daemon refuses them
    assert _in_range({"samplers": ["top_k", "temp", "tfs_z"] * 1000})["samplers"] == ["top_k", "temperature"]


@pytest.mark.parametrize("given", [{str(i): 1 for i in range(20_001)}, [[i, 1] for i in range(20_001)]])
def test_more_biases_than_the_daemon_takes_are_refused_before_they_are_read(given):
    with pytest.raises(GatewayError, match="at most 20000 items") as caught:
        logit_bias(given)
    assert caught.value.param == "logit_bias"


def test_a_long_text_of_biases_is_refused_before_it_is_read():
    with pytest.raises(GatewayError, match="at most 20000 items"):
        ollama_options({"options": {"logit_bias": "x," * 20_000}})


def test_of_a_name_that_appears_twice_the_last_value_counts():
    assert parse_object(b'{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}', 8) == {"a": 3, "b": {"c": 2}}


GIVEN = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "frequency_penalty": 0.5, "presence_penalty": -0.5,
    "repeat_penalty": 1.5, "repetition_penalty": 1.25, "repeat_last_n": 9, "typical_p": 0.75, "min_keep": 3,
    "top_n_sigma": 2.5, "xtc_probability": 0.5, "xtc_threshold": 0.25, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0,
    "dry_multiplier": 0.75, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 8,
    "dry_sequence_breakers": ["a"], "mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.25, "adaptive_target": 0.5,
    "adaptive_decay": 0.25, "samplers": ["top_k", "temperature"], "banned_strings": ["no"], "bad_words": ["never"],
    "stop_token_ids": [5], "min_tokens": 4, "ignore_eos": True, "cache_prompt": False, "post_sampling_probs": True,
    "timeout_ms": 900, "overflow": "error", "slo": {"target_ttft_ms": 90},
}  # fmt: skip


@pytest.mark.parametrize("param", PARAMS, ids=lambda param: param.name)
def test_what_a_program_asks_for_reaches_the_daemon(param):
    """It has the daemon's name for the field, and the value in a form that the daemon takes."""
    model = SimpleNamespace(can=lambda field: True, adapters=[])
    company = {"dry_multiplier": 0.75} if param.name.startswith("dry") else {}
    company |= {"mirostat": 2} if param.name.startswith("mirostat") else {}
    company |= {"logprobs": 1} if param.name == "post_sampling_probs" else {}
    fields = sampling_fields({**company, param.name: GIVEN[param.name]}, model, AnswerOptions())
    assert fields[param.wire or param.name] == GIVEN[param.name]
    assert decode({"prompt": "x", **({"logprobs": 1} if "logprobs" in company else {}), **fields}, None).request


@pytest.mark.parametrize(("given", "sent"), [(7, 7), (-1, None), (0xFFFFFFFF, None), (-2, 0xFFFFFFFE)])
def test_a_seed_that_means_none_is_not_sent(given, sent):
    """llama-server shows 4294967295 for a seed drawn at random, and clients send its settings back."""
    model = SimpleNamespace(can=lambda field: True, adapters=[])
    assert sampling_fields({"seed": given}, model, AnswerOptions()).get("seed") == sent
