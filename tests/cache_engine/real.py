"""Random conversations over the real engine: the logits that follow a restored beginning against those of a full read."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.engine.drive import read
from uma_core.cache.settings import CacheSettings
from uma_core.clock import MonotonicClock
from uma_core.config import EngineOptions
from uma_core.engine.llama import LlamaEngine
from uma_core.executor.executor import Executor, device_view
from uma_core.executor.intake import Admittance, Limits
from uma_core.metrics import new_registry
from uma_core.policy.calibrate import guess
from uma_core.policy.knobs import Knobs
from uma_core.session.events import Final, Submit
from uma_core.types import FinishReason, Lane, Peer, Request

N_SEQ, N_CTX_SEQ = 3, 1024
# Of the logits' standard deviation. Reading one prompt in two different chunkings moves them by up to 0.07 (f16 and
# q8_0 KV, all three models, 288 prompts): other batch shapes take other kernels. A wrong cell moves them by about 1.
TOLERANCE = 0.15


@dataclass
class Turn:
    request_id: str
    prompt: list[int]
    logits: np.ndarray | None = None
    n_cached: int = 0
    reason: FinishReason | None = None


class RealWorld:
    """One engine with a cache, one that reads everything."""

    def __init__(self, path: str, kv_type: str, settings: CacheSettings) -> None:
        self.path, self.settings = path, settings
        self.options = EngineOptions(n_ctx=N_SEQ * N_CTX_SEQ, n_seq=N_SEQ, threads=1, n_batch=256, n_ubatch=256, kv_type=kv_type)
        self.plain = LlamaEngine(path, EngineOptions(n_ctx=N_CTX_SEQ, n_seq=1, threads=1, n_batch=256, n_ubatch=256, kv_type=kv_type))
        self.turns: dict[str, Turn] = {}
        self.tokens: dict[str, list[int]] = {}
        self.open()

    def open(self) -> None:
        engine = self.engine = LlamaEngine(self.path, self.options)
        clock = MonotonicClock()
        limits = Limits(max_sessions=100, queue=(100, 100))
        self.executor = Executor(engine, Admittance(limits, clock), Knobs(), guess(device_view(engine)), new_registry(), clock)
        self.executor.set_cache(self.settings)
        self._sample, engine.prefill_sample = engine.prefill_sample, self._record  # type: ignore[method-assign]
        deliver = self.executor.deliveries.deliver

        def listen(session: Any, token: int, now_ns: int) -> None:
            self.tokens.setdefault(session.id, []).append(token)
            deliver(session, token, now_ns)

        self.executor.deliveries.deliver = listen  # type: ignore[method-assign]

    def _record(self, seq_id: int, sampler: Any) -> int:
        session = next(s for s in self.executor.table if s.seq_id == seq_id)
        self.turns[session.id].logits = self.engine.prefill_logits(seq_id).copy()
        return self._sample(seq_id, sampler)

    def restart(self) -> None:
        self.executor.end_all(FinishReason.CANCELLED)
        self.collect()
        self.executor.close(30.0)
        self.engine.close()
        self.open()
        disk = self.executor.cache.store.disk
        found: list[object] = []
        if disk is not None:
            disk.index(found.append)
            while not found:
                disk.poll()

    def close(self) -> None:
        self.executor.end_all(FinishReason.CANCELLED)
        self.executor.close(5.0)
        self.engine.close()
        self.plain.close()

    def submit(self, turn: Turn, n: int, lane: Lane | None) -> None:
        self.turns[turn.request_id] = turn
        request = Request(turn.request_id, tokens=tuple(turn.prompt), max_tokens=n, lane=lane, ignore_eos=True)
        self.executor.submit(Submit(1, Peer(1, 1, 1), request, list(turn.prompt), 0))

    def tick(self) -> None:
        if not self.executor.tick() and not len(self.executor.table):
            self.executor.idle()

    def collect(self) -> list[Turn]:
        ended = []
        events: deque[Any] = self.executor.events
        while events:
            event = events.popleft()
            if isinstance(event, Final):
                turn = self.turns[event.request_id]
                turn.n_cached, turn.reason = event.usage["cached_tokens"], event.reason
                ended.append(turn)
        return ended

    def deviation(self, turn: Turn) -> float:
        """Of the logits after the prompt, in standard deviations."""
        assert turn.logits is not None
        self.plain.kv_truncate(0, 0)
        read(self.plain, 0, np.array(turn.prompt[:-1], np.int32))
        read(self.plain, 0, np.array(turn.prompt[-1:], np.int32))
        lane = next(lane for lane in self.plain.lanes if lane.warm_seq == 0)
        full = lane.logits().copy()
        return float(np.abs(full - turn.logits).max() / full.std())


class RealCrowd:
    """Conversations that grow, branch, are cancelled, parked and restarted, over a real engine."""

    def __init__(self, world: RealWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.chats: list[list[int]] = []
        self.running: dict[str, int] = {}
        self.n_asked = self.n_ended = self.n_cached = self.n_prompt = 0
        self.deviations: list[float] = []
        self.systems = [self._text(rng_n) for rng_n in (60, 150, 280)]

    def _text(self, n: int) -> list[int]:
        return [self.rng.randrange(32, 127) for _ in range(n)]

    def turn(self) -> None:
        rng = self.rng
        idle = [i for i in range(len(self.chats)) if i not in self.running.values()]
        if not idle or rng.random() < 0.3:
            self.chats.append(list(rng.choice(self.systems)))
            chat = len(self.chats) - 1
        elif rng.random() < 0.3:
            old = self.chats[rng.choice(idle)]
            self.chats.append(old[: rng.randint(1, len(old))])
            chat = len(self.chats) - 1
        else:
            chat = rng.choice(idle)
        prompt = self.chats[chat] + self._text(rng.randint(1, 80))
        n = rng.choice([1, 3, 12])
        if len(prompt) + n > N_CTX_SEQ:
            self.chats[chat] = list(rng.choice(self.systems))
            return
        self.n_asked += 1
        turn = Turn(f"r{self.n_asked}", prompt)
        self.running[turn.request_id] = chat
        self.world.submit(turn, n, rng.choice([None, Lane.INTERACTIVE, Lane.BACKGROUND]))

    def collect(self) -> None:
        for turn in self.world.collect():
            chat = self.running.pop(turn.request_id)
            self.chats[chat] = turn.prompt + self.world.tokens.get(turn.request_id, [])
            assert turn.reason in (FinishReason.LENGTH, FinishReason.CANCELLED), turn.reason
            self.n_ended += 1
            self.n_prompt += len(turn.prompt)
            self.n_cached += turn.n_cached
            if turn.n_cached and turn.logits is not None:
                self.deviations.append(self.world.deviation(turn))

    def live(self, n_turns: int) -> None:
        rng = self.rng
        while self.n_ended < n_turns:
            if len(self.running) < 6 and rng.random() < 0.3:
                self.turn()
            if self.running and rng.random() < 0.003:
                self.world.executor.cancel(1, rng.choice(list(self.running)))
            if rng.random() < 0.0005:
                self.world.restart()
            self.world.tick()
            self.collect()
        while self.running:
            self.world.tick()
            self.collect()
