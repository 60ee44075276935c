"""Engines that load weights in one way or another, and what they compute."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np

from tests.engine.conftest import DRAFT
from tests.engine.drive import read, step
from tests.engine.graph.conftest import SMALL
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.header import Header
from uma_core.engine.kernels import use_kernels
from uma_core.engine.lib import lib

PROMPT = np.arange(40, 80, dtype=np.int32)


def opened(path: str, load_mode: str, **options: object) -> closing[GraphEngine]:
    return closing(GraphEngine(path, replace(SMALL, load_mode=load_mode, **options)))  # type: ignore[arg-type]


def logits_of(engine: GraphEngine) -> np.ndarray:
    """Return the logits after a prompt of several rows, then of one row and of four."""
    rows = []
    for seq in range(4):
        read(engine, seq, PROMPT + seq)
    step(engine, [(0, 50)])
    rows.append(engine.logits(0).copy())
    step(engine, [(seq, 60 + seq) for seq in range(4)])
    rows.extend(engine.logits(i).copy() for i in range(4))
    return np.array(rows)


def has_repacked() -> bool:
    """Whether this processor's kernels have a layout of their own for weights."""
    with closing(Header(DRAFT)) as header:
        return use_kernels(True) != "" and int(lib.uma_accel_repacked_bytes(header.tensor("token_embd.weight"))) > 0
