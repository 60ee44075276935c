"""Random mixtures of an executor's calls on one graph engine."""

from __future__ import annotations

import random

import numpy as np

from tests.engine.conftest import OPTIONS
from tests.engine.drive import finish
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, DecodeStatus, PrefillStatus
from uma_core.engine.graph.engine import GraphEngine


class World:
    """One graph engine, the tokens that its sequences hold, and the blobs that were parked."""

    def __init__(self, path: str, seed: int, is_stock: bool, options: EngineOptions = OPTIONS) -> None:
        self.engine = GraphEngine(path, options, is_stock=is_stock)
        self.n_vocab = min(8000, self.engine.info.n_vocab)
        # if batches round differently, the clock must not end pieces: a busy machine gave other logits (0.20)
        self.run_ns = [1, 10**12] if is_stock else [1, 10**5, 10**7]
        self.random = random.Random(seed)
        self.tokens: list[list[int]] = [[] for _ in range(OPTIONS.n_seq)]
        self.parked: list[tuple[bytes, list[int]]] = []
        self.reading: dict[int, list[int]] = {}  # chunks in progress

    def draw(self, n: int) -> list[int]:
        return [self.random.randrange(32, self.n_vocab) for _ in range(n)]

    def idle(self, is_filled: bool = False) -> list[int]:
        return [s for s in range(OPTIONS.n_seq) if s not in self.reading and (self.tokens[s] or not is_filled)]

    def room(self, seq: int, n: int) -> bool:
        return len(self.tokens[seq]) + n <= self.engine.info.n_ctx_seq

    # what may happen

    def begin(self) -> None:
        seq = self.random.choice(self.idle() or [-1])
        chunk = self.draw(self.random.choice([1, 5, 64, 100, 256]))
        if (
            seq >= 0
            and self.room(seq, len(chunk))
            and self.engine.prefill_open(seq, np.array(chunk, np.int32), self.random.random() < 0.5)
        ):
            self.reading[seq] = chunk

    def go_on(self) -> None:
        for seq in list(self.reading):
            if self.engine.prefill_run(seq, 0, self.random.choice(self.run_ns), 1).status is PrefillStatus.DONE:
                finish(self.engine.publish_kv(seq))
                self.tokens[seq] += self.reading.pop(seq)

    def give_up(self) -> None:
        if self.reading and self.random.random() < 0.3:
            seq = self.random.choice(list(self.reading))
            self.engine.prefill_close(seq)
            del self.reading[seq]

    def decode(self) -> None:
        batch = Batch(OPTIONS.n_batch)
        added = {}
        for seq in self.random.sample(self.idle(), self.random.randint(0, len(self.idle()))):
            new = self.draw(self.random.choice([1, 1, 1, 30]))
            if self.room(seq, len(new)):
                batch.extend(np.array(new, np.int32), len(self.tokens[seq]), seq, self.random.random() < 0.8)
                added[seq] = new
        if batch.n:
            assert self.engine.decode(batch, [None] * batch.n_rows).status is DecodeStatus.OK
            for seq, new in added.items():
                self.tokens[seq] += new

    def copy(self) -> None:
        sources, targets = self.idle(is_filled=True), self.idle()
        if sources and len(targets) > 1:
            src = self.random.choice(sources)
            dst = self.random.choice([s for s in targets if s != src])
            n = self.random.randint(1, len(self.tokens[src]))
            start = self.random.randint(0, n) if self.tokens[dst][:n] == self.tokens[src][:n] else 0
            start = min(start, len(self.tokens[dst]))
            self.engine.kv_truncate(dst, start)
            finish(self.engine.copy_prefix(src, dst, n, start), 0)
            self.tokens[dst] = self.tokens[src][:n]

    def cut(self) -> None:
        for seq in self.random.sample(self.idle(), min(1, len(self.idle()))):
            n = self.random.randint(0, len(self.tokens[seq]))
            self.engine.kv_truncate(seq, n)
            del self.tokens[seq][n:]

    def park(self) -> None:
        for seq in self.idle(is_filled=True)[:1]:
            export = self.engine.export_state(seq, len(self.tokens[seq]))
            finish(export, 0)
            self.parked.append((bytes(export.blob), self.tokens[seq]))
            self.engine.kv_truncate(seq, 0)
            self.tokens[seq] = []
            self.engine.trim()

    def restore(self) -> None:
        empty = [s for s in self.idle() if not self.tokens[s]]
        if self.parked and empty:
            blob, tokens = self.parked.pop(self.random.randrange(len(self.parked)))
            finish(self.engine.import_state(empty[0], blob, len(tokens)), 0)
            self.tokens[empty[0]] = list(tokens)

    def live(self, n: int) -> None:
        often, rarely = (
            [self.go_on, self.decode],
            [self.begin, self.give_up, self.copy, self.cut, self.park, self.restore],
        )
        for _ in range(n):
            self.random.choice([*often, *often, *rarely])()
        while self.reading:
            self.go_on()
        assert [self.engine.kv_len(s) for s in range(OPTIONS.n_seq)] == [len(t) for t in self.tokens]


class StateWorld(World):
    """The world of a model with recurrent layers: sequences are cut and copied only where there is a state."""

    def begin(self) -> None:
        super().begin()
        for seq in self.reading:
            ends = [len(self.tokens[seq]) + self.random.randint(1, len(self.reading[seq])) for _ in range(2)]
            self.engine.keep_states(seq, ends)

    def copy(self) -> None:
        sources, targets = self.idle(is_filled=True), self.idle()
        if sources and len(targets) > 1:
            src = self.random.choice(sources)
            dst = self.random.choice([s for s in targets if s != src])
            n = self.engine.resumable(src, self.random.randint(1, len(self.tokens[src])))
            if n:
                self.engine.kv_truncate(dst, 0)
                finish(self.engine.copy_prefix(src, dst, n), 0)
                self.tokens[dst] = self.tokens[src][:n]

    def cut(self) -> None:
        for seq in self.random.sample(self.idle(), min(1, len(self.idle()))):
            n, wanted = len(self.tokens[seq]), self.random.randint(0, len(self.tokens[seq]))
            found = self.engine.resumable(seq, wanted)
            assert self.engine.kv_truncate(seq, wanted) == (wanted in (found, n))
            assert self.engine.kv_truncate(seq, found)
            del self.tokens[seq][found:]
