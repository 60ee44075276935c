"""The share of the memory bandwidth that a decode step reaches: bytes of the weights over the step's time, beside a
plain read of the same memory.

The plain read covers the same pages that the matrix products read, with as many threads, in the same minute; steps and
reads take turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from perf.engines import decode_call
from perf.gguf_file import model_file
from perf.stats import Spread, spread
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch
from uma_core.engine.graph.engine import GraphEngine

PIECE_BYTES = 16 << 20  # read by a thread at a time; small, so that no thread waits long for the last one


@dataclass(frozen=True, slots=True)
class Reached:
    """Speeds in GB/s."""

    step: Spread
    read: Spread
    share: Spread  # speed of each step, divided by that of the read beside it
    n_bytes: int
    isa: str


def measure(model: str, threads: int, rounds: int, isa: str = "auto") -> Reached:
    """Measure one stream at the beginning of its context.

    Blocks: a load, then some hundreds of ms a round. Raises: ValueError if nothing is repacked, or if a step reads
    only some of the weights.
    """
    path = model_file(model)
    options = EngineOptions(engine="graph", threads=threads, n_seq=1, n_ctx=512, prefill_lanes=0, isa=isa)
    engine = GraphEngine(str(path), options)
    try:
        if engine.info.n_expert:
            raise ValueError("a step reads only some of the experts: its bytes are not those of the weights")
        memory = engine.repacked_memory()
        if memory is None:
            raise ValueError("this processor's kernels repack nothing: the products read the file's pages")
        batch = Batch(engine.info.n_batch)
        with ThreadPoolExecutor(threads) as pool:
            turns = list(_turns(engine, batch, memory, pool, rounds))
    finally:
        engine.close()
    steps, reads = ([len(memory) / ns for ns in column] for column in zip(*turns, strict=True))
    shares = [step / read for step, read in zip(steps, reads, strict=True)]
    return Reached(spread(steps), spread(reads), spread(shares), len(memory), engine.info.kernels)


def _turns(
    engine: GraphEngine, batch: Batch, memory: memoryview, pool: ThreadPoolExecutor, rounds: int
) -> Iterator[tuple[int, int]]:
    """Yield (ns of a step, ns of a read), without the first of each, which warms up.

    Each is the median of three calls in a row.
    """
    words = np.frombuffer(memory, np.uint64, len(memory) // 8)
    for i in range(rounds + 1):
        pair = (
            sorted(_step(engine, batch) for _ in range(3))[1],
            sorted(_read(words, pool) for _ in range(3))[1],
        )
        if i:
            yield pair


def _step(engine: GraphEngine, batch: Batch) -> int:
    batch.clear()
    batch.add(1, 0, 0, True)
    ns = decode_call(engine, batch)
    engine.kv_truncate(0, 0)
    return ns


def _read(words: np.ndarray, pool: ThreadPoolExecutor) -> int:
    step = PIECE_BYTES // 8
    begin = time.perf_counter_ns()
    for _ in pool.map(lambda at: int(words[at : at + step].max()), range(0, len(words), step)):
        pass
    return time.perf_counter_ns() - begin
