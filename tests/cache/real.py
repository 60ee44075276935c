"""Random conversations over the real engine: the logits after a restored prefix are compared with those of a full
read.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tests.cache.world import wait_for_index
from tests.engine.drive import finish, read, step
from tests.executor.rig import new_executor
from uma_core.cache.settings import CacheSettings
from uma_core.config.options import EngineOptions
from uma_core.engine.api import Batch, DecodeOutcome, DecodeStatus
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.executor.admission import Limits
from uma_core.session.events import Final, Submit
from uma_core.types import FinishReason, Peer, Phase, Priority, Request

N_SEQ, N_CTX_SEQ = 3, 1024
# In standard deviations of the logits. Other batch shapes use other kernels: `RealWorld.noise` measures how far that
# alone moves them, and docs/MEMORY.md has the result of 1,200 conversations. In a mixture of experts that noise can
# make a token choose another expert, which moves its logits by about 1: then a full read in another batch shape has
# to agree.
TOLERANCE = 0.15
# A wrong token far back moves the logits no further than that, so the cells themselves are compared: the first layer's
# K and V depend only on the token and its position. In units of a row's largest value; another token's is off
# by about 1.
CELL_TOLERANCE = 0.05
NOISE_EVERY = 4  # comparisons
STEPS = 12  # tokens that a noise read computes like generated ones
MOST_NEW = 80  # most tokens that a turn adds


@dataclass
class Turn:
    request_id: str
    prompt: list[int]
    logits: np.ndarray | None = None  # (n_vocab,) logits after the prompt
    cells: np.ndarray | None = None  # (2, n, width) K and V of the first layer, as they were before the last chunk
    n_cached: int = 0
    reason: FinishReason | None = None
    resumed: list[tuple[list[int], np.ndarray]] = field(
        default_factory=list
    )  # after each parking: all tokens, and the next one's logits


@dataclass
class Tally:
    """The content of some conversations, and how far their logits were off, in standard deviations."""

    n_conversations: int = 0
    n_turns: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_branches: int = 0
    n_cancelled: int = 0
    n_restarts: int = 0
    n_parked: int = 0
    n_evictions: int = 0
    n_second: int = 0  # comparisons that needed a full read in another batch shape
    cached: list[float] = field(default_factory=list)  # after a cached prefix
    resumed: list[float] = field(default_factory=list)  # after parking
    noise: list[float] = field(default_factory=list)  # nothing was cached, and the text was read in two ways
    cells: list[float] = field(
        default_factory=list
    )  # the worst cell of each cached prefix, in units of its row's largest value

    def add(self, other: Tally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def line(self) -> str:
        worst = ", ".join(
            f"{name} {max(values, default=0.0):.4f} ({np.percentile(values or [0.0], 99):.4f}) of {len(values)}"
            for name, values in (
                ("cached", self.cached),
                ("resumed", self.resumed),
                ("noise", self.noise),
                ("cells", self.cells),
            )
        )
        return (
            f"{self.n_conversations} conversations, {self.n_turns} turns, {self.n_branches} branches, "
            f"{self.n_cancelled} cancelled, "
            f"{self.n_parked} parked, {self.n_evictions} evictions, {self.n_restarts} restarts; "
            f"{self.n_cached} of {self.n_prompt} prompt tokens cached; "
            f"worst deviation (99th percentile): {worst}; {self.n_second} explained by a second batch shape"
        )


class RealWorld:
    """One engine with a cache, and one that reads everything."""

    def __init__(self, path: str, kv_type: str, settings: CacheSettings) -> None:
        self.path, self.settings = path, settings
        self.options = EngineOptions(
            n_ctx=N_SEQ * N_CTX_SEQ, n_seq=N_SEQ, threads=1, n_batch=256, n_ubatch=256, kv_type=kv_type
        )
        self.plain = self.new_engine(
            EngineOptions(n_ctx=N_CTX_SEQ, n_seq=1, threads=1, n_batch=256, n_ubatch=256, kv_type=kv_type)
        )
        self.turns: dict[str, Turn] = {}
        self.tokens: dict[str, list[int]] = {}
        self.was_parked: set[str] = set()
        self.n_restarts = self.n_parked = self.n_evictions = 0  # the last two count daemons that have ended
        self.open()

    def new_engine(self, options: EngineOptions) -> Any:
        return LlamaEngine(self.path, options)

    def open(self) -> None:
        engine = self.engine = self.new_engine(self.options)
        self.executor = new_executor(engine, Limits(max_sessions=100, queue=(100, 100)))
        self.executor.set_cache(self.settings)
        self._sample, engine.prefill_sample = engine.prefill_sample, self._record  # type: ignore[method-assign]
        self._decode, engine.decode = engine.decode, self._record_resumed  # type: ignore[method-assign]
        deliver = self.executor.output.deliver

        def listen(session: Any, token: int, now_ns: int) -> None:
            self.tokens.setdefault(session.id, []).append(token)
            deliver(session, token, now_ns)

        self.executor.output.deliver = listen  # type: ignore[method-assign]

    def _record(self, seq_id: int, sampler: Any) -> int:
        session = next(s for s in self.executor.table if s.seq_id == seq_id)
        turn = self.turns[session.id]
        turn.logits = self.engine.prefill_logits(seq_id).copy()
        n_there = self.engine.kv_len(seq_id)
        turn.cells = self.cells(self.engine, seq_id, n_there) if n_there else None
        return self._sample(seq_id, sampler)

    def _record_resumed(self, batch: Batch, samplers: Any) -> DecodeOutcome:
        """The first decode call of a session after it was parked reads only restored cells."""
        outcome = self._decode(batch, samplers)
        rows = [i for i in range(batch.n) if batch.want_logits[i]]
        for row, i in enumerate(rows):
            session = next(s for s in self.executor.table if s.seq_id == batch.seq_id[i])
            if session.id in self.was_parked and outcome.status is DecodeStatus.OK:
                self.was_parked.discard(session.id)
                content = session.content(int(batch.pos[i]) + 1).tolist()
                self.turns[session.id].resumed.append((content, self.engine.logits(row).copy()))
        return outcome

    def totals(self) -> tuple[int, int, int]:
        """Return the numbers of restarts, of parked sessions, and of cache entries that were removed to make room."""
        evictions = self.executor.cache.meters.evictions.values()
        return (
            self.n_restarts,
            self.n_parked + int(self.executor.meters.preemptions.value),
            self.n_evictions + sum(int(counter.value) for counter in evictions),
        )

    def restart(self) -> list[Turn]:
        """Start again. Return the running requests, which are cancelled."""
        self.n_restarts += 1
        self.was_parked.clear()
        self.executor.end_all(FinishReason.CANCELLED)
        ended = self.collect()
        self.executor.close(30.0)
        _, self.n_parked, self.n_evictions = self.totals()
        self.engine.close()
        self.open()
        wait_for_index(self.executor.cache)
        return ended

    def close(self) -> None:
        self.executor.end_all(FinishReason.CANCELLED)
        self.executor.close(5.0)
        self.engine.close()
        self.plain.close()

    def submit(self, turn: Turn, n: int, priority: Priority | None) -> None:
        self.turns[turn.request_id] = turn
        request = Request(turn.request_id, tokens=tuple(turn.prompt), max_tokens=n, priority=priority, ignore_eos=True)
        self.executor.submit(Submit(1, Peer(1, 1, 1), request, list(turn.prompt), 0, self.ends(turn.prompt)))

    def tick(self) -> None:
        if not self.executor.tick() and not len(self.executor.table):
            self.executor.idle()
        self.was_parked.update(s.id for s in self.executor.table if s.phase is Phase.PARKED and s.generated)

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

    def deviation(self, tokens: list[int], logits: np.ndarray, n_cached: int = 0) -> tuple[float, bool]:
        """Return how far the logits after the tokens are from those of a full read, in standard deviations, and whether
        a second full read was needed.

        Beyond the tolerance, reads in other batch shapes are tried: with the tail of the cached read, or step by step.
        """
        last = len(tokens) - 1
        shapes = [(last, 0), (last, 1), (n_cached or last, 0), (max(0, last - STEPS), STEPS + 1)]
        values = []
        for cut, n_steps in shapes:
            full = self._full(tokens, cut, n_steps)
            values.append(float(np.abs(full - logits).max() / full.std()))
            if values[-1] <= TOLERANCE:
                break
        return min(values), len(values) > 1

    def cells(self, engine: Any, seq_id: int, n: int) -> np.ndarray:
        return first_layer(engine, seq_id, n)

    def ends(self, prompt: list[int]) -> tuple[int, ...]:
        """Return the positions at which the messages of a prompt end."""
        return ()

    def worst_cell(self, tokens: list[int], cells: np.ndarray) -> float:
        """Return how far the first layer's K and V are from those of a full read. The caller has just made a full
        read.
        """
        full = first_layer(self.plain, 0, min(len(tokens), cells.shape[1]))
        return float((np.abs(full - cells).max(axis=2) / np.abs(full).max(axis=2)).max())

    def noise(self, tokens: list[int], cut: int) -> float:
        """Return the difference between two full reads in different batch shapes: the second reads some tokens after
        `cut` one by one.
        """
        full, other = self._full(tokens, len(tokens) - 1, 0), self._full(tokens, cut, min(STEPS, len(tokens) - 1 - cut))
        return float(np.abs(full - other).max() / full.std())

    def _full(self, tokens: list[int], cut: int, n_steps: int) -> np.ndarray:
        """Return (n_vocab,), the logits after a read in parts without a cache. `n_steps` tokens after `cut` are read
        one by one.
        """
        plain = self.plain
        plain.kv_truncate(0, 0)
        read(plain, 0, np.array(tokens[:cut], np.int32), False)
        for token in tokens[cut : cut + n_steps]:
            step(plain, [(0, token)])
        if cut + n_steps == len(tokens):
            return plain.logits(0).copy()
        read(plain, 0, np.array(tokens[cut + n_steps :], np.int32))
        slot = next(slot for slot in plain.prefill_slots if slot.warm_seq == 0)
        return slot.logits().copy()


def first_layer(engine: LlamaEngine, seq_id: int, n: int) -> np.ndarray:
    """Return (2, n, width) float32: K and V of the first n positions."""
    export = engine.export_state(seq_id, n)
    finish(export)
    row = engine.info.kv_bytes_per_cell // (2 * engine.info.n_layer)
    raw = np.frombuffer(export.blob, np.uint8)[: 2 * n * row]
    if engine.info.kv_type == "f16":
        return raw.view(np.float16).astype(np.float32).reshape(2, n, -1)
    blocks = raw.reshape(-1, 34)  # q8_0: a scale in half precision, then 32 numbers
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return (scales * blocks[:, 2:].view(np.int8)).reshape(2, n, -1)


class RealCrowd:
    """Conversations that grow, branch, are cancelled, parked and restarted, over a real engine."""

    def __init__(self, world: RealWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.chats: list[list[int]] = []
        self.running: dict[str, int] = {}
        self.n_asked = 0
        self.tally = Tally()
        self.systems = [self._text(n) for n in (60, 150, 280)]

    def _text(self, n: int) -> list[int]:
        return [self.rng.randrange(32, 127) for _ in range(n)]

    def _begin(self, tokens: list[int]) -> int:
        self.chats.append(tokens)
        self.tally.n_conversations += 1
        return len(self.chats) - 1

    def _choose(self) -> int:
        """Choose a new chat, a branch of an old chat at any token, or an old chat."""
        rng = self.rng
        idle = [i for i in range(len(self.chats)) if i not in self.running.values()]
        if not idle or rng.random() < 0.3:
            return self._begin(list(rng.choice(self.systems)))
        if rng.random() < 0.3:
            old = self.chats[rng.choice(idle)]
            self.tally.n_branches += 1
            return self._begin(old[: rng.randint(1, len(old))])
        return rng.choice(idle)

    def turn(self) -> None:
        rng, chat = self.rng, self._choose()
        n = rng.choice([1, 3, 12])
        if len(self.chats[chat]) + MOST_NEW + n > N_CTX_SEQ:
            chat = self._begin(list(rng.choice(self.systems)))
        prompt = self.chats[chat] + self._text(rng.randint(1, MOST_NEW))
        self.n_asked += 1
        turn = Turn(f"r{self.n_asked}", prompt)
        self.running[turn.request_id] = chat
        self.world.submit(turn, n, rng.choice([None, Priority.INTERACTIVE, Priority.BACKGROUND]))

    def collect(self, turns: list[Turn]) -> None:
        for turn in turns:
            chat = self.running.pop(turn.request_id)
            self.chats[chat] = turn.prompt + self.world.tokens.get(turn.request_id, [])
            assert turn.reason in (FinishReason.LENGTH, FinishReason.CANCELLED), turn.reason
            self._compare(turn)

    def _compare(self, turn: Turn) -> None:
        tally, world = self.tally, self.world
        tally.n_turns += 1
        tally.n_cancelled += turn.reason is FinishReason.CANCELLED
        tally.n_prompt += len(turn.prompt)
        tally.n_cached += turn.n_cached
        if turn.n_cached and turn.logits is not None and turn.cells is not None:
            value, is_second = world.deviation(turn.prompt, turn.logits, turn.n_cached)
            tally.cached.append(value)
            tally.n_second += is_second
            tally.cells.append(world.worst_cell(turn.prompt, turn.cells))
            if len(tally.cached) % NOISE_EVERY == 1:
                tally.noise.append(world.noise(turn.prompt, self.rng.randrange(1, len(turn.prompt))))
        for tokens, logits in turn.resumed:
            value, is_second = world.deviation(tokens, logits)
            tally.resumed.append(value)
            tally.n_second += is_second

    def live(self, n_conversations: int) -> Tally:
        """Hold this many conversations with any number of turns each, and continue until a third as many cached
        prefixes were compared.

        The machine's speed decides which requests arrive while others are read, and so how often one request finds
        another's prefix.
        """
        rng, world, tally = self.rng, self.world, self.tally
        while (
            is_open := tally.n_conversations < n_conversations or len(tally.cached) <= n_conversations / 3
        ) or self.running:
            assert self.n_asked < 100 * n_conversations, "the cache finds next to nothing"
            if is_open and len(self.running) < 6 and rng.random() < 0.3:
                self.turn()
            if self.running and rng.random() < 0.02:
                world.executor.cancel(1, rng.choice(list(self.running)))
            if rng.random() < 0.004:
                self.collect(world.restart())
            world.tick()
            self.collect(world.collect())
        tally.n_restarts, tally.n_parked, tally.n_evictions = world.totals()
        return tally
