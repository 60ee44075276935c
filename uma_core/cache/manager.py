"""The prefix cache of one engine: finds the part of a prompt that is already computed, restores it, and keeps what
requests leave behind.

Rules: owned by the compute thread. A sequence keeps its cells after its request has ended, until the sequence is
needed. Then the part that no tier holds yet is saved, in slices, as part of the new session's own transfer. The last
prompt token is always computed. Each tenant (peer uid) has its own tree, so neither bytes nor timing reveal another
tenant's prompts. Each set of LoRA adapters has one too, because KV computed with one set is useless to another. A
request with `cache_prompt: false` has a tree that ends with it: it can be parked, but its KV is shared only among its
own answers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from uma_core.cache.chain import Chain, CopyReader, Readers, Room, Steps
from uma_core.cache.finder import DISK, RAM, RESIDENT, TIERS, Finder, Piece
from uma_core.cache.leaving import Emptied, Leaving
from uma_core.cache.meters import CacheMeters
from uma_core.cache.radix import Node, Tree
from uma_core.cache.resident import Resident
from uma_core.cache.saving import Saving
from uma_core.cache.settings import CacheSettings
from uma_core.cache.store import Store
from uma_core.clock import Clock
from uma_core.engine.api import Engine, Transfer
from uma_core.errors import UmaError
from uma_core.metrics.catalog import Registry
from uma_core.policy.cost.model import CostModel
from uma_core.session.session import Session
from uma_core.types import AdapterSet, FinishReason, Phase

log = logging.getLogger(__name__)

SHARED = -2  # tenant of all users if sharing is allowed
PRIVATE = -10  # tenants from this number down are single requests
N_OFFERS = 16  # sessions looked up per tick
N_VARIANTS = 1024
MIN_SAVE = 16  # tokens: reading fewer again takes no noticeable time


class PrefixCache:
    """See the module docstring. `cost` is the current cost model; the executor keeps it up to date."""

    def __init__(
        self,
        engine: Engine,
        cost: CostModel,
        registry: Registry,
        clock: Clock,
        on_free: Callable[[int], None],
        wake: Callable[[], None],
    ) -> None:
        """`on_free` is called when a lingering sequence may be used again; `wake`, on other threads, when the disk has
        something to tell.
        """
        self.settings = CacheSettings()
        self.cost = cost
        self.meters = CacheMeters(registry)
        self.residents = [Resident(i) for i in range(engine.info.n_seq_max)]
        self.trees: dict[tuple[int, str], Tree] = {}  # by tenant and adapters
        self.finder = Finder(engine, self.residents)
        self.store = Store(engine, self.finder, self.meters, clock, self._tree, wake)
        self._on_free = on_free
        self.engine = engine
        self.clock = clock
        self._variants: dict[AdapterSet, str] = {}  # names of adapter sets, made once
        self._chains: dict[int, Chain] = {}  # by the sequence that they fill
        self._saving: set[Saving] = set()
        self._leaving = Leaving(lambda resident: self.save(resident, 0), self.dismiss, clock)
        self.is_short = False  # in one pool, sequences that are being taken over leave too little room until then
        # sequences of ended sessions whose last chunk is still in progress
        self._lingering: dict[int, tuple[Session, Transfer]] = {}

    def apply(self, settings: CacheSettings) -> None:
        """Change the settings, between two ticks."""
        was_on, self.settings = self.settings.is_on, settings
        self.store.apply(settings)
        if was_on and not settings.is_on:
            clear(self)

    # finding

    def accept(self, session: Session) -> None:
        """Decide whether other requests may use the session's KV. All answers of a request are accepted together."""
        session.is_private = not (self.settings.is_on and session.request.cache_prompt)

    def _tenant(self, session: Session) -> int:
        if session.is_private:
            return PRIVATE - session.first_sid
        return SHARED if self.settings.is_shared else session.uid

    def _key(self, session: Session) -> tuple[int, str]:
        return self._tenant(session), self._variant(session.adapters) if session.adapters else ""

    def _variant(self, adapters: AdapterSet) -> str:
        """Return a name for the adapter set, made from the content of its files: ids and paths do not identify what
        computed the KV.
        """
        known = self._variants.get(adapters)
        if known is None:
            files = {adapter.id: adapter.fingerprint for adapter in self.engine.info.adapters}
            parts = sorted(f"{files[name]} {scale!r}" for name, scale in adapters)
            known = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
            if len(self._variants) >= N_VARIANTS:
                self._variants.clear()
            self._variants[adapters] = known
        return known

    def _tree_of(self, session: Session) -> Tree:
        return self._tree(*self._key(session))

    def _tree(self, tenant: int, variant: str) -> Tree:
        if self.settings.is_shared and tenant > PRIVATE:
            tenant = SHARED
        tree = self.trees.get((tenant, variant))
        if tree is None:
            self._drop_empty()
            tree = self.trees[tenant, variant] = Tree(tenant, variant)
        return tree

    def tree_of_user(self, uid: int) -> Tree | None:
        """Return the tree for requests of this user that do not choose adapters."""
        adapters = self.engine.info.default_adapters
        return self.trees.get((SHARED if self.settings.is_shared else uid, self._variant(adapters) if adapters else ""))

    def _drop_empty(self) -> None:
        """Drop empty trees, which must not pile up: scales can be any number, and there are many requests."""
        held = {id(resident.tree) for resident in self.residents}
        self.trees = {
            key: tree
            for key, tree in self.trees.items()
            if tree.root.children or id(tree) in held or not (tree.variant or tree.tenant <= PRIVATE)
        }

    def peek(self, session: Session) -> int:
        """Return how much of a new session's prompt is in the cache."""
        self.accept(session)
        self._offer(session)
        return session.cached_hint

    def offer(self, sessions: list[Session]) -> None:
        """Update the policy's figures for waiting sessions and for prompts between two chunks."""
        n_left = N_OFFERS
        for session in sessions:
            if (
                n_left
                and session.phase in (Phase.QUEUED, Phase.PARKED, Phase.PREFILL)
                and not session.n_chunk
                and session.transfer is None
            ):
                n_left -= self._offer(session)

    def _offer(self, session: Session) -> bool:
        """Look up a session's prompt. True: a lookup was needed."""
        tree = self.trees.get(self._key(session))
        if tree is None or session.cache_version == tree.version:
            return False
        session.cache_version = tree.version
        path, n = tree.walk(session.prompt, _n_usable(session))
        seq_id, n_own = (-1, 0) if session.seq_id >= 0 else self.finder.best_in_place(tree, path, n)
        at = session.n_past if session.seq_id >= 0 else 0
        pieces = self.finder.route(path, n, at, session.seq_id)
        hint = max(n_own, pieces[-1].end if pieces else 0)
        offer = hint, self.finder.cost_ns(pieces, hint, self.cost) if hint else 0, seq_id, n_own
        if offer != (session.cached_hint, session.restore_ns, session.cached_seq, session.cached_own):
            session.cached_hint, session.restore_ns, session.cached_seq, session.cached_own = offer
            session.touch()
        return True

    def losses(self, free_seqs: list[int], now_ns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (tokens held, ns that losing them would cost) per free sequence. A sequence that has long been idle
        counts for less.
        """
        half_life = max(1, self.settings.park_idle_ns)
        held, loss = [], []
        for seq_id in free_seqs:
            resident = self.residents[seq_id]
            held.append(resident.n)
            age = max(0, now_ns - resident.t_used)
            loss.append(int(self._loss_ns(resident) * 0.5 ** (age / half_life)) if resident.n else 0)
        return tuple(held), tuple(loss)

    def _loss_ns(self, resident: Resident) -> int:
        if not self.finder.can_move or not self.store.ram.budget:
            return self.cost.prompt_ns(resident.n, 0)
        n_unsaved = sum(len(node.tokens) for node in self.store.unsaved(resident.end))
        return self.cost.transfer_ns((resident.n + n_unsaved) * self.finder.cell_bytes)

    # a session gets its sequence, or more of its prompt

    def begin(self, session: Session, want_restore: bool) -> None:
        """Give the session its sequence, with as much of its prompt as can be restored.

        Sets the session's transfer if that takes time.
        """
        resident = self.residents[session.seq_id]
        self._leaving.stay(resident)
        tree = self._tree_of(session)
        is_own = resident.owner == session.sid
        path, n = tree.walk(session.prompt, _n_usable(session)) if want_restore else ([], 0)
        at = session.n_past if is_own else self.finder.in_place(resident, tree, path, n)
        pieces = self.finder.route(path, n, at, resident.seq_id) if want_restore else []
        steps = self._steps(session, resident, at, pieces, path[-1] if pieces else None)
        chain = Chain(steps, self.clock, sum(p.end - p.start for p in pieces) * self.finder.cell_bytes)
        if not chain.is_done:
            self._chains[resident.seq_id] = chain
            session.transfer = chain
            session.touch()

    def _steps(self, session: Session, resident: Resident, at: int, pieces: list[Piece], goal: Node | None) -> Steps:
        t0, is_taken = self.clock.now_ns(), resident.owner == session.sid
        tree = self._tree_of(session)
        copied = next(((p.start, p.end) for p in pieces if isinstance(p.source, Resident)), (0, 0))
        reader = CopyReader(self._chains, resident.seq_id, copied)
        sources = [p.source for p in pieces if isinstance(p.source, Resident)]
        for source in sources:  # these parts must not be dropped before they are used
            source.readers.add(reader)
        if goal is not None:
            goal.keep()
        try:
            if not is_taken:
                yield from self._vacate(resident, at)
                at = self._take(session, resident, at)
            if pieces and self.engine.info.is_unified:
                yield Room()
            for piece in pieces:
                if piece.start != self.engine.kv_len(resident.seq_id):
                    break
                reader.check()
                if not isinstance(piece.source, Resident):
                    self._let_go(sources, reader)
                    if self.is_short and not is_taken:
                        yield self._vacated()
                yield from self._bring(resident, piece, reader)
            self._arrived(session, resident, pieces, t0)
        except UmaError as error:
            log.warning("%s: %s; the rest of the prompt is read", session.id, error)
            self._arrived(session, resident, pieces, t0)
        finally:
            resident.is_claimed = False
            self._chains.pop(resident.seq_id, None)
            self._let_go(sources, reader)
            if goal is not None:
                tree.unkeep(goal)

    def _let_go(self, sources: list[Resident], reader: CopyReader) -> None:
        """Record that nothing more is copied from these, so that they can make room."""
        for source in sources:
            source.readers.discard(reader)
            if source.is_leaving and source.is_idle and not source.readers:
                self.empty(source)

    def _vacated(self) -> Emptied:
        return Emptied(self._leaving, lambda: self.is_short)

    def _vacate(self, resident: Resident, at: int) -> Steps:
        """Save the content beyond `at` as far as that pays off, and wait for transfers that copy from it."""
        resident.is_claimed, resident.n_claimed = True, at
        if resident.tree is not None and at < resident.n and self.finder.can_move:
            yield from self.save(resident, at)
        if resident.readers and at < resident.n:
            yield Readers(resident)

    def save(self, resident: Resident, start: int, is_last: bool = False) -> Steps:
        """Make snapshots of the content beyond `start` that only this sequence has, and of the content that they
        continue.

        A file is useless without the files of its prefix. Another sequence may hold that prefix now but may never write
        it, so the prefix is written with the first file that needs it. Without a disk, only the part of the prefix is
        saved that no other sequence could give. `is_last`: the daemon ends, so the content of the other sequences is
        lost too.
        """
        tree, end = resident.tree, resident.end
        assert tree is not None and end is not None
        lost = [node for node in self.store.unsaved(end, start) if is_last or not self._stays(node, resident)]
        if sum(node.end - max(node.start, start) for node in lost) < MIN_SAVE:
            while lost and not (lost[-1].n_kept or lost[-1].is_built_upon):
                lost.pop()
        while lost and not self.finder.can_end(resident, lost[-1].end):
            lost.pop()  # no session could continue from there
        if not lost:
            return
        if lost[0].start < start:
            tree.split(lost[0], start)
        n_there = 0 if self.store.disk is not None else self.finder.given(lost[0], start, resident.seq_id)
        before = [node for node in lost[0].up() if node is not lost[0] and node.seg is None and node.end > n_there]
        saving = Saving(tree, end)
        self._saving.add(saving)
        try:
            for node in [*reversed(before), *lost]:
                yield from self.store.save(resident, node, self.cost, saving, is_last)
        finally:
            self._saving.discard(saving)
            saving.stop()

    def _stays(self, node: Node, resident: Resident) -> bool:
        """Whether another sequence keeps the node's positions. One that is being saved may count on this one."""
        others = (self.residents[seq_id] for seq_id in node.holders if seq_id != resident.seq_id)
        return any(node.end <= other.n_staying for other in others)

    def _take(self, session: Session, resident: Resident, at: int) -> int:
        """Cut the sequence back to `at` and give it to the session."""
        old_end = resident.end
        self._cut_back(resident, at)
        self.store.touch(old_end)
        self.engine.set_adapters(resident.seq_id, session.adapters)
        self._keep_states(session, resident.seq_id)
        resident.owner, resident.is_claimed, resident.is_leaving = session.sid, False, False
        return resident.n

    def _keep_states(self, session: Session, seq_id: int) -> None:
        """Choose the positions whose states are kept: other requests will begin with the same instructions, and the
        next turn with the same messages. A prompt's last token is always computed.
        """
        if self.finder.has_states:
            ends = session.message_ends
            self.engine.keep_states(seq_id, [*ends[:1], *ends[-1:], session.n_prompt - 1])

    def _bring(self, resident: Resident, piece: Piece, reader: CopyReader) -> Steps:
        if isinstance(piece.source, Resident):
            end = self.finder.copyable(piece.source, piece.end)
            if end > piece.start:
                copy = self.engine.copy_prefix(piece.source.seq_id, resident.seq_id, end, piece.start)
                yield from reader.copying(self.meters.copied(copy))
            return
        try:
            yield from self.store.load(resident.seq_id, piece)
        except UmaError:
            self.store.forget(piece.source, "unusable")  # otherwise it would be found, and would fail, again and again
            raise

    def _arrived(self, session: Session, resident: Resident, pieces: list[Piece], t0: int) -> None:
        """Continue the session from what its sequence now holds."""
        before = session.n_past
        n = self.engine.kv_len(resident.seq_id)
        if self.finder.has_states and not self.finder.can_end(resident, n):  # the piece with the state failed
            n = self.engine.resumable(resident.seq_id, n)
            self.engine.kv_truncate(resident.seq_id, n)
        self._hold(session, resident, n)
        session.n_past = n
        self._count(session, pieces, max(0, n - max(before, session.n_seen)), n, t0)
        session.n_seen = max(session.n_seen, n)
        self.unpark(session)
        session.cached_hint, session.restore_ns, session.cached_seq, session.cached_own = 0, 0, -1, 0
        session.touch()
        if n and session.can_decode:  # if n is 0, nothing was restored, and this tick may read a prompt of one token
            session.become(Phase.DECODE)

    def _count(self, session: Session, pieces: list[Piece], n_gained: int, n: int, t0: int) -> None:
        given: set[str] = set()  # tiers of the planned pieces that arrived
        left = n_gained
        for piece in reversed(pieces):
            n_piece = min(left, max(0, min(piece.end, n) - piece.start))
            self.meters.saved[piece.tier].add(n_piece)
            left -= n_piece
            if n_piece:
                given.add(piece.tier)
        self.meters.saved[RESIDENT].add(left)
        slowest = max(given or {RESIDENT}, key=TIERS.index)
        if not session.n_seen and not session.is_private:
            (self.meters.hits[slowest] if n_gained else self.meters.misses).add()
        self.meters.kv_bytes.add(n_gained * self.finder.cell_bytes)
        session.n_cached += n_gained
        if given:
            self.meters.restore[slowest].observe(self.clock.now_ns() - t0)

    # a session's content changes

    def _hold(self, session: Session, resident: Resident, n: int) -> None:
        resident.hold(self._tree_of(session), session.content(n), session.message_ends)
        resident.t_used = self.clock.now_ns()
        self.store.touch(resident.end)

    def grew(self, session: Session) -> None:
        """Record that the sequence holds more of the session's prompt, which others may now reuse."""
        resident = self.residents[session.seq_id]
        if resident.owner == session.sid and (not session.is_private or session.group is not None):
            n = min(session.n_past, session.n_prompt, self.engine.kv_len(session.seq_id))
            if n > resident.n:
                self._hold(session, resident, n)

    def shift(self, session: Session, n_head: int, on_cut: Callable[[], None] = lambda: None) -> None:
        """Cut a running session back to its first positions once no transfer copies from the rest; then call
        `on_cut`.
        """
        resident = self.residents[session.seq_id]

        def steps() -> Steps:
            if resident.readers:
                yield Readers(resident)
            self._cut_back(resident, n_head)
            on_cut()
            self._arrived(session, resident, [], 0)

        chain = Chain(steps(), self.clock)
        if not chain.is_done:
            session.transfer = chain
            session.touch()

    def _cut_back(self, resident: Resident, n: int) -> None:
        """Keep the first n positions; none if the engine cannot cut the sequence there."""
        resident.cut(n)
        if not self._truncate(resident.seq_id, n):
            resident.cut(0)
            self.engine.kv_truncate(resident.seq_id, 0)

    def _truncate(self, seq_id: int, n: int) -> bool:
        return self.engine.kv_len(seq_id) <= n or self.engine.kv_truncate(seq_id, n)

    # a session leaves its sequence

    def release(self, session: Session, seq_id: int) -> None:
        """Let go of an ended session. Its sequence, if it had one (-1: none), stays unchanged for others until it is
        needed.
        """
        self.unpark(session)
        has_others = session.group is not None and session.group.has_others(session)
        is_needed = has_others or (self.settings.is_on and not session.is_private)
        if seq_id >= 0 and self.residents[seq_id].owner == session.sid:
            is_good = session.reason is not FinishReason.ERROR or session.is_kv_good
            self._leave(session, self.residents[seq_id], is_good and is_needed)
        if session.is_private and not has_others and (tree := self.trees.pop(self._key(session), None)) is not None:
            for resident in self.residents:
                if resident.tree is tree and resident.is_idle:
                    self.empty(resident)
            self.stop_saving(tree)
            self.store.clear([tree])

    def _leave(self, session: Session, resident: Resident, is_good: bool) -> None:
        seq_id = resident.seq_id
        n = min(self.engine.kv_len(seq_id), max(session.n_past, resident.n), session.n_content)
        if n and is_good and self._truncate(seq_id, n):
            self._hold(session, resident, n)
        else:
            self.empty(resident)
        resident.owner = 0

    def empty(self, resident: Resident) -> None:
        """Empty its cells; transfers that copy from it continue without them."""
        self._leaving.stay(resident)
        for reader in list(resident.readers):
            reader.lose_source()
        resident.cut(0)
        resident.is_leaving = False
        self.engine.kv_truncate(resident.seq_id, 0)

    def leave(self, resident: Resident) -> None:
        """Empty an idle sequence whose cells are needed, once what only it holds is saved."""
        has_place = self.finder.can_move and (self.store.ram.budget or self.store.disk is not None)
        if has_place and self.store.unsaved(resident.end):
            self._leaving.add(resident)
        else:
            self.dismiss(resident)

    def wait_for_room(self, session: Session) -> None:
        """Let an admitted session begin once the sequences that make room have left, or were taken over."""
        if not (self._leaving or self.is_short):
            return
        restore = session.transfer

        def steps() -> Steps:
            try:
                yield Emptied(self._leaving)
                if restore is not None:
                    yield restore
                yield self._vacated()
            finally:
                if restore is not None:
                    restore.close()

        session.transfer = Chain(steps(), self.clock, restore.n_bytes if restore is not None else 0)
        session.touch()

    def dismiss(self, resident: Resident) -> None:
        """Empty an idle sequence. If a transfer is about to share its cells from the first one on, and has therefore
        reserved them, empty it after that.
        """
        spans = [reader.span for reader in resident.readers] if self.engine.info.kv_page > 1 else []
        n = max((end for _, end in spans), default=0)
        if n and not any(start for start, _ in spans) and self._truncate(resident.seq_id, n):
            resident.cut(n)
            resident.is_leaving = True
        else:
            self.empty(resident)

    def linger(self, session: Session, seq_id: int, transfer: Transfer) -> None:
        """Release a session that ended before the KV of its last chunk arrived; `on_free` is called on arrival."""
        self._lingering[seq_id] = session, transfer

    @property
    def has_steps(self) -> bool:
        return bool(self._lingering or self._leaving)

    def step(self, until_ns: int) -> None:
        """Continue with lingering sequences, and with those that make room."""
        self._leaving.step(until_ns)
        for seq_id, (session, transfer) in list(self._lingering.items()):
            try:
                if transfer.step(until_ns):
                    self._stop_lingering(session, seq_id)
            except UmaError:  # the answer has ended, so only the cache loses something
                log.exception("the content of sequence %d is not kept", seq_id)
                self._stop_lingering(session, seq_id, is_whole=False)

    def _stop_lingering(self, session: Session, seq_id: int, is_whole: bool = True) -> None:
        _, transfer = self._lingering.pop(seq_id)
        transfer.close()
        self.engine.prefill_close(seq_id)
        if not is_whole:
            self.empty(self.residents[seq_id])
        self.release(session, seq_id)
        self._on_free(seq_id)

    def park(self, session: Session, seq_id: int) -> None:
        """Protect the content of a session that gave up its sequence and will come back."""
        resident = self.residents[seq_id]
        n = min(self.engine.kv_len(seq_id), session.n_past)
        if self._truncate(seq_id, n):
            self._hold(session, resident, n)
        if resident.end is not None:
            session.parked = (resident.tree, resident.end)
            resident.end.keep()
        session.n_seen = max(session.n_seen, n)
        session.fold()
        session.n_past = 0
        resident.owner = 0

    def unpark(self, session: Session) -> None:
        """End that protection, because the session is back or has ended."""
        if session.parked is not None:
            tree, end = session.parked
            session.parked = None
            tree.unkeep(end)

    # room

    def stop_saving(self, tree: Tree | None = None) -> None:
        """Let go of what is being saved now, of one tree or of all."""
        for saving in self._saving:
            if tree is None or saving.tree is tree:
                saving.stop()

    def measure(self) -> None:
        """Update the gauges."""
        cell = self.finder.cell_bytes
        self.meters.bytes[RESIDENT].set(sum(h.n for h in self.residents if not h.owner) * cell)
        self.meters.bytes[RAM].set(self.store.ram.n_bytes)
        self.meters.bytes[DISK].set(self.store.disk_bytes)

    def drop_idle(self, resident: Resident, n: int = 0) -> bool:
        """Cut back a sequence that no session uses. False: a session uses it, or a parked session would have to read it
        again.
        """
        end = resident.end
        if not resident.is_idle or resident.readers or end is None:
            return False
        if end.n_kept and self.store.unsaved(end):
            return False
        if n and self._truncate(resident.seq_id, n):
            resident.cut(n)
        else:
            self.empty(resident)
        self.store.touch(end)
        return True


def _n_usable(session: Session) -> int:
    """Return how much of the session's prompt may come from the cache: its last token gives the first one of the
    answer, so it is computed.
    """
    return session.n_prompt if session.generated else session.n_prompt - 1


def clear(cache: PrefixCache) -> int:
    """Drop everything that no session needs and that is not pinned. Returns the number of sequences and snapshots."""
    cache.stop_saving()
    idle = [h for h in cache.residents if h.end is not None and not h.end.n_kept]
    return sum(cache.drop_idle(resident) for resident in idle) + cache.store.clear_all(list(cache.trees.values()))
