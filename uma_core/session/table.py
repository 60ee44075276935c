"""All live sessions of one engine, their KV sequences and reserved cells.

Rules: owned by the compute thread; cells for prompt + max_tokens are reserved from admission to the end, so that a
decode call always finds its cells.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

from uma_core.engine.api import EngineInfo
from uma_core.policy.state import SessionView
from uma_core.session.session import Session
from uma_core.types import Peer, Phase, Priority

Key = tuple[int, str]  # (conn_id, request id)
MAX_CLIENTS = 256  # fairness accounts to keep; beyond that, those without requests are dropped


EWMA = 0.1  # weight of the latest answer in the mean length


class Account(NamedTuple):
    """What gets a fair share: a process, or an account that a gateway names."""

    uid: int
    pid: int  # 0 if `name` is given, because several processes may act for one account
    name: str = ""


def account_of(peer: Peer, name: str) -> Account:
    return Account(peer.uid, 0 if name else peer.pid, name)


class SessionTable:
    def __init__(self, info: EngineInfo) -> None:
        self.n_cells_total = info.n_ctx
        self.n_cells_reserved = 0
        # grows whenever a session comes, goes, moves or is held, which a repeated plan would miss
        self.n_changes = 0
        self.free_seqs = list(range(info.n_seq_max))
        self._lingering: dict[int, int] = {}  # reserved cells by sequence: see `linger`
        self._by_sid: dict[int, Session] = {}
        self._by_key: dict[Key, list[Session]] = {}
        self._clients: dict[Account, int] = {}
        self._n_clients = 0  # so far: no number is used twice
        self.n_queued = dict.fromkeys(Priority, 0)
        self.mean_answer = 0.0  # mean tokens per answer, weighted towards recent ones; 0: none has ended yet

    def __len__(self) -> int:
        return len(self._by_sid)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_sid.values()))

    def add(self, session: Session, peer: Peer) -> None:
        self.n_changes += 1
        session.uid, session.pid = peer.uid, peer.pid
        session.client = self._client(account_of(peer, session.request.account))
        self._by_sid[session.sid] = session
        self._by_key.setdefault((session.conn_id, session.id), []).append(session)
        self.n_queued[session.priority] += 1

    def n_held(self, peer: Peer, name: str) -> int:
        """Return how many requests, in any state, this account has."""
        client = self._clients.get(account_of(peer, name))
        return sum(session.client == client for session in self._by_sid.values()) if client is not None else 0

    def _client(self, key: Account) -> int:
        """Return the number of a fairness account. The dict is bounded, because each request may come from a new
        process.
        """
        if key not in self._clients:
            if len(self._clients) >= MAX_CLIENTS:
                busy = {session.client for session in self._by_sid.values()}
                self._clients = {name: client for name, client in self._clients.items() if client in busy}
            self._clients[key] = self._n_clients
            self._n_clients += 1
        return self._clients[key]

    def get(self, sid: int) -> Session:
        return self._by_sid[sid]

    def find(self, conn_id: int, request_id: str) -> list[Session]:
        """Return the answers to a request that have not ended."""
        return list(self._by_key.get((conn_id, request_id), ()))

    def of_connection(self, conn_id: int) -> list[Session]:
        return [s for s in self._by_sid.values() if s.conn_id == conn_id]

    def admit(self, session: Session, seq_id: int, now_ns: int) -> None:
        """Give a waiting session its sequence and reserve its cells."""
        self.n_changes += 1
        self.free_seqs.remove(seq_id)
        self.n_cells_reserved += session.n_cells
        if session.phase is Phase.QUEUED:
            self.n_queued[session.priority] -= 1
        session.seq_id = seq_id
        session.t_admitted_ns = session.t_admitted_ns or now_ns
        if session.phase is Phase.PARKED:
            session.t_back_ns = now_ns
        session.become(Phase.PREFILL)

    def release(self, session: Session) -> int:
        """Take the sequence and the reservation back. Returns the sequence; the caller takes care of its cells."""
        self.n_changes += 1
        seq_id = self.detach(session)
        if seq_id >= 0:
            self.give_back(seq_id)
        return seq_id

    def detach(self, session: Session) -> int:
        """Like `release`, but the sequence is free only after `give_back`."""
        seq_id, session.seq_id = session.seq_id, -1
        session.touch()
        if seq_id >= 0:
            self.n_cells_reserved -= session.n_cells
        return seq_id

    def linger(self, session: Session) -> int:
        """Like `detach`, but computed cells stay reserved until `give_back`: the last of them are still arriving and
        cannot be freed.
        """
        seq_id = self.detach(session)
        self._lingering[seq_id] = min(session.n_past, session.n_cells)
        self.n_cells_reserved += self._lingering[seq_id]
        return seq_id

    def give_back(self, seq_id: int) -> None:
        self.n_cells_reserved -= self._lingering.pop(seq_id, 0)
        bisect.insort(self.free_seqs, seq_id)

    def remove(self, session: Session) -> None:
        """Remove a session that no longer has a sequence."""
        self.n_changes += 1
        assert session.seq_id < 0
        if session.phase is Phase.QUEUED:
            self.n_queued[session.priority] -= 1
        if session.generated:
            n = len(session.generated)
            self.mean_answer += EWMA * (n - self.mean_answer) if self.mean_answer else n
        session.become(Phase.DONE)
        del self._by_sid[session.sid]
        answers = self._by_key[session.conn_id, session.id]
        answers.remove(session)
        if not answers:
            del self._by_key[session.conn_id, session.id]

    def position(self, session: Session) -> int:
        """Return how many requests of its priority are queued ahead of it."""
        ahead = 0
        for other in self._by_sid.values():
            if other is session:
                break
            ahead += other.phase is Phase.QUEUED and other.priority is session.priority
        return ahead

    def views(self) -> tuple[SessionView, ...]:
        return tuple([s._view or s.view() for s in self._by_sid.values() if not s.is_waiting])

    def accounts(self) -> dict[int, Account]:
        """Return the fairness accounts by number."""
        return {index: key for key, index in self._clients.items()}
