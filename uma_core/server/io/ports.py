"""What the I/O side needs from the rest of the daemon: two small interfaces and a table of callables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from uma_core.config.options import Config
from uma_core.engine.api import ModelFacts
from uma_core.errors import UmaError
from uma_core.session.events import Command, Event
from uma_core.types import SamplingParams, TokenId


class ComputePort(Protocol):
    """The compute side. It has `Loop.wake`, and calls it after it has put events into `events`."""

    events: deque[Event]

    @property
    def is_in_call(self) -> bool:
        """Whether a decode call is running. For any thread."""

    def submit(self, command: Command) -> None:
        """For any thread; never blocks."""


class ModelNamed(Protocol):
    """The part of EngineInfo that identifies a model and its context size."""

    @property
    def engine(self) -> str: ...

    @property
    def model_path(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def n_ctx_seq(self) -> int: ...


class Reading(Protocol):
    """Turns text into tokens and back. For any thread."""

    @property
    def n_vocab(self) -> int: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[TokenId]: ...

    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes: ...

    def chat_template(self) -> str | None: ...

    def special(self, name: str) -> str:
        """Text of the "bos" or "eos" token; "" if the model has none."""

    def facts(self) -> ModelFacts: ...


class TextPort(Reading, Protocol):
    """The part of an engine that handles text. For any thread. `Engine` implements it."""

    @property
    def info(self) -> ModelNamed: ...

    def prepare(self, params: SamplingParams) -> None:
        """Do the slow preparation for these parameters ahead of time. Raises: BAD_REQUEST if this model cannot."""

    def is_eog(self, token: TokenId) -> bool: ...

    def is_control(self, token: TokenId) -> bool: ...


# takes the reply's fields, or their JSON without braces; called once, by any thread
Answer = Callable[[dict[str, Any] | bytes | UmaError], None]
EncodedAnswer = Callable[[bytes | UmaError], None]  # the same, for JSON only


@dataclass
class Services:
    """What handlers need from the daemon.

    Nothing here may wait for the compute thread, except `admin`, which answers later.
    """

    config: Callable[[], Config]  # the one in use
    text: Callable[[], TextPort | None]  # of the model in use; None: no model
    gate: Callable[[], UmaError | None]  # why no generate request is accepted now: loading, draining, stopping
    status: Callable[[], dict[str, Any]]
    health: Callable[[], dict[str, Any]]
    metrics: Callable[[], dict[str, Any]]
    prometheus: Callable[[], str]
    sessions: Callable[[], list[dict[str, Any]]]
    props: Callable[[bool], dict[str, Any]]  # for a trusted peer or not; raises MODEL_NOT_LOADED
    admin: Callable[[str, dict[str, Any], Answer], None]  # operation, its fields, where the answer goes
