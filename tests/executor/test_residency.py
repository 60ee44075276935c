"""Cells that running sequences share: whole pages that are computed count once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from uma_core.executor.residency import Residency, residency
from uma_core.session.session import Grant, Session
from uma_core.types import Priority, Request

PAGE = 4


def engine(tables: dict[int, list[int]], page: int = PAGE, is_unified: bool = True) -> Any:
    """Return an engine whose sequences have these pages."""
    info = SimpleNamespace(kv_page=page, is_unified=is_unified, n_seq_max=4)
    return SimpleNamespace(info=info, kv_pages=lambda seq_id, n: np.array(tables[seq_id][: -(-n // page)], np.int32))


def running(seq_id: int, n_past: int, is_shifting: bool = False) -> Session:
    it = Session(seq_id + 1, 1, Request("a"), range(n_past + 1), Grant(Priority.INTERACTIVE, 9, 0))
    it.seq_id, it.n_past, it.is_shifting = seq_id, n_past, is_shifting
    return it


def told(found: Residency) -> tuple[list[int], int, tuple[int, ...]]:
    return found.pages.tolist(), found.n_saved, found.shared


def test_pages_of_several_sequences_count_once():
    it = engine({0: [5, 6, 7], 1: [5, 6, 9], 2: [5, 3]})
    assert told(residency(it, [running(0, 12), running(1, 12), running(2, 8)])) == ([3, 5, 6, 7, 9], 12, (8, 8, 4, 0))


def test_the_page_that_is_written_next_does_not_count():
    it = engine({0: [5, 6], 1: [5, 6]})
    assert told(residency(it, [running(0, 7), running(1, 8)])) == ([5, 6], 4, (4, 4, 0, 0))
    assert told(residency(it, [running(0, 3), running(1, 3)])) == ([], 0, ())


def test_a_context_that_will_be_read_again_shares_nothing():
    it = engine({0: [5, 6], 1: [5, 6]})
    assert told(residency(it, [running(0, 8, is_shifting=True), running(1, 8)])) == ([5, 6], 0, ())


def test_sessions_without_a_sequence_hold_nothing():
    it = engine({0: [5, 6]})
    assert told(residency(it, [running(-1, 8), running(0, 8)])) == ([5, 6], 0, ())
    assert told(residency(it, [])) == ([], 0, ())


def test_engines_that_cannot_share_are_not_asked():
    for it in (engine({}, page=1), engine({}, is_unified=False)):
        assert told(residency(it, [running(0, 8), running(1, 8)])) == ([], 0, ())
