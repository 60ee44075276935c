"""Turns a chat request of any API family into a generate request to the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uma_core.protocol.ops import N_PREDICTION_MOST
from uma_gateway.body import text
from uma_gateway.exchange import Exchange
from uma_gateway.fields import allowed_tokens, names_in, need, sampling_fields
from uma_gateway.generate import Plan, priority_fields
from uma_gateway.model import Model
from uma_gateway.prompting import Chat, Prompt, render


@dataclass
class Ask:
    """A chat request, apart from its sampling."""

    chat: Chat
    is_stream: bool = False
    wants_usage: bool = False
    n: int = 1
    n_logprobs: int | None = None  # alternatives for each token; None: no log probabilities
    n_prompt_logprobs: int | None = None  # the same for the prompt's tokens
    prediction: str = ""  # a guess of the answer (OpenAI's predicted output)
    has_functions: bool = False  # calls have OpenAI's older form, `function_call`
    stops_told: frozenset[str] = frozenset()  # stop texts that an answer ends with
    echo: str = ""  # the beginning of each answer, which the request already contained


async def count_tokens(exchange: Exchange, model: Model, chat: Chat) -> int:
    """Count the tokens of a conversation's prompt. Raises: GatewayError."""
    prompt = await render(exchange, model, chat)
    return int((await exchange.gateway.daemon.call("count", prompt=prompt.fields["prompt"]))["n_tokens"])


async def plan_chat(exchange: Exchange, model: Model, ask: Ask, body: dict[str, Any], max_tokens: int) -> Plan:
    """Plan the request to the daemon. `body` has the priority and the sampling fields, under the names in fields.py.
    The plan's context is its `Prompt`.

    Raises: GatewayError.
    """
    text(body, "model")  # check it now: otherwise it is read only when the answer begins
    return plan_prompt(exchange, model, ask, await render(exchange, model, ask.chat), body, max_tokens)


def plan_prompt(
    exchange: Exchange, model: Model, ask: Ask, prompt: Prompt, body: dict[str, Any], max_tokens: int
) -> Plan:
    """Plan the request for a prompt that is already written; otherwise as `plan_chat`. Raises: GatewayError."""
    fields = {
        **sampling_fields(body, model, exchange.gateway.config.answers),
        **prompt.fields,
        **priority_fields(exchange, body),
        "max_tokens": max_tokens,
        "stream": ask.is_stream,
        "model": model.fingerprint,
    }
    if prompt.stops:
        fields["stop"] = [*fields.get("stop", ()), *prompt.stops]
    if ask.n_logprobs is not None:
        need(model, "logprobs", "logprobs")
        fields["logprobs"] = ask.n_logprobs
    if ask.n_prompt_logprobs is not None:
        need(model, "prompt_logprobs", "prompt_logprobs")
        fields["prompt_logprobs"] = ask.n_prompt_logprobs
    if ask.n > 1:
        need(model, "n", "n")
        fields["n"] = ask.n
    if ask.prediction and model.can("prediction"):  # it only makes the answer faster, so a daemon may lack it
        fields["prediction"] = ask.prediction[:N_PREDICTION_MOST]
    names = {**names_in(body), "constraint": ask.chat.form_name}
    return Plan(model, allowed_tokens(fields, body, model), prompt, names)
