"""The cost of batches for a model on this machine: decode steps of increasing numbers of rows, and prompt chunks of
increasing numbers of tokens.

One engine in one process. Calls of all sizes take turns, and the fastest of each counts: other work makes a call
slower, never faster. Only ratios are printed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perf.engines import decode_call
from perf.gguf_file import model_file
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch
from uma_core.engine.select.open import estimate_engine, open_engine

ROWS = (1, 2, 4, 8, 16)
CHUNKS = (16, 32, 64, 128, 256, 512, 1024)
N_WARM = 2
NEAR = 0.95  # of the best prefill speed; a larger chunk is then not worth its memory
# streams hardly slow each other down in a step that takes at most this many times a single row's step
CHEAP = 1.5


@dataclass(frozen=True, slots=True)
class Size:
    """Calls of one size."""

    n: int  # rows, or tokens
    ms: float  # of the fastest call
    speed: float  # tokens/s, as a multiple of the smallest size's
    compute_mib: float = 0.0  # of the engine's buffers, with chunks of this size


@dataclass(frozen=True, slots=True)
class Found:
    rows: tuple[Size, ...]
    chunks: tuple[Size, ...]

    @property
    def n_seq(self) -> int:
        """The most rows whose step is still cheap."""
        return max(size.n for size in self.rows if size.ms <= CHEAP * self.rows[0].ms)

    @property
    def n_ubatch(self) -> int:
        """The smallest chunk that reads nearly as fast as the fastest."""
        best = max(size.speed for size in self.chunks)
        return min(size.n for size in self.chunks if size.speed >= NEAR * best)


def measure(model: str, options: EngineOptions, depth: int, rounds: int) -> Found:
    """Measure all sizes. Blocks. `depth`: positions that every stream holds, and that precede the longest chunk;
    shorter chunks begin later, so that their mean depth is the same.
    """
    path = str(model_file(model))
    n_most = max(CHUNKS)
    depths = [depth] * max(ROWS) + [depth + (n_most - n) // 2 for n in CHUNKS]
    n_seq = len(depths)
    sizes = replace(
        options,
        model=path,
        n_seq=n_seq,
        n_ctx=n_seq * (depth + n_most + 64),
        n_batch=n_most,
        n_ubatch=n_most,
        prefill_lanes=1,
    )
    engine = open_engine(sizes)
    batch = Batch(n_most)

    def call(n: int, is_chunk: bool) -> float:
        seq_ids = [max(ROWS) + CHUNKS.index(n)] if is_chunk else list(range(n))
        batch.clear()
        if is_chunk:
            batch.extend(np.arange(n, dtype=np.int32) % engine.info.n_vocab, depths[seq_ids[0]], seq_ids[0], True)
        else:
            for seq_id in seq_ids:
                batch.add(seq_id + 1, depth, seq_id, True)
        ns = decode_call(engine, batch)
        for seq_id in seq_ids:
            engine.kv_truncate(seq_id, depths[seq_id])
        return ns / 1e6

    try:
        for seq_id, n in enumerate(depths):
            engine.fake_context(seq_id, n)
        cases = [(n, False) for n in ROWS] + [(n, True) for n in CHUNKS]
        times: dict[tuple[int, bool], list[float]] = {case: [] for case in cases}
        for i in range(N_WARM + rounds):
            for case in cases:
                ms = call(*case)
                if i >= N_WARM:
                    times[case].append(ms)
    finally:
        engine.close()
    fastest = {case: min(found) for case, found in times.items()}
    memory = {
        n: estimate_engine(replace(options, model=path, n_batch=n, n_ubatch=n), path).compute / 2**20 for n in CHUNKS
    }
    return Found(_sizes(fastest, ROWS, False, {}), _sizes(fastest, CHUNKS, True, memory))


def _sizes(
    fastest: dict[tuple[int, bool], float], sizes: tuple[int, ...], is_chunk: bool, memory: dict[int, float]
) -> tuple[Size, ...]:
    first = sizes[0] / fastest[sizes[0], is_chunk]
    return tuple(Size(n, fastest[n, is_chunk], n / fastest[n, is_chunk] / first, memory.get(n, 0.0)) for n in sizes)


def table(found: Found) -> str:
    """Return the result as Markdown, with ratios only."""
    one = found.rows[0].ms
    lines = ["| streams in a step | the step takes, x one stream's | tokens/s, x one stream's |", "| --- | --- | --- |"]
    lines += [f"| {size.n} | {size.ms / one:.2f} | {size.speed:.2f} |" for size in found.rows]
    first = found.chunks[0].n
    lines += ["", f"| tokens of a chunk | reads, x a chunk of {first} | compute buffers, MiB |", "| --- | --- | --- |"]
    lines += [f"| {size.n} | {size.speed:.2f} | {size.compute_mib:.0f} |" for size in found.chunks]
    return "\n".join(lines)


def advice(found: Found) -> str:
    return (
        f"--parallel {found.n_seq}: the most streams whose step takes at most {CHEAP:g} times one stream's\n"
        f"--n-batch {found.n_ubatch} --n-ubatch {found.n_ubatch}: the shortest chunk that reads within "
        f"{100 - 100 * NEAR:.0f} % of the best"
    )
