"""The graph engine beside llama_decode on a GPU: whether it is right, and how fast. `sh perf/gpu.sh graph` runs every
part in a separate process.

So an assertion inside ggml ends only one part. A part prints its results and writes UMA_GPU_OUT/graph-PART.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from perf.engines import Bench, Case, decode_call
from perf.gguf_file import ensure
from perf.greedy import OURS, compare, noise
from perf.perplexity import ENGINES, perplexities
from uma_core.config.options import EngineOptions
from uma_core.engine.api import WANT_LOGITS, Batch, Engine, PrefillStatus, Transfer
from uma_core.engine.graph.device import device_of
from uma_core.engine.lib import lib, text
from uma_core.engine.select.open import open_engine
from uma_core.errors import UmaError
from uma_core.models import default_model_path

ROOT = Path(__file__).resolve().parent.parent
TRAINED = (
    default_model_path(),
    *(ROOT / "tests" / "data" / "models" / f"uma-{name}-q8_0.gguf" for name in ("draft", "moe")),
)
N_TOKENS = 10_000
N_PROMPTS, N_NEW = 60, 24
ROUNDS = 11
N_BUSY, N_ROUNDS, N_STEPS = 6, 50, 20  # processes at once, rounds of each, steps of a round
PART_S = 150  # a part that takes longer is considered hung
CASES = (
    *(Case("decode", n, n_kv) for n_kv in (256, 2048) for n in (1, 4, 8)),
    *(Case("prefill", 512, n_kv) for n_kv in (0, 2048)),
)
BOTH = {"llama.cpp": ENGINES["llama.cpp"], "graph": ENGINES["graph"]}
ON_GRAPH = tuple(mode for mode in OURS if mode.options.engine == "graph")

Rows = list[dict[str, Any]]


def texts() -> str:
    return "\n".join(
        path.read_text(encoding="utf-8") for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
    )


def trained() -> Iterator[str]:
    """Yield the trained models that were packed."""
    for path in TRAINED:
        if path.exists():
            yield str(path)
        else:
            print(f"{path.name}: missing")


def facts(arguments: argparse.Namespace) -> Rows:
    """Report what ggml finds, and which of the small random shapes the graph engine serves on it."""
    devices = [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]
    rows: Rows = [
        {"device": text(lib.ggml_backend_dev_name(d)), "description": text(lib.ggml_backend_dev_description(d))}
        for d in devices
    ]
    rows.append({"graphs are computed on": device_of(EngineOptions()).description, "ggml": text(lib.ggml_commit())})
    for name in ("tiny-q8_0", "tiny-q4_0", "tiny-moe-q8_0"):
        for kv_type in ("f16", "q8_0"):
            options = EngineOptions(engine="graph", model=str(ensure(name)), n_ctx=1024, kv_type=kv_type)
            try:
                with closing(open_engine(options)) as engine:
                    rows.append(
                        {"model": name, "kv": kv_type, "backend": engine.info.backend, "notes": engine.info.notes}
                    )
            except UmaError as error:
                rows.append({"model": name, "kv": kv_type, "refused": error.message})
    return rows


def perplexity(arguments: argparse.Namespace) -> Rows:
    rows: Rows = []
    for path in trained():
        for kv_type in ("f16", "q8_0"):
            engines = {name: EngineOptions(**{**asdict(options), "kv_type": kv_type}) for name, options in BOTH.items()}
            found = perplexities(path, texts(), arguments.tokens, arguments.threads, engines)
            base = found["llama.cpp"][0]
            row = {
                "model": Path(path).stem,
                "kv": kv_type,
                **{name: value for name, (value, _) in found.items()},
                "tokens": found["graph"][1],
            }
            rows.append(row | {"graph_percent": 100 * (found["graph"][0] / base - 1)})
    return rows


def greedy(arguments: argparse.Namespace) -> Rows:
    """Do the same as `python -m perf greedy`: the gaps at which continuations differ, beside how far llama.cpp's own
    modes move the difference of two logits.
    """
    rows: Rows = []
    for path in trained():
        found = compare(path, texts(), (arguments.prompts, N_NEW), arguments.threads, ON_GRAPH)
        for name, tally in found.items():
            row = {
                "model": Path(path).stem,
                "mode": name,
                "same": tally.n_same,
                "of": arguments.prompts,
                "bound": noise(found),
            }
            rows.append(
                row | {"widest": max(tally.partings, default=0.0), "rms": tally.rms_moved, "most": tally.most_moved}
            )
    return rows


def moves(arguments: argparse.Namespace) -> Rows:
    """Compare a prompt's logits with those of reading it at once: after pauses with other work, after sharing and
    copying pages, after saving to host bytes and back.

    `off` is the largest difference, in standard deviations of the logits: rounding causes some per cent.
    """
    rows: Rows = []
    for model, engine, tokens in _loaded(arguments):
        whole = _step(engine, _read(engine, 0, tokens[:400]), int(tokens[400]))
        for name, way in (("pieces", _pieces), ("shared", _shared), ("host", _host)):
            engine.kv_truncate(0, 0)
            n_pieces = way(engine, tokens[:400])
            off = float(np.abs(_step(engine, 1, int(tokens[400])) - whole).max() / whole.std())
            rows.append({"model": model, "way": name, "off": off, "pieces": n_pieces, "is_ok": off < 0.15})
            for seq_id in range(engine.info.n_seq_max):
                engine.kv_truncate(seq_id, 0)
    return rows


def drafts(arguments: argparse.Namespace) -> Rows:
    """Verify right drafts in one call, roll back a wrong one, and compare the logits with those of separate steps.

    `off` as in `moves`; `same`: rows with the same best token.
    """
    rows: Rows = []
    for model, engine, tokens in _loaded(arguments):
        _read(engine, 0, tokens[:384])
        steps = np.stack([_step(engine, 0, int(token)) for token in tokens[384:400]])
        engine.kv_truncate(0, 384)
        _verify(engine, [int(tokens[384]), *(int(token) ^ 1 for token in tokens[385:392])])
        engine.kv_truncate(0, 385)  # only the first row was not a draft
        found = _verify(engine, [int(token) for token in tokens[385:400]])
        off = _off(found, steps[1:])
        n_same = int((found.argmax(axis=1) == steps[1:].argmax(axis=1)).sum())
        row = {"model": model, "off": off, "same": n_same, "of": len(found)}
        rows.append(row | {"is_ok": off < 0.15 and engine.info.capabilities.n_verify_rows >= len(found)})
    return rows


def busy(arguments: argparse.Namespace) -> Rows:
    """Compare steps of one row while other processes use the device with those of a process alone: only this shows a
    kernel that reads results that the kernel before it has not written yet.

    `off` as in `moves`, of the worst process.
    """
    rows: Rows = []
    context = multiprocessing.get_context("spawn")
    for name in BOTH:
        work = (name, str(ensure(arguments.busy_model)), arguments.threads)
        with context.Pool(N_BUSY) as pool:
            alone = pool.apply(_alone, work)  # the others have imported this module, and wait
            off = max(pool.starmap(_worst, [(*work, N_ROUNDS, alone)] * N_BUSY, chunksize=1))
        rows.append({"engine": name, "processes": N_BUSY, "off": off, "is_ok": off < 0.15})
    return rows


def _alone(name: str, model: str, threads: int) -> np.ndarray:
    """Return (steps, n_vocab) logits of a process alone."""
    return next(_rounds(name, model, threads, 1))


def _worst(name: str, model: str, threads: int, n_rounds: int, alone: np.ndarray) -> float:
    found = _rounds(name, model, threads, n_rounds)
    return max(_off(each, alone) for each in found)


def _rounds(name: str, model: str, threads: int, n_rounds: int) -> Iterator[np.ndarray]:
    """Yield (steps, n_vocab) logits after a prompt of made-up tokens, repeatedly, because processes begin at different
    times.
    """
    options = replace(BOTH[name], model=model, threads=threads, n_ctx=1024)
    with closing(open_engine(options)) as engine:
        for _ in range(n_rounds):
            _read(engine, 0, np.arange(100, 170, dtype=np.int32))
            yield np.stack([_step(engine, 0, 40 + i) for i in range(N_STEPS)])
            engine.kv_truncate(0, 0)


def speed(arguments: argparse.Namespace) -> Rows:
    """Time both engines' calls with their default settings."""
    return _timed(arguments, EngineOptions(n_ubatch=512))


def recorded(arguments: argparse.Namespace) -> Rows:
    """Time the same with ggml recording CUDA graphs."""
    return _timed(arguments, EngineOptions(n_ubatch=512, cuda_graphs=True))


def _timed(arguments: argparse.Namespace, base: EngineOptions) -> Rows:
    rows: Rows = []
    with closing(Bench(arguments.model, arguments.threads, CASES, tuple(BOTH), base)) as bench:
        for case in CASES:
            timings = list(bench.measure(case, arguments.rounds))
            for timing in timings:
                row = {
                    "case": case.name,
                    "engine": timing.variant,
                    "ms": timing.ms,
                    "p10_ms": timing.p10_ms,
                    "p90_ms": timing.p90_ms,
                }
                rows.append(row | {"tokens_per_s": timing.tokens_per_s, "x_llama": timings[0].ms / timing.ms})
                print(_line(rows[-1]), flush=True)
        rows += [
            {"engine": name, **engine.memory()._asdict(), "notes": engine.info.notes}
            for name, engine in bench.engines.items()
        ]
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    f.__name__: f for f in (facts, moves, drafts, busy, perplexity, speed, recorded, greedy)
}


def _loaded(arguments: argparse.Namespace) -> Iterator[tuple[str, Engine, np.ndarray]]:
    """Yield each trained model's name, its graph engine, open until the next is requested, and 401 tokens of text."""
    for path in trained():
        options = EngineOptions(engine="graph", model=path, threads=arguments.threads, n_ctx=4 * 1024)
        with closing(open_engine(options)) as engine:
            yield Path(path).stem, engine, np.array(engine.tokenize(texts(), False, False)[:401], np.int32)


def _read(engine: Engine, seq_id: int, tokens: np.ndarray) -> int:
    batch = Batch(len(tokens))
    batch.extend(tokens, engine.kv_len(seq_id), seq_id, True)
    decode_call(engine, batch)
    return seq_id


def _step(engine: Engine, seq_id: int, token: int) -> np.ndarray:
    batch = Batch(1)
    batch.add(token, engine.kv_len(seq_id), seq_id, True)
    decode_call(engine, batch)
    return np.array(engine.logits(0))


def _verify(engine: Engine, tokens: list[int]) -> np.ndarray:
    """Return (rows, n_vocab) logits of sequence 0's next token and the drafts after it, from one call."""
    batch = Batch(len(tokens))
    n = engine.kv_len(0)
    batch.add(tokens[0], n, 0, True)
    batch.verify(tokens[1:], n + 1, 0, WANT_LOGITS)
    decode_call(engine, batch)
    return np.stack([np.array(engine.logits(row)) for row in range(len(tokens))])


def _finish(transfer: Transfer) -> None:
    while not transfer.step(0):
        pass
    transfer.close()


def _pieces(engine: Engine, tokens: np.ndarray) -> int:
    """Read in the smallest pieces, each followed by a decode call of another sequence. Returns the number of pieces."""
    _read(engine, 2, tokens[:50])
    n_pieces = 0
    assert engine.prefill_open(1, tokens, False)
    is_done = False
    while not is_done:
        outcome = engine.prefill_run(1, 0, 1, 1)
        assert outcome.status is not PrefillStatus.FAILED
        n_pieces += outcome.n_pieces
        is_done = outcome.status is PrefillStatus.DONE
        _step(engine, 2, 50)
    _finish(engine.publish_kv(1))
    return n_pieces


def _shared(engine: Engine, tokens: np.ndarray) -> int:
    """Share a beginning that ends within a page, let the other sequence write after it, then continue."""
    _read(engine, 0, tokens[:300])
    _finish(engine.copy_prefix(0, 1, 300))
    _step(engine, 0, 70)
    _read(engine, 1, tokens[300:])
    return 0


def _host(engine: Engine, tokens: np.ndarray) -> int:
    _read(engine, 0, tokens)
    export = engine.export_state(0, len(tokens))
    _finish(export)
    engine.kv_truncate(0, 0)
    _finish(engine.import_state(1, bytes(export.blob), len(tokens)))
    return 0


def _off(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference of a logit, in standard deviations of its row; both are (rows, n_vocab)."""
    return float((np.abs(found - expected).max(axis=1) / expected.std(axis=1)).max())


def _line(row: dict[str, Any]) -> str:
    return "  ".join(
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
    )


def run_all(arguments: list[str]) -> int:
    """Run every part in a separate process. Returns how many failed."""
    failed = []
    for part in PARTS:
        print(f"== {part}", flush=True)
        command = [sys.executable, "-m", "perf.gpu_graph", part, *arguments]
        try:
            end = f"status {status}" if (status := subprocess.run(command, cwd=ROOT, timeout=PART_S).returncode) else ""
        except subprocess.TimeoutExpired:
            end = f"no result in {PART_S} s"
        if end:
            failed.append(part)
            print(f"== {part} ended with {end}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "every part succeeded", flush=True)
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--model", default="8b-q8_0", help="shape of the speed parts")
    parser.add_argument("--busy-model", default="0.5b-q8_0", help="shape of the part with several processes")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=N_TOKENS, help="tokens of the perplexity part")
    parser.add_argument("--prompts", type=int, default=N_PROMPTS, help="prompts of the greedy part")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="calls per case of the speed parts")
    arguments = parser.parse_args()
    if arguments.part == "all":
        return 1 if run_all(sys.argv[2:]) else 0
    out = Path(os.environ.get("UMA_GPU_OUT") or "perf/out/gpu-graph")
    out.mkdir(parents=True, exist_ok=True)
    try:
        rows = PARTS[arguments.part](arguments)
    except Exception:
        traceback.print_exc()
        return 1
    (out / f"graph-{arguments.part}.json").write_text(json.dumps(rows, indent=1))
    if arguments.part not in ("speed", "recorded"):  # those print each row at once
        print("\n".join(map(_line, rows)), flush=True)
    return 0 if all(row.get("is_ok", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
