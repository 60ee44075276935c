"""Turns a request's prompt, tokens or messages into token ids.

Runs on the intake's threads; its only state is compiled templates.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, cast

import jinja2
import numpy as np
from jinja2.ext import loopcontrols

from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.ports import Reading, TextPort
from uma_core.server.operations.embedding import input_tokens
from uma_core.server.operations.infill import gap_tokens, infill_tokens
from uma_core.server.operations.sampling import check_ids
from uma_core.server.operations.template_time import TimedEnvironment, limited
from uma_core.types import Request, TokenId

ENDS_MAX_MESSAGES = 64  # with more, message ends are not computed: that takes a second tokenisation
ENDS_MAX_BYTES = 1 << 16
# for a template to write a chat, besides a millisecond for each message: a thousand times what the slowest known takes
TEMPLATE_S = 2.0
MAX_REASON = 500  # characters: some templates repeat the messages that they refuse, and errors are logged


class Encoded(NamedTuple):
    tokens: Sequence[TokenId] | np.ndarray  # an array if there are many
    # where messages end (see session.events.Submit); for embed and rerank: where each input ends
    message_ends: tuple[int, ...] = ()


def encode(text: Reading, request: Request) -> Encoded:
    """Tokenise. A request for filling in a gap needs a TextPort.

    Blocks for as long as the tokeniser takes. Raises: TEMPLATE_FAILED, UNSUPPORTED, BAD_REQUEST.
    """
    if request.embed is not None:
        return Encoded(*input_tokens(text, request.embed))
    if request.infill is not None:
        return Encoded(infill_tokens(cast(TextPort, text), request.infill, request.max_tokens))
    if request.messages is not None:
        return _encode_chat(text, list(request.messages))
    if request.suffix:
        before = list(request.tokens) if request.tokens is not None else _encode_parts(text, request.prompt, False)
        return Encoded(gap_tokens(cast(TextPort, text), before, text.tokenize(request.suffix, False, False)))
    if request.tokens is not None:
        return Encoded(list(request.tokens))
    return Encoded(_encode_parts(text, request.prompt, True))


def _encode_parts(text: Reading, prompt: str | tuple[str | TokenId, ...] | None, add_special: bool) -> list[TokenId]:
    """Tokenise texts and join token ids. Only a text that comes first gets the tokens that the model puts before a
    prompt.
    """
    tokens: list[TokenId] = []
    parts = (prompt,) if isinstance(prompt, str) else prompt or ()
    for i, part in enumerate(parts):
        tokens += text.tokenize(part, add_special and i == 0, add_special) if isinstance(part, str) else [part]
    return tokens


def echo_text(text: TextPort, request: Request) -> str:
    """Return the prompt as text, for answers that begin with it. Raises: BAD_REQUEST."""
    parts = (request.prompt,) if isinstance(request.prompt, str) else request.prompt or request.tokens or ()
    check_ids(text, (part for part in parts if not isinstance(part, str)), "tokens")  # admission checks too, but later
    data = b"".join(part.encode() if isinstance(part, str) else text.piece(part) for part in parts)
    return data.decode("utf-8", "replace")


def _limit(messages: list[dict[str, Any]]) -> AbstractContextManager[None]:
    """Limit the time that the chat template may take to write these messages."""
    return limited(TEMPLATE_S + len(messages) * 1e-3)


def _encode_chat(text: Reading, messages: list[dict[str, Any]]) -> Encoded:
    template = ChatTemplate.of(text)
    with _limit(messages):
        rendered = template.render(messages, True)
        if rendered in ("", template.bos):
            raise UmaError(ErrorCode.TEMPLATE_FAILED, "the chat template writes nothing for messages of these roles")
        has_bos = bool(template.bos) and rendered.startswith(template.bos)
        tokens = text.tokenize(rendered, not has_bos, True)
        if len(messages) > ENDS_MAX_MESSAGES or len(rendered) > ENDS_MAX_BYTES:
            return Encoded(tokens)
        return Encoded(tokens, _message_ends(text, template, messages, rendered, tokens))


def _message_ends(
    text: Reading, template: ChatTemplate, messages: list[dict[str, Any]], rendered: str, tokens: list[TokenId]
) -> tuple[int, ...]:
    """Tokenise message by message. If the pieces add up to the whole, their ends are exact; else return none."""
    ends, pieces, done = [], [], 0
    for n in range(1, len(messages) + 1):
        try:
            prefix = template.render(messages[:n], False)
        except UmaError:
            continue  # templates may refuse a chat that ends here
        if len(prefix) <= done or not rendered.startswith(prefix):
            continue
        pieces += text.tokenize(
            rendered[done : len(prefix)], not done and not rendered.startswith(template.bos or "\0"), True
        )
        done = len(prefix)
        ends.append(len(pieces))
    return tuple(ends) if tokens[: len(pieces)] == pieces else ()


def apply_template(text: Reading, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
    """Return a chat as text that, sent as `prompt`, gives the same tokens as the messages.

    Raises: TEMPLATE_FAILED.
    """
    template = ChatTemplate.of(text)
    with _limit(messages):
        rendered = template.render(messages, add_generation_prompt)
    if template.bos and rendered.startswith(template.bos) and _adds_bos(text, template.bos):
        return rendered[len(template.bos) :]  # the tokeniser adds it
    return rendered


def _adds_bos(text: Reading, bos: str) -> bool:
    return text.tokenize("", True, False)[:1] == text.tokenize(bos, False, True)


class ChatTemplate:
    """A compiled chat template with its model's special tokens."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self.bos = bos
        self._eos = eos
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise UmaError(ErrorCode.TEMPLATE_FAILED, f"the model's chat template: {error}") from None

    @classmethod
    def of(cls, text: Reading) -> ChatTemplate:
        """Return the model's template, compiled once. Raises: TEMPLATE_FAILED."""
        source = text.chat_template()
        if not source:
            raise UmaError(
                ErrorCode.TEMPLATE_FAILED, "the model has no chat template; send `prompt` instead of `messages`"
            )
        return _compiled(source, text.special("bos"), text.special("eos"))

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        """Raises: TEMPLATE_FAILED."""
        try:
            values = {"messages": messages, "add_generation_prompt": add_generation_prompt}
            return str(self._template.render(values, bos_token=self.bos, eos_token=self._eos))
        except Exception as error:  # the template is the model's code: any exception of it refuses the messages
            why = str(error)[:MAX_REASON]
            raise UmaError(ErrorCode.TEMPLATE_FAILED, f"the chat template refuses these messages: {why}") from None


_compiled = functools.lru_cache(maxsize=8)(ChatTemplate)


@functools.lru_cache(maxsize=1)
def _environment() -> TimedEnvironment:
    """Return an environment for the dialect of chat templates, which is that of Hugging Face's transformers."""
    environment = TimedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
