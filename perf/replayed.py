"""Our daemon with an engine that "chooses" recorded tokens: every step computes everything as usual, and the drawn
token is replaced.

    python -m perf.replayed daemon --model ...

A request whose `seed` is that of a recorded answer (`seed_of`) gets its tokens, whatever the model's logits are. So
acceptance is that of real text and cost that of a real model, even though only random weights are available. All rows
of drafts are sampled, accepted or not, so that the cost is not understated.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from perf.recorded import SCHEMA, Recorded, recorded
from uma_core.config.options import EngineOptions
from uma_core.constraint.compiler import Compiler
from uma_core.constraint.matcher import Matcher
from uma_core.constraint.vocabulary import Text
from uma_core.engine.api import NOT_DRAWN, WANT_IF_ACCEPTED, WANT_TOKEN, Batch, DecodeOutcome, DecodeStatus, Engine
from uma_core.models import default_model_path
from uma_core.types import Constraint, SamplingParams, TokenId

FIRST_SEED = 0x5EED0000


def seed_of(which: int) -> int:
    """Return the seed that asks for the recorded text of this number."""
    return FIRST_SEED + which


def vocabulary() -> Any:
    """Return the embedded model's vocabulary, which tokenizes the recorded texts: 8,192 tokens, with ids that every
    larger vocabulary has.
    """
    from uma_core.engine.llama.model import LlamaModel, Parts

    path = str(default_model_path())
    return LlamaModel(path, EngineOptions(model=path), None, Parts.VOCABULARY)


class Spelling:
    """constraint.vocabulary.Text of a model in which only the recorded texts' tokens are text."""

    def __init__(self, vocab: Any, n_vocab: int) -> None:
        self._vocab, self.n_vocab = vocab, n_vocab
        self.tokenize = vocab.tokenize

    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes:
        return bytes(self._vocab.piece(token, unparse_special)) if token < self._vocab.n_vocab else b""

    def is_control(self, token: TokenId) -> bool:
        return token < self._vocab.n_vocab and bool(self._vocab.is_control(token))

    def is_eog(self, token: TokenId) -> bool:
        return False


def constraint_of(text: Recorded) -> Constraint | None:
    """Return the constraint of a text's request. It forces exactly the recorded tokens (tests/perf/test_replay.py)."""
    return Constraint("json_schema", SCHEMA) if text.workload == "json" else None


class Replay:
    """Replaces an engine's methods. It knows the next token of each sampler."""

    def __init__(self, engine: Engine, answers: dict[int, list[TokenId]]) -> None:
        """`answers`: by seed. Changes `engine`."""
        self._answers = answers
        # by identity of a sampler, which is kept here too
        self._next: dict[int, tuple[Any, list[TokenId], list[int]]] = {}
        self._sampler, self._decode, self._draw = engine.sampler, engine.decode, engine.draw
        self._prefill_sample = engine.prefill_sample
        changed: Any = engine
        changed.sampler, changed.decode, changed.draw = self.sampler, self.decode, self.draw
        changed.prefill_sample = self.prefill_sample
        changed.piece = lambda token, unparse_special=False: b"x"
        changed.is_eog = lambda token: False

    def sampler(self, params: SamplingParams, seed: int) -> Any:
        made = self._sampler(params, seed)
        self._next.pop(id(made), None)
        if seed in self._answers:
            self._next[id(made)] = made, self._answers[seed], [0]
        return made

    def _chosen(self, sampler: Any, drawn: TokenId) -> TokenId:
        """Return the recorded token, if there is one left."""
        known = self._next.get(id(sampler))
        if known is None or drawn < 0:
            return drawn
        _, answer, at = known
        at[0] += 1
        return answer[(at[0] - 1) % len(answer)]

    def decode(self, batch: Batch, samplers: Sequence[Any]) -> DecodeOutcome:
        wanted = batch.want_logits[: batch.n]
        asked = wanted.copy()
        wanted[asked == WANT_IF_ACCEPTED] = WANT_TOKEN
        outcome = self._decode(batch, samplers)
        wanted[:] = asked
        if outcome.status is not DecodeStatus.OK or not outcome.tokens:
            return outcome
        tokens: list[TokenId] = []
        for place, sampler, drawn in zip(np.flatnonzero(asked), samplers, outcome.tokens, strict=False):
            if asked[place] == WANT_IF_ACCEPTED and tokens[-1] != batch.tokens[place]:
                tokens.append(NOT_DRAWN)
            else:
                tokens.append(self._chosen(sampler, drawn))
        return outcome._replace(tokens=tokens)

    def draw(self, row: int, sampler: Any) -> TokenId:
        return self._chosen(sampler, self._draw(row, sampler))

    def prefill_sample(self, seq_id: int, sampler: Any) -> TokenId:
        return self._chosen(sampler, self._prefill_sample(seq_id, sampler))


def main() -> int:
    from uma_core.cli import main as run
    from uma_core.engine.select.open import open_engine
    from uma_core.server.lifecycle import host

    vocab = vocabulary()
    answers = {seed_of(i): vocab.tokenize(text.answer, False, False) for i, text in enumerate(recorded())}
    compile_for = Compiler.compile
    spellings: list[Text] = []

    def open_replaying(*args: Any, **named: Any) -> Engine:
        engine: Engine = open_engine(*args, **named)
        spellings[:] = [Spelling(vocab, engine.n_vocab)]
        Replay(engine, answers)
        return engine

    def compile_spelt(self: Compiler, text: Text, constraint: Constraint) -> Matcher:
        return compile_for(self, spellings[0], constraint)

    Compiler.compile = compile_spelt  # type: ignore[method-assign]
    vars(host)["open_engine"] = open_replaying
    sys.argv[0] = "uma-core"
    return int(run() or 0)


if __name__ == "__main__":
    sys.exit(main())
