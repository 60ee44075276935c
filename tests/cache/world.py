"""Random conversations over a FakeEngine with a cache, and the answers of an engine without one.

The FakeEngine's next token is a hash of everything before it, so one wrong cell anywhere changes the text.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from tests.executor.rig import new_executor
from uma_core.cache.manager import PRIVATE, PrefixCache
from uma_core.cache.settings import CacheSettings
from uma_core.clock import ManualClock
from uma_core.engine.fake.cost import FakeCost
from uma_core.engine.fake.engine import FakeEngine, FakeModel, Faults
from uma_core.engine.fake.text import ALPHABET, START, advance, next_token
from uma_core.executor.admission import Limits
from uma_core.metrics.catalog import new_registry
from uma_core.session.events import Final, Refused, Submit, Token
from uma_core.types import FinishReason, Peer, Phase, Priority, Request

MS = 1_000_000
COST = FakeCost(
    decode=((1, 2.0 * MS), (8, 4.0 * MS)),
    decode_cell_ns=10.0,
    prefill=((1, 2.0 * MS), (32, 6.0 * MS), (512, 90.0 * MS)),
    prefill_cell_ns=((1, 5.0),),
    n_layer=4,
    node_share=0.5,
    piece_overhead_ns=10_000.0,
    copy_ns_per_byte=0.5,
    copy_fixed_ns=10_000.0,
)
CELL = 1000


def answer(prompt: list[int], n: int) -> list[int]:
    """Return the greedy continuation, straight from the hash."""
    state = START
    for token in prompt:
        state = advance(state, token)
    out: list[int] = []
    for _ in range(n):
        out.append(next_token(state, 0))
        state = advance(state, out[-1])
    return out


@dataclass
class Chat:
    """One conversation: all its tokens so far, and the turn that is being answered."""

    tokens: list[int]
    uid: int
    request_id: str = ""
    prompt: list[int] = field(default_factory=list)
    n_max: int = 0
    text: str = ""


class World:
    """The compute side of one daemon. `restart` makes a new one over the same cache directory."""

    def __init__(
        self, model: FakeModel, settings: CacheSettings, limits: Limits | None = None, cost: FakeCost = COST
    ) -> None:
        self.clock = ManualClock(1)
        self.faults = Faults()
        self.model, self.settings, self.limits, self.cost = (
            model,
            settings,
            limits or Limits(max_sessions=200, queue=(200, 200)),
            cost,
        )
        self.finals: dict[str, Final] = {}
        self.texts: dict[str, str] = {}
        self.refused: dict[str, Refused] = {}
        self.n_computed = 0
        self.open()

    def open(self) -> None:
        self.engine = FakeEngine(self.model, self.cost, self.clock, self.faults)
        self.registry = new_registry()
        self.executor = new_executor(self.engine, self.limits, clock=self.clock, registry=self.registry)
        self.executor.set_cache(self.settings)
        self.cache = self.executor.cache

    def restart(self) -> None:
        """Start again: running requests end, and the files on disk stay."""
        self.executor.end_all(FinishReason.CANCELLED)
        self.drain_events()
        self.executor.close(10.0)
        self.open()
        self.read_directory()

    def read_directory(self) -> None:
        wait_for_index(self.cache)

    def submit(self, request_id: str, tokens: list[int], uid: int = 1, conn: int = 1, **fields: object) -> None:
        ends = fields.pop("message_ends", ())
        request = Request(request_id, tokens=tuple(tokens), **fields)  # type: ignore[arg-type]
        self.executor.submit(Submit(conn, Peer(uid, uid, uid), request, list(tokens), self.clock.now_ns(), ends))  # type: ignore[arg-type]

    def tick(self) -> bool:
        is_busy = self.executor.tick()
        self.clock.advance(MS // 20)  # time that a tick takes besides the engine
        if not is_busy:
            self.clock.advance(MS)
            if not len(self.executor.table):
                self.executor.idle()
        self.drain_events()
        return is_busy

    def drain_events(self) -> None:
        while self.executor.events:
            event = self.executor.events.popleft()
            if isinstance(event, Token):
                self.texts[event.request_id] = self.texts.get(event.request_id, "") + event.text
            elif isinstance(event, Final):
                assert event.request_id not in self.finals, "two final events"
                self.finals[event.request_id] = event
                self.texts[event.request_id] = self.texts.get(event.request_id, "") + event.text
            elif isinstance(event, Refused):
                self.refused[event.request_id] = event

    def run(self, n_most: int = 50_000) -> None:
        for _ in range(n_most):
            self.tick()
            if not len(self.executor.table):
                return
        raise AssertionError(f"{[(s.id, s.phase.name) for s in self.executor.table]} did not end")

    def ask(self, request_id: str, tokens: list[int], n: int = 8, uid: int = 1, **fields: object) -> Final:
        """Submit a request, run to its end, and check the text."""
        self.submit(request_id, tokens, uid, max_tokens=n, **fields)
        self.run()
        assert request_id not in self.refused, self.refused[request_id].error
        assert self.texts[request_id].encode() == bytes(answer(tokens, n))
        return self.finals[request_id]

    def cached(self, request_id: str) -> int:
        return self.finals[request_id].usage["cached_tokens"]

    def check(self) -> None:
        """Check what must always hold between two ticks."""
        check_cache(self)


def wait_for_index(cache: PrefixCache) -> None:
    """Wait until the directory was searched. The disk's thread has the lowest priority, so it must be given time."""
    disk, found = cache.store.disk, []
    if disk is not None:
        disk.index(found.append)
        while not found:
            time.sleep(0.0005)
            disk.poll()


def check_cache(world: World) -> None:
    cache, engine = world.cache, world.engine
    blobs = {}
    for tree in cache.trees.values():
        for node in tree.nodes():
            assert node.is_needed and node.n_kept >= 0 and len(node.tokens)
            assert node.parent is tree.root or node.parent is not None
            assert node.start == (node.parent.end if node.parent is not tree.root else 0)
            assert node.parent.children[int(node.tokens[0])] is node
            assert node.parent is tree.root or node.holders <= node.parent.holders
            if node.seg is not None:
                assert node in node.seg.nodes and node.seg.start <= node.start and node.end <= node.seg.end
                if node.seg.blob is not None:
                    blobs[id(node.seg)] = node.seg
            for seq_id in node.holders:
                resident = cache.residents[seq_id]
                assert resident.tree is tree and resident.n >= node.end
    for resident in cache.residents:
        if resident.tree is not None and resident.n:
            assert resident.end is not None and resident.end.end == resident.n
            held = resident.tree.tokens_to(resident.end).tolist()
            assert engine._kv.tokens(resident.seq_id)[: resident.n] == held
    ram = cache.store.ram
    n_bytes = sum(seg.n_bytes for seg in blobs.values())
    assert n_bytes <= ram.n_bytes <= max(ram.budget, n_bytes) and ram.n_segments == len(blobs)
    assert sum(ram.by_tenant.values()) == ram.n_bytes
    assert all(n > 0 for n in ram.by_tenant.values())
    assert cache.store.disk_bytes == sum(n for n, _ in cache.store.files.values())


def check_idle(world: World) -> None:
    """Check that nothing runs: no protection, no reservation and no reader is left over."""
    cache, table = world.cache, world.executor.table
    for _ in range(1000):
        if not cache.has_steps:
            break
        world.tick()
    assert table.free_seqs == list(range(world.model.n_seq_max)) and table.n_cells_reserved == 0
    assert all(not h.owner and not h.is_claimed and not h.readers for h in cache.residents)
    assert not any(node.n_kept for tree in cache.trees.values() for node in tree.nodes())
    assert not any(tenant <= PRIVATE for tenant, _ in cache.trees)
    assert not cache._chains


class Crowd:
    """Many conversations at once: they grow, branch, are cancelled, wait and come back."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.chats: list[Chat] = []
        self.running: dict[str, Chat] = {}
        self.n_turns = self.n_asked = self.n_cached = self.n_prompt = 0
        self.systems = [self._text(self.rng.randint(20, 300)) for _ in range(3)]

    def _text(self, n: int) -> list[int]:
        return [self.rng.choice(ALPHABET) for _ in range(n)]

    def turn(self) -> None:
        """Begin a turn of one conversation."""
        rng = self.rng
        idle = [c for c in self.chats if not c.request_id]
        if not idle or rng.random() < 0.25:
            chat = Chat(list(rng.choice(self.systems)), rng.choice([1, 1, 2]))
            self.chats.append(chat)
        else:
            chat = rng.choice(idle)
            if rng.random() < 0.3:  # a branch: another answer to an earlier turn
                chat = Chat(chat.tokens[: rng.randint(1, len(chat.tokens))], chat.uid)
                self.chats.append(chat)
        n_ctx = self.world.engine.info.n_ctx_seq
        chat.prompt = chat.tokens + self._text(rng.randint(1, 120))
        chat.n_max = rng.choice([1, 2, 5, 20, 60])
        if len(chat.prompt) + chat.n_max > n_ctx:
            self.chats.remove(chat)
            return
        self.n_asked += 1
        chat.request_id = f"r{self.n_asked}"
        self.running[chat.request_id] = chat
        ends = (len(chat.tokens), len(chat.prompt)) if rng.random() < 0.5 else ()
        self.world.submit(
            chat.request_id,
            chat.prompt,
            chat.uid,
            max_tokens=chat.n_max,
            priority=rng.choice([None, Priority.INTERACTIVE, Priority.BACKGROUND]),
            cache_prompt=rng.random() < 0.95,
            stream=rng.random() < 0.8,
            message_ends=ends,
        )

    def collect(self) -> None:
        """Check the answers that are complete, and cancelled ones as far as they got."""
        for request_id in [r for r in self.running if r in self.world.finals or r in self.world.refused]:
            chat = self.running.pop(request_id)
            assert request_id not in self.world.refused, self.world.refused[request_id].error
            final = self.world.finals[request_id]
            text = list(self.world.texts.get(request_id, "").encode())
            expected = answer(chat.prompt, chat.n_max)
            assert text == expected[: len(text)], f"{request_id} after {len(chat.prompt)} tokens"
            assert final.reason in (FinishReason.LENGTH, FinishReason.CANCELLED), final
            if final.reason is FinishReason.LENGTH:
                assert text == expected
            assert 0 <= final.usage["cached_tokens"] < final.usage["prompt_tokens"]
            self.n_cached += final.usage["cached_tokens"]
            self.n_prompt += final.usage["prompt_tokens"]
            self.n_turns += 1
            chat.tokens, chat.request_id = chat.prompt + text, ""

    def live(self, n_turns: int, check_every: int = 7) -> None:
        """Run until this many turns are answered."""
        world, rng, n_ticks = self.world, self.rng, 0
        while self.n_turns < n_turns:
            if len(self.running) < 12 and rng.random() < 0.2:
                self.turn()
            if self.running and rng.random() < 0.01:
                world.executor.cancel(1, rng.choice(list(self.running)))
            world.tick()
            n_ticks += 1
            if n_ticks % check_every == 0:
                world.check()
            self.collect()
        while self.running:
            world.tick()
            self.collect()
        world.check()

    def parked(self) -> int:
        return sum(s.phase is Phase.PARKED for s in self.world.executor.table)
