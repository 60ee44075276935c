"""Picks and opens the engine that the configuration asks for. The bindings load here, and only when they are needed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from uma_core.engine.api import Engine, MemoryUse
from uma_core.errors import ErrorCode, UmaError
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
    if options.engine == "auto":
        return _open_chosen(options, path, progress)
    return _open(options.engine, options, path, progress)


def _open(name: str, options: EngineOptions, path: str, progress: Progress | None) -> Engine:
    if name == "graph":
        return importlib.import_module("uma_core.engine.graph.engine").GraphEngine(path, options, progress)  # type: ignore[no-any-return]
    return importlib.import_module("uma_core.engine.llama").LlamaEngine(path, options, progress)  # type: ignore[no-any-return]


def _open_chosen(options: EngineOptions, path: str, progress: Progress | None) -> Engine:
    """The faster engine that serves the model, with the reason among its notes."""
    choice = importlib.import_module("uma_core.engine.choose").choose(path, options, lambda name: _open(name, options, path, progress))
    name, reason = choice
    try:
        engine = _open(name, options, path, progress)
    except UmaError as error:
        if name != "graph" or error.error is not ErrorCode.CONFIG_INVALID:
            raise
        name, reason = "llama", error.message
        engine = _open(name, options, path, progress)
    engine.info = replace(engine.info, notes=(*engine.info.notes, f"engine auto took {name}: {reason}"))
    return engine


def estimate_engine(options: EngineOptions, path: str = "") -> MemoryUse:
    """What `open_engine` would take, found without taking it; also tells files that cannot be loaded. Blocks: reads the header.

    Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY, BINDINGS_MISMATCH, CONFIG_INVALID.
    """
    os.environ.update(options.backend_environ())
    name, path = options.engine, _path(options, path)
    if name == "fake":
        return importlib.import_module("uma_core.engine.fake_open").estimate_fake(options)  # type: ignore[no-any-return]
    if name == "auto":
        name = importlib.import_module("uma_core.engine.choose").choose(path, options).engine
    if name == "graph":
        return importlib.import_module("uma_core.engine.graph.estimate").estimate(path, options)  # type: ignore[no-any-return]
    return importlib.import_module("uma_core.engine.llama_estimate").estimate(path, options)  # type: ignore[no-any-return]


def _path(options: EngineOptions, path: str) -> str:
    return path or options.model or str(default_model_path())
