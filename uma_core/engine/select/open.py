"""Picks and opens the engine that the configuration asks for. The bindings are loaded here, when they are needed."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from uma_core.engine.api import Engine, MemoryUse, Progress
from uma_core.engine.select.trial import Trial
from uma_core.errors import ErrorCode, UmaError
from uma_core.machine import over_quota
from uma_core.models import default_model_path

if TYPE_CHECKING:
    from uma_core.config.options import EngineOptions
    from uma_core.engine.select.choose import Choice

ENCODER = "encoder"  # beside the names of `engine.engine`: models that cannot continue a text have their own engine
# architectures that read the hidden states of another model
ONLY_DRAFT = {
    "eagle3": "an EAGLE 3 model, which drafts for another: give that one, and this file with speculation.draft_model",
    "dflash": "a DFlash model, which drafts for another; such models are not served",
}


def open_engine(
    options: EngineOptions,
    path: str = "",
    progress: Progress | None = None,
    trial: Trial | None = None,
    in_use: str = "llama",
) -> Engine:
    """Load `path` (default: the configured model, else the embedded one). Blocks for seconds; releases the GIL.

    With a `trial`, `auto` compares the engines if that is due. Without one it uses the current choice, and `in_use`
    where there is none.

    Raises: MODEL_LOAD_FAILED, ADAPTER_LOAD_FAILED, INSUFFICIENT_MEMORY, BINDINGS_MISMATCH, CONFIG_INVALID.
    """
    os.environ.update(options.backend_environ())
    path = _path(options, path)
    if options.engine == "fake":
        from uma_core.engine.fake.open import open_fake

        return open_fake(options, path)
    from uma_core.engine.devices import missing_gpu

    options, choice, note = _choose(options, path, in_use)
    engine = (
        _open_chosen(choice, options, path, progress, trial)
        if choice.reason
        else _open(choice.engine, options, path, progress)
    )
    missing = missing_gpu() if options.n_gpu_layers else ""
    engine.info = replace(
        engine.info, notes=(*engine.info.notes, *filter(None, (note, missing, over_quota(options.threads))))
    )
    return engine


def _choose(options: EngineOptions, path: str, in_use: str) -> tuple[EngineOptions, Choice, str]:
    """Choose the engine by the file's header, which is read once. Also returns the options as the model allows them,
    and a note about that.

    Raises: MODEL_LOAD_FAILED.
    """
    from uma_core.engine.header import Header
    from uma_core.engine.llama.encoder import is_encoder
    from uma_core.engine.select.choose import Choice, choose

    with closing(Header(path)) as header:
        if is_encoder(header):
            return options, Choice(ENCODER, ""), ""
        if header.arch in ONLY_DRAFT:  # llama.cpp opens some, but alone they write nonsense
            raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {ONLY_DRAFT[header.arch]}", path=path)
        options, note = as_trained(options, header.n_ctx_trained)
        choice = choose(header, options, in_use) if options.engine == "auto" else Choice(options.engine, "")
        return options, choice, note


def as_trained(options: EngineOptions, n_trained: int) -> tuple[EngineOptions, str]:
    """Limit the cells to those that the sequences can use: beyond its trained context a model writes nonsense. Also
    returns a note about it; "": nothing was changed.
    """
    if not 0 < n_trained * options.n_seq < options.n_ctx:
        return options, ""
    n_ctx = n_trained * options.n_seq
    note = (
        f"engine.n_ctx {options.n_ctx} is lowered to {n_ctx}: {options.n_seq} sequences of {n_trained} tokens each, "
        "the model's trained context"
    )
    return replace(options, n_ctx=n_ctx), note


def _open(name: str, options: EngineOptions, path: str, progress: Progress | None) -> Engine:
    if name == ENCODER:
        from uma_core.engine.llama.encoder import EncoderEngine

        return EncoderEngine(path, options, progress)
    if name != "graph" and options.deterministic:
        message = "llama.cpp's engine does not support engine.deterministic: its results depend on what shares a call"
        raise UmaError(ErrorCode.CONFIG_INVALID, message, option="engine.deterministic")
    if name == "graph":
        from uma_core.engine.graph.engine import GraphEngine

        return GraphEngine(path, options, progress)
    from uma_core.engine.llama.engine import LlamaEngine

    return LlamaEngine(path, options, progress)


def _open_chosen(
    choice: Choice, options: EngineOptions, path: str, progress: Progress | None, trial: Trial | None
) -> Engine:
    """Open the faster engine that can serve the model, with the reason among its notes."""
    engine = None
    if choice.is_due and trial is not None:
        choice, engine = _compared(options, path, progress, trial)
    name, reason = choice.engine, choice.reason
    if name == "llama" and options.deterministic:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"engine.deterministic: {reason}", option="engine.deterministic")
    try:
        engine = engine or _open(name, options, path, progress)
    except UmaError as error:
        if name != "graph" or error.error is not ErrorCode.CONFIG_INVALID or options.deterministic:
            raise
        name, reason = "llama", error.message
        engine = _open(name, options, path, progress)
    engine.info = replace(engine.info, notes=(*engine.info.notes, f"engine auto took {name}: {reason}"))
    return engine


def _compared(
    options: EngineOptions, path: str, progress: Progress | None, trial: Trial
) -> tuple[Choice, Engine | None]:
    """Measure, choose, and store the choice for later starts. Also returns the chosen engine if it is open already."""
    from uma_core.engine.select.choose import Choice, store
    from uma_core.engine.select.compare import Outcome, compare

    need = _estimate("llama", options, path)
    try:
        needs = (need, _estimate("graph", options, path))
    except UmaError as error:  # a problem that the header does not show
        if error.error is not ErrorCode.CONFIG_INVALID:
            raise
        found = Outcome(Choice("llama", error.message), None, is_lasting=True)
    else:
        found = compare(lambda name: _open(name, options, path, progress), options, needs, trial)
    if found.is_lasting:
        store(path, options, found.choice)
    return found.choice, found.engine


def estimate_engine(options: EngineOptions, path: str = "", in_use: str = "llama") -> MemoryUse:
    """Estimate the memory of `open_engine` without allocating it. Also finds files that cannot be loaded. Blocks: reads
    the header.

    Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY, BINDINGS_MISMATCH, CONFIG_INVALID.
    """
    os.environ.update(options.backend_environ())
    path = _path(options, path)
    if options.engine == "fake":
        from uma_core.engine.fake.open import estimate_fake

        return estimate_fake(options)
    options, choice, _ = _choose(options, path, in_use)
    return _estimate(choice.engine, options, path)


def _estimate(name: str, options: EngineOptions, path: str) -> MemoryUse:
    from uma_core.engine.graph.estimate import estimate as graph_estimate
    from uma_core.engine.llama.estimate import estimate as llama_estimate
    from uma_core.engine.lora import check_adapters

    if name == ENCODER:
        return llama_estimate(path, options, is_encoding=True)
    use = (graph_estimate if name == "graph" else llama_estimate)(path, options)
    return use._replace(weights=use.weights + check_adapters(options, path))


def _path(options: EngineOptions, path: str) -> str:
    return path or options.model or str(default_model_path())
