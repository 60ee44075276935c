"""Greedy continuations of the same prompts: how many equal llama.cpp's, and how close the choice was where they
differ.

A greedy choice depends on the difference of two logits. llama.cpp's own modes (other batch shapes, attention that is
not fused) change this difference too. The most that they change it is the kernels' noise. If the choice differs at a
smaller difference, that is rounding, not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from perf.perplexity import ENGINES
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, DecodeStatus
from uma_core.engine.kernels import use_kernels
from uma_core.engine.select.open import open_engine
from uma_core.types import TokenId

SHORTEST, LONGEST = 5, 400  # tokens of a prompt
N_BATCH = 512
FOREVER = 2**62


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to compute the continuations: `n_streams` sequences hold the same prompt and decode together; the first
    one's logits count.
    """

    name: str
    options: EngineOptions
    n_batch: int = N_BATCH
    n_streams: int = 1


_GGML, _OURS, _GRAPH = ENGINES.values()
REFERENCE = Mode("llama.cpp", _GGML)
OWN_MODES = (
    Mode("llama.cpp, prompts 16 at a time", _GGML, n_batch=16),
    Mode("llama.cpp, attention not fused", replace(_GGML, flash_attn="off")),
    Mode("llama.cpp, 4 streams", _GGML, n_streams=4),
)
OURS = (
    Mode("llama.cpp + our kernels", _OURS),
    Mode("llama.cpp + our kernels, 4 streams", _OURS, n_streams=4),
    Mode("graph", _GRAPH),
    Mode("graph, 4 streams", _GRAPH, n_streams=4),
)


class Choice(NamedTuple):
    """One token, chosen after the same text."""

    # in llama.cpp's logits: how far its token is above this mode's choice, or above the second best if they agree
    gap: float
    moved: float  # difference between that gap and the same two logits' gap in this mode
    is_same: bool


@dataclass(slots=True)
class Tally:
    """The choices of one mode, over all prompts. A continuation counts up to its first different choice."""

    n_same: int = 0  # continuations
    choices: list[Choice] = field(default_factory=list)

    def add(self, choices: list[Choice]) -> None:
        self.choices += choices
        self.n_same += choices[-1].is_same

    @property
    def partings(self) -> list[float]:
        """The gaps at which continuations differ, widest first."""
        return sorted((choice.gap for choice in self.choices if not choice.is_same), reverse=True)

    @property
    def most_moved(self) -> float:
        return max(choice.moved for choice in self.choices)

    @property
    def rms_moved(self) -> float:
        return float(np.sqrt(np.mean([choice.moved**2 for choice in self.choices])))


class Reader:
    """Owns an engine of one mode."""

    def __init__(self, mode: Mode, model: str, n_new: int, threads: int) -> None:
        self._mode = mode
        n_ctx = mode.n_streams * -(-(LONGEST + n_new) // 256) * 256
        sizes = {"n_seq": mode.n_streams, "n_ctx": n_ctx, "n_batch": mode.n_batch, "n_ubatch": mode.n_batch}
        sizes["prefill_lanes"] = int(mode.n_streams > 1)  # llama.cpp's engine copies KV only if it has prefill slots
        self.engine = open_engine(replace(mode.options, model=model, threads=threads, **sizes))  # type: ignore[arg-type]
        self._batch = Batch(mode.n_batch)

    def read(self, prompt: np.ndarray) -> np.ndarray:
        """Return the logits after the prompt: (n_vocab,), borrowed until the next call."""
        engine, n_batch = self.engine, self._mode.n_batch
        for seq_id in range(self._mode.n_streams):
            engine.kv_truncate(seq_id, 0)
        for at in range(0, len(prompt), n_batch):
            self._batch.clear()
            self._batch.extend(prompt[at : at + n_batch], at, 0, at + n_batch >= len(prompt))
            logits = self._decode()
        for seq_id in range(1, self._mode.n_streams):
            with closing(engine.copy_prefix(0, seq_id, len(prompt))) as transfer:
                assert transfer.step(FOREVER)
        return logits

    def step(self, token: TokenId) -> np.ndarray:
        """Return the logits after one more token, which every stream gets."""
        self._batch.clear()
        for seq_id in range(self._mode.n_streams):
            self._batch.add(token, self.engine.kv_len(seq_id), seq_id, True)
        return self._decode()

    def _decode(self) -> np.ndarray:
        # the process has only one switch, and engines of other modes run beside this one
        use_kernels(self._mode.options.cpu_kernels, self._mode.options.isa)
        batch = self._batch
        assert self.engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.OK
        return self.engine.logits(0) if batch.n_rows else np.empty(0, np.float32)

    def close(self) -> None:
        self.engine.close()


def prompts_of(tokens: np.ndarray, n: int) -> list[np.ndarray]:
    """Return `n` pieces from all over a text. Their lengths, SHORTEST to LONGEST tokens, are uniform on a log scale."""
    lengths = np.exp(np.random.default_rng(1).uniform(np.log(SHORTEST), np.log(LONGEST + 1), n)).astype(int)
    starts = np.linspace(0, max(0, len(tokens) - LONGEST), n).astype(int)
    return [tokens[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def compare(
    model: str, text: str, counts: tuple[int, int], threads: int, ours: tuple[Mode, ...] = OURS
) -> dict[str, Tally]:
    """Return tallies by mode, llama.cpp's own modes first.

    `counts`: prompts, and tokens of each continuation. Blocks: minutes for hundreds of prompts.
    """
    n_prompts, n_new = counts
    with ExitStack() as stack:
        reference, *others = (
            stack.enter_context(closing(Reader(mode, model, n_new, threads))) for mode in (REFERENCE, *OWN_MODES, *ours)
        )
        tallies = {mode.name: Tally() for mode in (*OWN_MODES, *ours)}
        tokens = np.array(reference.engine.tokenize(text, False, False), np.int32)
        for prompt in prompts_of(tokens, n_prompts):
            expected = [reference.read(prompt).copy()]
            while len(expected) < n_new:
                expected.append(reference.step(int(expected[-1].argmax())).copy())
            for tally, reader in zip(tallies.values(), others, strict=True):
                tally.add(list(_follow(reader, prompt, expected)))
    return tallies


def _follow(reader: Reader, prompt: np.ndarray, expected: list[np.ndarray]) -> Iterator[Choice]:
    """Yield the mode's choices, up to the first that differs from llama.cpp's."""
    token = -1
    for theirs in expected:
        logits = reader.read(prompt) if token < 0 else reader.step(token)
        token, chosen = int(theirs.argmax()), int(logits.argmax())
        other = int(np.argpartition(theirs, -2)[-2]) if chosen == token else chosen
        gap = float(theirs[token] - theirs[other])
        yield Choice(gap, abs(gap - float(logits[token] - logits[other])), chosen == token)
        if chosen != token:
            return


def noise(tallies: dict[str, Tally]) -> float:
    """Return the most that any of llama.cpp's own modes moved the difference of two logits."""
    return max(tallies[mode.name].most_moved for mode in OWN_MODES)
