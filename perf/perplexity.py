"""Perplexity of a text by each engine: with the same windows and tokens, and probabilities from every row's logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, DecodeStatus, Engine
from uma_core.engine.select.open import open_engine

N_ROWS = 16  # per decode call: llama.cpp's context has memory for this many rows with logits
WINDOW = 512  # tokens that see each other

ENGINES = {
    "llama.cpp": EngineOptions(engine="llama", cpu_kernels=False, prefill_lanes=0),
    "llama.cpp + our kernels": EngineOptions(engine="llama", prefill_lanes=0),
    "graph": EngineOptions(engine="graph", prefill_lanes=0),
}


def perplexities(
    model: str, text: str, n_tokens: int, threads: int, engines: dict[str, EngineOptions] = ENGINES
) -> dict[str, tuple[float, int]]:
    """Return (perplexity, tokens predicted) by engine. Blocks: on a CPU minutes for tens of thousands of tokens."""
    out = {}
    for name, options in engines.items():
        engine = open_engine(
            replace(options, model=model, threads=threads, n_seq=1, n_ctx=WINDOW, n_batch=N_ROWS, n_ubatch=N_ROWS)
        )
        try:
            tokens = np.array(engine.tokenize(text, False, False)[:n_tokens], np.int32)
            windows = [tokens[at : at + WINDOW] for at in range(0, len(tokens) - 1, WINDOW)]
            losses = [
                -log_p[token]
                for window in windows
                for log_p, token in zip(log_probabilities(engine, window), window[1:], strict=True)
            ]
            out[name] = (float(np.exp(np.mean(losses))), len(losses))
        finally:
            engine.close()
    return out


def log_probabilities(engine: Engine, tokens: np.ndarray) -> Iterator[np.ndarray]:
    """Read the tokens as one text, from an empty context. Yields (n_vocab,) f64 log probabilities after each token
    but the last.
    """
    engine.kv_truncate(0, 0)
    batch = Batch(N_ROWS)
    for at in range(0, len(tokens) - 1, N_ROWS):
        batch.clear()
        batch.extend(tokens[at : min(at + N_ROWS, len(tokens) - 1)], at, 0, True, want_all=True)
        assert engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.OK
        for row in range(batch.n_rows):
            yield log_softmax(engine.logits(row))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return f64 log probabilities."""
    below = logits.astype(np.float64) - logits.max()
    return np.asarray(below - np.log(np.exp(below).sum()))
