"""Picks and opens the engine that the configuration asks for. The bindings load here, and only when they are needed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from uma_core.engine.api import Engine, MemoryUse
from uma_core.models import default_model_path

if TYPE_CHECKING:
    from uma_core.config import EngineOptions

Progress = Callable[[float], bool]  # gets the loaded share, 0..1, on the loading thread; False gives the load up


def open_engine(options: EngineOptions, path: str = "", progress: Progress | None = None) -> Engine:
    """Load `path` (default: the configured model, else the embedded one). Blocks for seconds; releases the GIL.

    Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY, BINDINGS_MISMATCH, CONFIG_INVALID.
    """
    os.environ.update(options.backend_environ())
    path = _path(options, path)
    if options.engine == "fake":
        return importlib.import_module("uma_core.engine.fake_open").open_fake(options, path)  # type: ignore[no-any-return]
    if options.engine == "graph":
        return importlib.import_module("uma_core.engine.graph.engine").GraphEngine(path, options, progress)  # type: ignore[no-any-return]
    return importlib.import_module("uma_core.engine.llama").LlamaEngine(path, options, progress)  # type: ignore[no-any-return]


def estimate_engine(options: EngineOptions, path: str = "") -> MemoryUse:
    """What `open_engine` would take, found without taking it; also tells files that cannot be loaded. Blocks: reads the header.

    Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY, BINDINGS_MISMATCH, CONFIG_INVALID.
    """
    os.environ.update(options.backend_environ())
    if options.engine == "fake":
        return importlib.import_module("uma_core.engine.fake_open").estimate_fake(options)  # type: ignore[no-any-return]
    if options.engine == "graph":
        return importlib.import_module("uma_core.engine.graph.estimate").estimate(_path(options, path), options)  # type: ignore[no-any-return]
    return importlib.import_module("uma_core.engine.llama_estimate").estimate(_path(options, path), options)  # type: ignore[no-any-return]


def _path(options: EngineOptions, path: str) -> str:
    return path or options.model or str(default_model_path())
