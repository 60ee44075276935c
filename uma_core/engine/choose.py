"""`--engine auto`: which engine computes a model, and why.

Rules: the graph engine is taken only where it understands the whole model and was measured faster on this machine, with these
options. Measuring loads the model twice, so it is done when the calibration is forced, and kept beside it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median
from typing import NamedTuple

import numpy as np

from uma_core import measured
from uma_core.config import EngineOptions
from uma_core.engine.api import Batch, Engine
from uma_core.engine.fingerprint import fingerprint
from uma_core.engine.graph.device import device_of
from uma_core.engine.graph.header import Header
from uma_core.engine.graph.load import check
from uma_core.engine.graph.shape import Unsupported
from uma_core.engine.lib import lib, text
from uma_core.engine.llama_params import n_threads_of
from uma_core.errors import ErrorCode, UmaError

log = logging.getLogger(__name__)

VERSION = 2  # of what is measured; stored verdicts of another version do not count
N_CALLS = 5
CONTEXTS = (256, 2048)
N_CHUNK = 128
NO_WORSE = 0.97  # of llama.cpp's speed, at the least good shape: below is slower, not noise
FASTER = 1.05  # over all shapes; less is not worth another engine
CALM = 1.5  # slowest over fastest call of a shape; more was disturbed by other work

Open = Callable[[str], Engine]  # opens the engine of that name on the model in question
Times = dict[str, tuple[float, ...]]  # ns of the calls of each shape


class Choice(NamedTuple):
    engine: str  # "llama" or "graph"
    reason: str


def choose(path: str, options: EngineOptions, open_as: Open | None = None) -> Choice:
    """Blocks for two loads of the model where the calibration is forced and `open_as` is given; else reads the header.

    Raises: MODEL_LOAD_FAILED.
    """
    missing = missing_in_graph(path, options)
    if missing:
        return Choice("llama", f"the graph engine lacks {missing}")
    stored = measured.folder() / f"engine-{_key(path, options)}.json"
    if options.calibrate == "force" and open_as is not None:
        return _compare(open_as, stored)
    if options.calibrate == "off":
        return Choice("llama", "the engines are not compared while the calibration is off")
    try:
        return Choice(**json.loads(stored.read_text()))
    except (OSError, ValueError, TypeError):
        return Choice("llama", "the engines were not compared on this machine; --calibrate force compares them")


def missing_in_graph(path: str, options: EngineOptions) -> str:
    """What the graph engine lacks for the model, as its header shows; "" where nothing is known to be missing."""
    header = Header(path)
    try:
        check(header, options)
        return ""
    except Unsupported as missing:
        return str(missing)
    finally:
        header.close()


def _compare(open_as: Open, stored: Path) -> Choice:
    times = {}
    for name in ("llama", "graph"):
        try:
            engine = open_as(name)
        except UmaError as error:
            if name == "graph" and error.error is ErrorCode.CONFIG_INVALID:  # what only loading shows: a tensor, an operation of the device
                return Choice("llama", error.message)
            raise
        try:
            times[name] = measure(engine)
        finally:
            engine.close()
    choice, is_calm = verdict(times["llama"], times["graph"])
    if is_calm:
        _save(stored, choice)
    else:
        log.warning("comparing the engines was disturbed by other work on this machine; it is not stored")
    return choice


def verdict(llama: Times, graph: Times) -> tuple[Choice, bool]:
    """The choice by the calls' times, and whether the machine was calm enough to believe it."""
    if any(max(calls) > CALM * min(calls) for times in (llama, graph) for calls in times.values()):
        return Choice("llama", "comparing the engines was disturbed"), False
    ratios = {shape: median(llama[shape]) / median(graph[shape]) for shape in llama}
    worst = min(ratios, key=ratios.__getitem__)
    mean = geometric_mean(ratios.values())
    figures = f"the graph engine has {mean:.2f} times llama.cpp's speed, at the worst {ratios[worst]:.2f} ({worst})"
    return Choice("graph" if ratios[worst] >= NO_WORSE and mean >= FASTER else "llama", figures), True


def measure(engine: Engine) -> Times:
    """Decode ticks of one and of all sequences over short and long contexts, and a prompt's chunk. Leaves every sequence empty."""
    info = engine.info
    longest = info.n_ctx_seq - N_CALLS - 2
    out: Times = {}
    for n_kv in sorted({min(n_kv, longest) for n_kv in CONTEXTS}):
        for n_rows in sorted({1, min(info.n_seq_max, info.n_ctx // (n_kv + N_CALLS + 2))}):
            out[f"{n_rows} streams at {n_kv}"] = _ticks(engine, n_rows, n_kv)
    n = min(N_CHUNK, info.n_batch, longest)
    out[f"{n} tokens of a prompt"] = _chunks(engine, n)
    return out


def _ticks(engine: Engine, n_rows: int, n_kv: int) -> tuple[float, ...]:
    batch = Batch(n_rows)
    for seq_id in range(n_rows):
        engine.pretend(seq_id, n_kv)
    calls = []
    for step in range(N_CALLS + 1):
        batch.clear()
        for seq_id in range(n_rows):
            batch.add(0, n_kv + step, seq_id, True)
        calls.append(engine.decode(batch, [None] * n_rows).call_ns)
    for seq_id in range(n_rows):
        engine.kv_truncate(seq_id, 0)
    return tuple(calls[1:])  # the first builds its graph


def _chunks(engine: Engine, n: int) -> tuple[float, ...]:
    batch = Batch(n)
    calls = []
    for _ in range(N_CALLS + 1):
        batch.clear()
        batch.extend(np.zeros(n, np.int32), 0, 0, True)
        calls.append(engine.decode(batch, [None]).call_ns)
        engine.kv_truncate(0, 0)
    return tuple(calls[1:])


def _key(path: str, options: EngineOptions) -> str:
    shape = (options.n_ctx, options.n_seq, options.n_batch, options.n_ubatch, options.kv_mode, options.kv_type, options.prefill_lanes)
    kernels = (options.cpu_kernels, options.load_mode, options.moe_top_k)
    facts = (VERSION, fingerprint(path), device_of(options).description, n_threads_of(options), text(lib.ggml_commit()), *kernels, shape)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _save(stored: Path, choice: Choice) -> None:
    """Losing it costs no more than another comparison: a failure to store it is only worth a warning."""
    try:
        measured.save(stored, choice._asdict())
    except OSError as error:
        log.warning("the comparison of the engines was not stored: %s", error)
