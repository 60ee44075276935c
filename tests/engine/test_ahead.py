"""Beginning a call ahead changes only when it is computed: any history gives the tokens of an engine that never does
so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, OPTIONS, empty
from tests.engine.drive import finish, read, tokens_of
from uma_core.engine.ahead import pays
from uma_core.engine.api import Batch, DecodeStatus, Engine
from uma_core.engine.graph.engine import GraphEngine
from uma_core.types import SamplingParams

AHEAD = replace(OPTIONS, decode_ahead="on")
N_SEQ = 3


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Engine, Engine]]:
    """An engine that never begins a call ahead, and one that does."""
    with (
        closing(GraphEngine(DRAFT, OPTIONS, is_stock=True)) as plain,
        closing(GraphEngine(DRAFT, AHEAD, is_stock=True)) as ahead,
    ):
        yield plain, ahead


class World:
    """One history of `N_SEQ` sequences. Only the seed and the tokens decide what happens."""

    def __init__(self, engine: Engine, seed: int) -> None:
        empty(engine)
        self.engine = engine
        self.chance = random.Random(seed)
        self.batch = Batch(engine.info.n_batch)
        self.masked = engine.sampler(SamplingParams(logprobs=2), 7)
        self.samplers = [engine.sampler(SamplingParams(temperature=0.9), 7), None, self.masked]
        self.tokens = [read(engine, i, tokens_of(engine, 50 + 9 * i, i)) for i in range(N_SEQ)]
        self.said: list[Any] = []
        self.weights: list[Any] = []
        self.n_begun = 0

    def step(self, seqs: list[int], starts_next: bool) -> None:
        batch = self.batch
        batch.clear()
        batch.starts_next = starts_next
        for seq in seqs:
            batch.add(self.tokens[seq], self.lengths[seq], seq, True)
        self.decode([self.samplers[seq] for seq in seqs], seqs)

    def decode(self, samplers: list[Any], seqs: list[int]) -> None:
        words = -(-self.engine.info.n_vocab // 32)
        mask = np.frombuffer(self.chance.randbytes(4 * words), np.uint32)
        self.masked.set_mask(mask if self.chance.random() < 0.7 else None)
        t0 = time.monotonic_ns()
        outcome = self.engine.decode(self.batch, samplers)
        assert outcome.status is DecodeStatus.OK
        self.n_begun += 0 < outcome.begun_ns < t0
        for seq, token in zip(seqs, outcome.tokens, strict=True):
            self.tokens[seq] = token
            self.lengths[seq] += 1
        self.said.append(tuple(outcome.tokens))
        self.weights.append(self.masked.logprobs())
        if self.batch.starts_next:
            self.engine.begin_next(-1)

    def go_on(self, n: int) -> None:
        """Make steps of all sequences, as the executor does when it repeats a plan. Sometimes something happens before
        the last step.
        """
        seqs = list(range(N_SEQ))
        self.step(seqs, True)
        for i in range(n):
            self.batch.advance(self.said[-1])
            self.batch.starts_next = i + 1 < n or self.chance.random() < 0.5
            self.decode(list(self.samplers), seqs)

    def happen(self) -> None:
        engine, seq = self.engine, self.chance.randrange(N_SEQ)
        what = self.chance.choice(["subset", "truncate", "read", "copy", "export", "interrupt", "lengths", "sync"])
        if what == "subset":
            self.step(sorted(self.chance.sample(range(N_SEQ), 2)), self.chance.random() < 0.5)
        elif what == "truncate":
            self.lengths[seq] -= self.chance.randrange(1, 20)
            assert engine.kv_truncate(seq, self.lengths[seq])
        elif what == "read":
            assert engine.kv_truncate(seq, 0)
            tokens = tokens_of(engine, self.chance.randrange(20, 90), self.chance.randrange(99))
            self.tokens[seq], self.lengths[seq] = read(engine, seq, tokens), len(tokens)
        elif what == "copy":
            other = (seq + 1) % N_SEQ
            assert engine.kv_truncate(other, 0)
            finish(engine.copy_prefix(seq, other, self.lengths[seq]))
            self.tokens[other], self.lengths[other] = self.tokens[seq], self.lengths[seq]
        elif what == "export":
            finish(engine.export_state(seq, self.lengths[seq]))
        elif what == "interrupt":
            engine.interrupt()
        elif what == "sync":
            engine.sync()
        else:
            self.said.append([engine.kv_len(i) for i in range(N_SEQ)])
            assert self.said[-1] == self.lengths

    def run(self, n: int) -> list[Any]:
        self.lengths = [self.engine.kv_len(i) for i in range(N_SEQ)]
        for _ in range(n):
            self.engine.clear_interrupt()
            self.go_on(self.chance.randrange(1, 12))
            self.happen()
        return self.said


@pytest.mark.parametrize("seed", range(6))
def test_any_history_gives_the_same_tokens(pair: tuple[Engine, Engine], seed: int) -> None:
    plain, ahead = (World(engine, seed) for engine in pair)
    assert plain.run(14) == ahead.run(14)
    assert plain.weights == ahead.weights
    assert plain.n_begun == 0 and ahead.n_begun > 20, "or the test says nothing"


def test_nothing_is_begun_after_something_has_happened(pair: tuple[Engine, Engine]) -> None:
    world = World(pair[1], 1)
    world.lengths = [pair[1].kv_len(i) for i in range(N_SEQ)]
    pair[1].interrupt()
    world.go_on(3)
    assert world.n_begun == 0
    pair[1].clear_interrupt()
    world.go_on(3)
    assert world.n_begun > 0


def test_nothing_is_begun_beyond_the_context(pair: tuple[Engine, Engine]) -> None:
    engine = pair[1]
    empty(engine)
    engine.clear_interrupt()
    n = engine.info.n_ctx_seq
    token = read(engine, 0, tokens_of(engine, n - 3))
    batch = Batch(4)
    batch.add(token, n - 3, 0, True)
    were_begun = []
    warnings = engine.slot_warnings()
    for _ in range(3):
        batch.starts_next = True
        t0 = time.monotonic_ns()
        outcome = engine.decode(batch, [None])
        were_begun.append(outcome.begun_ns < t0)
        engine.begin_next(-1)
        batch.advance(outcome.tokens)
    assert were_begun == [False, True, True]
    assert engine.slot_warnings() == warnings and engine.kv_len(0) == n


def test_closing_waits_for_what_was_begun() -> None:
    engine = GraphEngine(DRAFT, AHEAD, is_stock=True)
    batch = Batch(1)
    batch.add(5, 0, 0, True)
    batch.starts_next = True
    engine.decode(batch, [None])
    engine.begin_next(-1)
    assert engine.decoder is not None and engine.decoder._ahead.is_begun
    engine.close()


def test_our_own_kernels_on_the_cpu_never_begin_ahead() -> None:
    assert [pays("auto", is_gpu) for is_gpu in (False, True)] == [False, True]
    assert pays("on", False) and not pays("off", True)
    engine = GraphEngine(DRAFT, AHEAD)
    batch = Batch(1)
    batch.add(5, 0, 0, True)
    batch.starts_next = True
    engine.decode(batch, [None])
    engine.begin_next(-1)
    assert engine.decoder is not None and not engine.decoder._ahead.is_begun
    assert np.isfinite(engine.logits(0)).all()
    engine.close()
