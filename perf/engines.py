"""Our two engines on one model in one process, call by call in turn: llama.cpp's graph with and without our kernels,
and our own graph.

Every sequence holds the same made-up K and V in each engine. Reading them costs the usual time; their values do not
matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from perf.gguf_file import model_file
from perf.stats import percentile
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, DecodeStatus, Engine, Transfer
from uma_core.engine.kernels import ALL_KERNELS
from uma_core.engine.lib import lib
from uma_core.engine.select.open import open_engine

VARIANTS = ("llama.cpp", "llama.cpp + our kernels", "graph")
FOREVER = 2**62
N_UBATCH = 256
BASE = EngineOptions(n_ubatch=N_UBATCH)
N_WARM = 3  # the first call builds its graph; ggml's CUDA backend records it in later ones


@dataclass(frozen=True, slots=True)
class Case:
    """What is timed: a decode tick of some streams, each at a context; or a chunk of a prompt at a depth."""

    kind: str  # "decode", "shared" (all streams begin with the same prefix), "prefill"
    n: int  # streams, or tokens of the chunk
    n_kv: int

    @property
    def name(self) -> str:
        unit = "tokens" if self.kind == "prefill" else "streams"
        return f"{self.kind} {self.n} {unit} at {self.n_kv}"


CASES = (
    Case("decode", 1, 256),
    Case("decode", 4, 256),
    Case("decode", 1, 2048),
    Case("decode", 4, 2048),
    Case("decode", 8, 2048),
    Case("decode", 1, 8192),
    Case("decode", 8, 8192),
    Case("shared", 8, 8192),
    Case("prefill", N_UBATCH, 0),
    Case("prefill", N_UBATCH, 2048),
)


@dataclass(frozen=True, slots=True)
class Timing:
    case: Case
    variant: str
    ms: float  # of one call, median
    p10_ms: float
    p90_ms: float

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.case.n / self.ms


class Bench:
    """Owns one engine of each kind over the same file."""

    def __init__(
        self,
        model: str,
        threads: int,
        cases: tuple[Case, ...],
        variants: tuple[str, ...] = VARIANTS,
        base: EngineOptions = BASE,
    ) -> None:
        self._variants = variants
        self._blob: tuple[int, memoryview] = (0, memoryview(b""))
        self._batch = Batch(base.n_ubatch)
        path = model_file(model)
        n_seq = max((case.n for case in cases if case.kind != "prefill"), default=1)
        n_each = max(case.n_kv + (case.n if case.kind == "prefill" else 64) for case in cases)
        options = {"model": str(path), "threads": threads, "n_seq": n_seq, "n_ctx": n_seq * (n_each + 64)}
        sizes = {"n_batch": base.n_ubatch, "prefill_lanes": 1}
        self.engines: dict[str, Engine] = {
            name: open_engine(replace(base, engine=name, **options, **sizes))  # type: ignore[arg-type]
            for name in ("llama", "graph")
        }
        self._n_vocab = self.engines["graph"].info.n_vocab

    def measure(self, case: Case, rounds: int) -> Iterator[Timing]:
        """Time a case. Blocks; one timing per variant, its calls alternating with the others'."""
        for engine in self.engines.values():
            self._fill(engine, case)
        times: dict[str, list[float]] = {variant: [] for variant in self._variants}
        for i in range(N_WARM + rounds):
            for variant in self._variants:
                ns = self._call(variant, case)
                if i >= N_WARM:
                    times[variant].append(ns / 1e6)
        for engine in self.engines.values():
            for seq_id in range(engine.info.n_seq_max):
                engine.kv_truncate(seq_id, 0)
        for variant, ms in times.items():
            yield Timing(case, variant, percentile(ms, 50), percentile(ms, 10), percentile(ms, 90))

    def _fill(self, engine: Engine, case: Case) -> None:
        if not case.n_kv:
            return
        blob = self._content(engine.info.kv_bytes_per_cell * case.n_kv)
        n_streams = 1 if case.kind == "prefill" else case.n
        for seq_id in range(n_streams):
            if case.kind == "shared" and seq_id and engine.info.engine == "graph":
                _finish(engine.copy_prefix(0, seq_id, case.n_kv))
            elif not engine.info.capabilities.can_copy_prefix:
                engine.fake_context(seq_id, case.n_kv)
            else:
                _finish(engine.import_state(seq_id, blob, case.n_kv))

    def _content(self, n_bytes: int) -> memoryview:
        """Return this many bytes of K and V with a usual distribution: normal f16."""
        if self._blob[0] != n_bytes:
            row = np.random.default_rng(1).standard_normal(n_bytes // 2, np.float32).astype(np.float16)
            self._blob = (n_bytes, row.view(np.uint8).data)
        return self._blob[1]

    def _call(self, variant: str, case: Case) -> float:
        engine = self.engines["graph" if variant == "graph" else "llama"]
        lib.uma_accel_enable(0 if variant == "llama.cpp" else ALL_KERNELS)
        batch = self._batch
        batch.clear()
        if case.kind == "prefill":
            batch.extend(np.arange(case.n, dtype=np.int32) % self._n_vocab, case.n_kv, 0, True)
        else:
            for seq_id in range(case.n):
                batch.add(seq_id + 1, case.n_kv, seq_id, True)
        ns = decode_call(engine, batch)
        for seq_id in set(batch.seq_id[: batch.n].tolist()):
            engine.kv_truncate(seq_id, case.n_kv)
        return ns

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()


def decode_call(engine: Engine, batch: Batch) -> int:
    """Run a call and return its ns. A call that fails is soon over: it must not count as a fast one."""
    outcome = engine.decode(batch, [None] * batch.n_rows)
    assert outcome.status is DecodeStatus.OK, outcome.status.name
    return outcome.call_ns


def _finish(transfer: Transfer) -> None:
    while not transfer.step(FOREVER):
        pass
    transfer.close()
