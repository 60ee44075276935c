"""Transfers get the time that a plan gives them, and what a chunk that ended left of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.executor.rig import Rig
from uma_core.engine.fake_cost import INSTANT
from uma_core.engine.fake_kv import SLICE_NS
from uma_core.policy.plan import SLICED, Plan, PlanItem
from uma_core.session.session import Grant, Session
from uma_core.types import Lane, Phase, Request

MS = 1_000_000
RUN_NS = 10 * MS
CHUNK = 100
CHUNK_NS = 4 * MS


class Prompt:
    """A session whose one chunk is read within RUN_NS and leaves `copy_ns` of copying behind."""

    def __init__(self, copy_ns: float) -> None:
        self.rig = Rig()
        n_bytes = CHUNK * self.rig.engine.model.kv_bytes_per_cell
        cost = replace(INSTANT, prefill=((CHUNK, CHUNK_NS),), copy_ns_per_byte=copy_ns / n_bytes)
        self.rig.engine.cost = cost
        self.calls, self.clock = self.rig.executor.calls, self.rig.clock
        self.session = Session(1, 1, Request("r"), list(range(1, CHUNK + 1)), Grant(Lane.BACKGROUND, 5, 0))
        self.session.phase, self.session.seq_id = Phase.PREFILL, 0
        self.t0 = self.clock.now_ns()

    def read(self) -> None:
        item = PlanItem(1, 0, Phase.PREFILL, CHUNK, True, SLICED, "test")
        self.calls.prefill(item, self.session, Plan(run_ns=RUN_NS, min_pieces=1), self.rig.executor.cost)
        assert self.session.transfer is not None
        assert CHUNK_NS <= self.passed_ns() < RUN_NS

    def move(self, budget_ns: int = 0) -> None:
        self.calls.transfers([self.session], budget_ns)

    def passed_ns(self) -> int:
        return self.clock.now_ns() - self.t0


def test_what_a_chunk_left_of_its_time_is_spent_on_moving_it() -> None:
    prompt = Prompt(copy_ns=3 * MS)
    prompt.read()
    prompt.move()
    assert prompt.session.transfer is None
    assert prompt.passed_ns() <= RUN_NS


def test_moving_ends_with_the_time_that_was_left() -> None:
    prompt = Prompt(copy_ns=50 * MS)
    prompt.read()
    prompt.move()
    assert prompt.session.transfer is not None
    assert RUN_NS <= prompt.passed_ns() <= RUN_NS + SLICE_NS


def test_the_rest_of_one_run_is_spent_once() -> None:
    prompt = Prompt(copy_ns=50 * MS)
    prompt.read()
    prompt.calls.transfers([], 0)
    before = prompt.passed_ns()
    prompt.move()
    assert 0 < prompt.passed_ns() - before <= SLICE_NS, "without time one slice moves"


@pytest.mark.parametrize("budget_ns", [2 * MS, 20 * MS])
def test_a_longer_budget_counts_instead(budget_ns: int) -> None:
    prompt = Prompt(copy_ns=50 * MS)
    prompt.read()
    end = max(prompt.passed_ns() + budget_ns, RUN_NS)
    prompt.move(budget_ns)
    assert end <= prompt.passed_ns() <= end + SLICE_NS
