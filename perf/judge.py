"""Checks whether tokens came from a given model, by teacher forcing: the model reads a stream's text and rates
every token of it.

A greedy token has the largest logit. Batches of other shapes round differently, so a near tie may turn out the other
way. A token of another model lies whole standard deviations below the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, DecodeStatus
from uma_core.engine.select.open import open_engine

N_CTX = 2048
CHUNK = 16  # rows with logits per decode call
NEAR_TIE = 0.35  # standard deviations of a row's logits


class Judge:
    """Owns an engine in this process."""

    def __init__(self, model: Path) -> None:
        self._engine = open_engine(
            EngineOptions(model=str(model), engine="llama", n_ctx=N_CTX, n_seq=1, threads=1, prefill_lanes=0)
        )

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()

    def n_foreign(self, prompt: str, tokens: Sequence[int]) -> int:
        """Return how many of the tokens after the prompt this model would not have chosen.

        Raises: ValueError if the text is too long.
        """
        head = self._engine.tokenize(prompt, True, True)
        ids = [*head, *tokens]
        if len(ids) > N_CTX:
            raise ValueError(f"{len(ids)} tokens")
        n_foreign = 0
        try:
            for start in range(0, len(ids) - 1, CHUNK):
                n_foreign += self._read(ids, start, min(start + CHUNK, len(ids) - 1), len(head))
        finally:
            self._engine.kv_truncate(0, 0)
        return n_foreign

    def _read(self, ids: list[int], start: int, end: int, n_head: int) -> int:
        batch = Batch(CHUNK)
        for position in range(start, end):
            batch.add(ids[position], position, 0, True)
        outcome = self._engine.decode(batch, [None] * (end - start))
        if outcome.status is not DecodeStatus.OK:
            raise ValueError(outcome.status.name)
        n_foreign = 0
        for row, position in enumerate(range(start, end)):
            if position + 1 >= n_head:
                logits = self._engine.logits(row)
                n_foreign += bool(logits.max() - logits[ids[position + 1]] > NEAR_TIE * logits.std())
        return n_foreign
