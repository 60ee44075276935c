"""Prompts that no chat template writes: texts and token ids, with the form that their answers may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uma_gateway.chat.schema import typed, unnamed
from uma_gateway.errors import invalid, unsupported
from uma_gateway.fields import need
from uma_gateway.model import Model

MOST_PROMPTS = 128  # prompts of one request
Prompt = str | list[int | str]  # a text or token ids; token ids mixed with texts are llama-server's form


def read_prompts(body: Mapping[str, Any]) -> list[Prompt]:
    """Read one prompt or several. Raises: GatewayError."""
    value: Any = body.get("prompt")
    if isinstance(value, str | dict) or (_is_mixed(value) and int in map(type, value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise invalid("`prompt` is required: a string, token ids, or an array of either", "prompt")
    prompts = [plain_prompt(item) for item in value]
    if not all(isinstance(item, str) or _is_mixed(item) for item in prompts):
        raise invalid("`prompt` must hold strings, or arrays of token ids", "prompt")
    if len(prompts) > MOST_PROMPTS:
        raise invalid(f"`prompt` may hold {MOST_PROMPTS} prompts", "prompt")
    return prompts


def _is_mixed(value: Any) -> bool:
    """Whether the elements are token ids, with or without texts between them."""
    return isinstance(value, list) and bool(value) and {int, str}.issuperset(map(type, value))


def plain_prompt(value: Any, name: str = "prompt") -> Any:
    """Return the text of a prompt that is an object, as llama-server's clients write it; other prompts unchanged.

    Raises: GatewayError.
    """
    if not isinstance(value, dict):
        return value
    if value.get("multimodal_data"):
        raise unsupported(f"`{name}.multimodal_data` is not supported: the daemon serves text", name)
    if not isinstance(value.get("prompt_string"), str):
        raise invalid(f"`{name}.prompt_string` must be a string", name)
    return value["prompt_string"]


def prompt_field(model: Model, prompt: Prompt) -> dict[str, Any]:
    """Return the field of a plain prompt. An empty prompt is replaced by the BOS token, or else EOS.

    Raises: GatewayError if the model has neither.
    """
    if prompt:
        is_tokens = {int}.issuperset(map(type, prompt))
        return {"tokens" if is_tokens else "prompt": prompt}
    start = model.special_id("bos", "eos")
    if start is None:
        raise invalid("`prompt` must not be empty: the model has no token that begins a text", "prompt")
    return {"tokens": [start]}


def gap_field(model: Model, prompt: Prompt, suffix: str) -> dict[str, Any]:
    """Return the fields of a plain prompt, with the text after the gap to be filled in, if there is any.

    Raises: GatewayError.
    """
    if not suffix:
        return prompt_field(model, prompt)
    need(model, "suffix", "suffix")
    if not model.has_infill:
        raise unsupported("`suffix` is not supported: the model has no tokens for filling in", "suffix")
    if not prompt:  # the cursor is at the beginning of a file; the token that begins a text would be a part of it
        return {"infill": {"prefix": "", "suffix": suffix}}
    return {**prompt_field(model, prompt), "suffix": suffix}


def constraint_field(
    model: Model,
    form: dict[str, Any] | bool | None,
    grammar: str,
    param: str,
    other: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the constraint for a plain prompt. `form`: a JSON schema; True: any object; None: any text.
    `other`: another constraint in the daemon's form. `param` names the field at fault. Raises: GatewayError.
    """
    if form is not None:
        other = {"json_schema": typed(unnamed(form))} if isinstance(form, dict) else {"json": True}
    if other is None and not grammar:
        return {}
    if other is not None and grammar:
        raise invalid(f"`grammar` conflicts with `{param}`", "grammar")
    need(model, "constraint", "grammar" if grammar else param)
    return {"constraint": other or {"gbnf": grammar}}
