"""Modules that are imported when a test first uses them.

Every process of a run imports all test files. Ray and other vendors' clients take seconds of a core to import, and only
the process that runs their tests needs them.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import pytest


class Late(ModuleType):
    """Stands for the module of this name: `openai = Late("openai")`. `monkeypatch` needs the name itself instead."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest looks for marks in everything that a test file has
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the extra [cluster] has no wheel for this platform"
)
