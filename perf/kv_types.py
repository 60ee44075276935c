"""The loss of accuracy with a quantised KV cache: `python -m perf.kv_types [MODEL.gguf ...]`.

Each model predicts a text token by token, with KV of every type; the predictions are compared with those of f16 KV.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from perf.engines import decode_call
from perf.perplexity import log_softmax
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, Engine
from uma_core.engine.select.open import open_engine
from uma_core.models import default_model_path

KV_TYPES = ("f16", "bf16", "q8_0", "q4_0")
TEXTS = ("docs/SYSTEM_DESIGN.md", "docs/PROTOCOL.md", "README.md")
HEAD = "| model | KV type | perplexity | change | KL mean | KL p99 | same first choice |\n" + 7 * "| --- " + "|"
N_READ, N_PREDICTED, N_WINDOWS = 500, 400, 4  # tokens read, tokens predicted after them, number of windows


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of one model with one KV type."""

    log_p: np.ndarray  # (n, n_vocab) float32
    truth: np.ndarray  # (n,) the actual tokens

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_p[np.arange(len(self.truth)), self.truth].astype(np.float64).mean()))

    def divergence(self, other: Predictions) -> np.ndarray:
        """Return (n,) Kullback-Leibler divergence of the other predictions from these, in nats."""
        return np.asarray((np.exp(self.log_p) * (self.log_p - other.log_p)).sum(axis=1))

    def agreement(self, other: Predictions) -> float:
        """Return the share of equal first choices."""
        return float((self.log_p.argmax(axis=1) == other.log_p.argmax(axis=1)).mean())


def predict(path: str, kv_type: str, text: str, engine_name: str) -> Predictions:
    """Predict the text. Blocks: for a minute with a small model."""
    n_window = N_READ + N_PREDICTED
    options = EngineOptions(n_ctx=n_window, n_seq=1, threads=2, n_batch=512, n_ubatch=512, kv_type=kv_type)
    engine = open_engine(replace(options, engine=engine_name), path)
    try:
        tokens = np.array(engine.tokenize(text, True, False), np.int32)
        windows = [tokens[i : i + n_window] for i in range(0, len(tokens) - n_window, n_window)][:N_WINDOWS]
        rows = [row for window in windows for row in _follow(engine, window)]
        return Predictions(np.array(rows, np.float32), np.concatenate([w[N_READ + 1 :] for w in windows]))
    finally:
        engine.close()


def _follow(engine: Engine, window: np.ndarray) -> Iterator[np.ndarray]:
    """Yield log probabilities after each token from N_READ on, except the last."""
    engine.kv_truncate(0, 0)
    batch = Batch(N_READ)
    batch.extend(window[:N_READ], 0, 0, False)
    decode_call(engine, batch)
    for i in range(N_READ, len(window) - 1):
        batch.clear()
        batch.add(int(window[i]), i, 0, True)
        decode_call(engine, batch)
        yield log_softmax(engine.logits(0))


def compare(path: str, text: str, engine_name: str) -> Iterator[str]:
    """Yield table rows: model, KV type, perplexity and its change, divergence, equal first choices."""
    exact = predict(path, KV_TYPES[0], text, engine_name)
    for kv_type in KV_TYPES:
        other = exact if kv_type == KV_TYPES[0] else predict(path, kv_type, text, engine_name)
        change = other.perplexity / exact.perplexity - 1.0
        kl = exact.divergence(other)
        yield (
            f"| {Path(path).stem} | {kv_type} | {other.perplexity:.3f} | {change:+.2%} | {kl.mean():.1e} "
            f"| {np.percentile(kl, 99):.1e} | {exact.agreement(other):.1%} |"
        )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--engine", "engine_name", type=click.Choice(("llama", "graph")), default="llama", show_default=True)
def main(models: tuple[str, ...], engine_name: str) -> None:
    """Compare KV types on MODELS (default: the embedded one)."""
    root = Path(__file__).parent.parent
    text = "\n".join((root / name).read_text(encoding="utf-8") for name in TEXTS)
    click.echo(HEAD)
    for path in models or (str(default_model_path()),):
        for row in compare(path, text, engine_name):
            click.echo(row)


if __name__ == "__main__":
    main()
