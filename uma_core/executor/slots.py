"""Parking, restoring, shifting: carries out the plan's decisions about sequences and cells."""

from __future__ import annotations

from uma_core.cache.housekeeping import Housekeeper
from uma_core.cache.manager import PrefixCache
from uma_core.cache.room import make_cells
from uma_core.engine.api import Engine
from uma_core.executor import overflow
from uma_core.executor.meters import Meters
from uma_core.executor.output import Output
from uma_core.executor.residency import residency
from uma_core.policy.plan import Plan
from uma_core.session.session import Session
from uma_core.session.table import SessionTable
from uma_core.types import Phase


class Slots:
    """On the compute thread, between the engine's calls."""

    def __init__(
        self,
        engine: Engine,
        table: SessionTable,
        cache: PrefixCache,
        housekeeper: Housekeeper,
        output: Output,
        meters: Meters,
    ) -> None:
        self._engine = engine
        self._table = table
        self._cache = cache
        self._housekeeper = housekeeper
        self._output = output
        self._meters = meters
        self.can_shift = False  # some session may continue past the context's end

    def park(self, plan: Plan) -> None:
        """Free the sequences of these sessions.

        Nothing is copied before the sequence is needed; a paused chunk is discarded.
        """
        for sid in plan.park:
            session = self._table.get(sid)
            if session.seq_id < 0 or session.transfer is not None:
                continue
            self._output.deliver_first(session)
            if session.phase is Phase.DONE or session.transfer is not None:
                continue
            session.drop_chunk()
            seq_id = self._table.detach(session)
            self._engine.prefill_close(seq_id)
            if session.embedding is not None:  # it holds the KV of one input, which starts over
                self._engine.kv_truncate(seq_id, 0)
                session.next_input()
            self._cache.park(session, seq_id)
            self._table.give_back(seq_id)
            session.become(Phase.PARKED)
            self._meters.preemptions.add()

    def take(self, plan: Plan) -> None:
        """Give admitted sessions their sequences, and prompts between two chunks what others have read meanwhile."""
        restored = set(plan.restore)
        if plan.admit or restored:
            self._housekeeper.stop()
        for admission in plan.admit:
            self._cache.begin(self._table.get(admission.sid), admission.sid in restored)
            restored.discard(admission.sid)
        for sid in restored:
            session = self._table.get(sid)
            if session.phase is Phase.PREFILL and session.transfer is None and not session.n_chunk:
                self._cache.begin(session, True)
        if (plan.admit or self._cache.is_short) and self._engine.info.is_unified:
            self._make_cells()
            for admission in plan.admit:
                self._cache.wait_for_room(self._table.get(admission.sid))

    def _make_cells(self) -> None:
        """Make idle sequences give up cells that running ones may need. What they hold is saved first.

        What an admitted session's sequence held before counts as taken until it is saved. If there is not even room for
        that, sessions that are admitted meanwhile wait for it.
        """
        table, residents = self._table, self._cache.residents
        sharing = residency(self._engine, table)
        taken = [(session, residents[session.seq_id]) for session in table if session.seq_id >= 0]
        n_leaving = sum(max(0, resident.n - session.n_cells) for session, resident in taken if resident.is_claimed)
        n_free = table.n_cells_total - table.n_cells_reserved + sharing.n_saved - n_leaving
        self._cache.is_short = n_free < 0 < n_leaving
        make_cells(self._cache, n_free, sharing.pages)

    def shift(self) -> None:
        """Shift the contexts of sessions that reached the end of the context and may continue past it."""
        n_ctx = self._engine.info.n_ctx_seq
        shifting = [session for session in self._table if session.is_shifting]
        self.can_shift = bool(shifting)
        for session in shifting:
            if _is_full(session, n_ctx) and session.first_token is not None:
                self._output.deliver_first(session)  # that token was drawn before the shift
            if _is_full(session, n_ctx):
                self._shift(session)

    def _shift(self, session: Session) -> None:
        """Shift one session. Its tokens change together with its cells, so that a session that ends earlier, while
        others still copy, leaves tokens that match its cells.
        """

        def reread() -> None:
            tokens = overflow.without_oldest(session.content(session.n_past), session.n_head)
            session.message_ends = ()
            session.reread(tokens)
            session.become(Phase.PREFILL)

        session.n_seen = max(session.n_seen, session.n_past)  # KV that comes back later is not the prompt's
        self._cache.shift(session, session.n_head, reread)


def _is_full(session: Session, n_ctx: int) -> bool:
    """Whether the session has reached the context's end, and nothing moves its KV now."""
    return session.phase is Phase.DECODE and session.transfer is None and session.n_past >= n_ctx
