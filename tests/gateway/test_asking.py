"""Requests to the daemon for chats whose prompt is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from uma_core.protocol.ops import N_PREDICTION_MOST
from uma_gateway.asking import Ask, plan_prompt
from uma_gateway.config import Config
from uma_gateway.errors import GatewayError
from uma_gateway.exchange import Exchange
from uma_gateway.generate import Plan
from uma_gateway.model import Model
from uma_gateway.parsing import Plain
from uma_gateway.prompting import Chat, Prompt

ALL = frozenset({"logprobs", "prompt_logprobs", "n", "prediction"})


def planned(ask: Ask, body: dict[str, Any], stops: list[str], can: frozenset[str] = ALL) -> Plan:
    caller = SimpleNamespace(key=SimpleNamespace(priority="interactive"))
    gateway = SimpleNamespace(config=Config())
    exchange = SimpleNamespace(gateway=gateway, caller=caller, header=lambda name: "")
    model = SimpleNamespace(fingerprint="f", can=can.__contains__, n_vocab=8, adapters=[])
    prompt = Prompt({"prompt": "Hi"}, stops, Plain)
    return plan_prompt(cast("Exchange", exchange), cast("Model", model), ask, prompt, body, 9)


def test_a_template_s_stop_texts_come_after_the_request_s() -> None:
    fields = planned(Ask(Chat([])), {"stop": ["a"]}, ["<|end|>"]).fields
    assert fields["stop"] == ["a", "<|end|>"]
    assert (fields["prompt"], fields["max_tokens"], fields["stream"], fields["model"]) == ("Hi", 9, False, "f")
    assert not {"n", "logprobs", "prompt_logprobs", "prediction", "priority"} & fields.keys()


def test_zero_alternatives_are_log_probabilities_too() -> None:
    fields = planned(Ask(Chat([]), n=2, n_logprobs=0, n_prompt_logprobs=0), {}, []).fields
    assert (fields["n"], fields["logprobs"], fields["prompt_logprobs"]) == (2, 0, 0) and "stop" not in fields


@pytest.mark.parametrize(("ask", "param"), [({"n": 2}, "n"), ({"n_logprobs": 1}, "logprobs")])
def test_what_a_daemon_cannot_do_is_named(ask: dict[str, Any], param: str) -> None:
    with pytest.raises(GatewayError) as caught:
        planned(Ask(Chat([]), **ask), {}, [], frozenset())
    assert caught.value.param == param


def test_a_daemon_without_predictions_answers_all_the_same() -> None:
    ask = Ask(Chat([]), prediction="a" * (N_PREDICTION_MOST + 1))
    assert len(planned(ask, {}, []).fields["prediction"]) == N_PREDICTION_MOST
    assert "prediction" not in planned(ask, {}, [], frozenset()).fields
