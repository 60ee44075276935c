"""`--engine auto`: which engine computes a model, why, and where the choice is stored.

Rules: the graph engine is chosen only if it understands the whole model and was measured faster on this machine, with
these options, or if a reload finds it in use. compare.py does the measuring. A model without a stored choice gets the
engine in use, at a start llama.cpp's, and a comparison is due.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import NamedTuple

from uma_core import measured
from uma_core.config.options import EngineOptions
from uma_core.engine.devices import device_names
from uma_core.engine.fingerprint import fingerprint
from uma_core.engine.graph.device import device_of
from uma_core.engine.graph.load import check
from uma_core.engine.graph.shape import Unsupported
from uma_core.engine.header import Header
from uma_core.engine.lib import lib, text
from uma_core.engine.llama.params import n_threads_of

log = logging.getLogger(__name__)

VERSION = 6  # version of the measurement; stored choices of another version do not count


class Choice(NamedTuple):
    engine: str  # "llama" or "graph"
    reason: str
    is_due: bool = False  # the engines should be compared if possible; until then this choice holds


def choose(header: Header, options: EngineOptions, in_use: str = "llama") -> Choice:
    """Choose without loading the model. `in_use`: the engine to take where no comparison is stored."""
    missing = missing_in_graph(header, options)
    if missing:
        return Choice("llama", f"the graph engine does not support {missing}")
    if options.deterministic:
        return Choice("graph", "engine.deterministic is its promise")
    if options.calibrate == "off":
        return Choice("llama", "the engines are not compared while the calibration is off")
    try:
        stored = stored_in(header.path, options)
        values = measured.load(stored)
        known = Choice(values["engine"], values["reason"])
    except (OSError, ValueError, KeyError) as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("ignoring the stored comparison %s, which is not usable: %s", stored.name, error)
        why = "the engines were not compared yet" if in_use == "llama" else "it was in use, and no comparison is stored"
        return Choice(in_use, f"{why}; the daemon's next start with this model compares them", True)
    return known._replace(is_due=options.calibrate == "force")


def missing_in_graph(header: Header, options: EngineOptions) -> str:
    """Return what the graph engine does not support, judged by the header; "" if nothing is known to be missing."""
    try:
        check(header, options)
    except Unsupported as missing:
        return str(missing)
    return ""


def store(path: str, options: EngineOptions, choice: Choice) -> None:
    """Store the choice. A failure is only worth a warning: its only effect is another comparison."""
    try:
        measured.save(stored_in(path, options), {"engine": choice.engine, "reason": choice.reason})
    except OSError as error:
        log.warning("the comparison of the engines was not stored: %s", error)


def stored_in(path: str, options: EngineOptions) -> Path:
    """Return the file that stores the choice, by the model, the machine, and all else that changes engines' times.

    Raises: FileNotFoundError for a user without a home folder.
    """
    shape = (
        options.n_ctx,
        options.n_seq,
        options.n_batch,
        options.n_ubatch,
        options.kv_mode,
        options.kv_type,
        options.prefill_lanes,
    )
    kernels = (options.cpu_kernels, options.isa, options.load_mode, options.moe_top_k)
    device = device_of(options)
    facts = (
        VERSION,
        fingerprint(path),
        *((device.description,) if device.is_cpu else device_names()),  # llama.cpp computes on all GPUs
        n_threads_of(options),
        text(lib.ggml_commit()),
        *kernels,
        shape,
    )
    return measured.folder() / f"engine-{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.json"
