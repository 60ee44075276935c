"""What is read from a model's header, for tests that have only its path."""

from __future__ import annotations

from contextlib import closing

from uma_core.config.options import EngineOptions
from uma_core.engine.header import Header
from uma_core.engine.llama import encoder
from uma_core.engine.select import choose as module


def is_encoder(path: str) -> bool:
    with closing(Header(path)) as header:
        return encoder.is_encoder(header)


def choose(path: str, options: EngineOptions) -> module.Choice:
    with closing(Header(path)) as header:
        return module.choose(header, options)
