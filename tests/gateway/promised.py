"""The types of answers that other vendors' packages promise, by name: "openai.types.chat:ChatCompletion"."""

from __future__ import annotations

import functools
import pkgutil
from typing import Any

from pydantic import TypeAdapter


@functools.cache  # to build one takes up to 0.07 s, and a stream has many events
def adapter_of(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(pkgutil.resolve_name(name))
