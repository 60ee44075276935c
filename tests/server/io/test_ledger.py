from __future__ import annotations

import pytest

from uma_core.server.io.ledger import Ledger

KEY = (1, "a")


@pytest.fixture
def ledger():
    ledger = Ledger()
    ledger.open(KEY, "work")
    return ledger


def test_a_whole_life(ledger):
    assert ledger.pending(KEY) == "work"
    assert ledger.accept(KEY)
    assert ledger.pending(KEY) is None
    assert ledger.is_running(KEY)
    assert ledger.end(KEY)
    assert (len(ledger), ledger.n_violations) == (0, 0)


def test_refused_before_acceptance(ledger):
    assert ledger.end(KEY)
    assert ledger.n_violations == 0


@pytest.mark.parametrize(
    "steps",
    [("is_running",), ("accept", "accept"), ("end", "end"), ("end", "accept"), ("accept", "end", "is_running")],
)
def test_what_must_not_happen_is_counted_and_refused(ledger, steps, caplog):
    *before, last = steps
    for step in before:
        assert getattr(ledger, step)(KEY)
    assert not getattr(ledger, last)(KEY)
    assert ledger.n_violations == 1
    assert "conn 1 request a" in caplog.text


def test_a_client_that_left(ledger):
    ledger.forget(1, ["a", "b"])
    assert len(ledger) == 0
    assert ledger.n_violations == 0
