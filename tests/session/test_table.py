"""Fairness accounts: one per peer, and no more than are useful. Sessions that get a sequence."""

from __future__ import annotations

from uma_core.engine.fake.engine import FakeEngine
from uma_core.session.session import Grant, Session
from uma_core.session.table import MAX_CLIENTS, SessionTable
from uma_core.types import Peer, Priority, Request


def add(table: SessionTable, sid: int, peer: Peer, account: str = "") -> Session:
    session = Session(sid, 1, Request(str(sid), prompt="x", account=account), [1, 2], Grant(Priority.INTERACTIVE, 4, 0))
    table.add(session, peer)
    return session


def test_a_peer_keeps_its_account():
    table = SessionTable(FakeEngine().info)
    first, second, third = (add(table, n, Peer(1, 1, pid)) for n, pid in ((1, 10), (2, 10), (3, 11)))
    assert first.client == second.client != third.client
    assert table.accounts()[third.client] == (1, 11, "")


def test_whom_a_gateway_asks_for_has_an_account_whichever_process_asks():
    table = SessionTable(FakeEngine().info)
    alice, bob = add(table, 1, Peer(1, 1, 10), "alice"), add(table, 2, Peer(1, 1, 10), "bob")
    again, other_user = add(table, 3, Peer(1, 1, 11), "alice"), add(table, 4, Peer(2, 1, 12), "alice")
    assert alice.client == again.client
    assert len({alice.client, bob.client, other_user.client}) == 3
    assert table.accounts()[again.client] == (1, 0, "alice")


def test_a_process_for_every_request_does_not_grow_the_table():
    table = SessionTable(FakeEngine().info)
    resident = add(table, 1, Peer(1, 1, 1))
    seen = {resident.client}
    for n in range(2, 20 * MAX_CLIENTS):
        session = add(table, n, Peer(1, 1, n))
        assert session.client not in seen, "a number is not used twice"
        seen.add(session.client)
        table.release(session)
        table.remove(session)
    assert len(table.accounts()) <= MAX_CLIENTS
    assert table.accounts()[resident.client] == (1, 1, ""), "who has requests is not forgotten"


def test_a_session_that_gets_a_sequence_has_waited_until_some_work_is_done_for_it():
    """Before, the wait began anew: a background request that had waited for `aging_ms` passed the chats in the queue,
    but no chat's prompt, and was parked before it was read.
    """
    table = SessionTable(FakeEngine().info)
    session = add(table, 1, Peer(1, 1, 10))
    table.admit(session, 0, 5_000)
    assert session.t_progress_ns == 0
    session.progress(1, 7_000)
    assert session.t_progress_ns == 7_000
