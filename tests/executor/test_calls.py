"""The order of work within a prefill run. Transfers get the time that a plan gives them, and the time that a finished
chunk left unused.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from tests.executor.rig import Rig
from uma_core.engine.fake.cost import INSTANT
from uma_core.engine.fake.kv import SLICE_NS
from uma_core.policy.plan import Plan, PlanItem, PrefillMode
from uma_core.session.events import Final
from uma_core.session.session import Grant, Session
from uma_core.types import FinishReason, Peer, Phase, Priority, Request

MS = 1_000_000
RUN_NS = 10 * MS
CHUNK = 100
CHUNK_NS = 4 * MS


class Prompt:
    """A session whose only chunk is read within RUN_NS and leaves `copy_ns` of copying."""

    def __init__(self, copy_ns: float, priority: Priority = Priority.BACKGROUND, n_max: int = 5) -> None:
        self.rig = Rig()
        n_bytes = CHUNK * self.rig.engine.model.kv_bytes_per_cell
        cost = replace(INSTANT, prefill=((CHUNK, CHUNK_NS),), copy_ns_per_byte=copy_ns / n_bytes)
        self.rig.engine.cost = cost
        self.calls, self.clock = self.rig.executor.calls, self.rig.clock
        self.session = Session(1, 1, Request("r"), list(range(1, CHUNK + 1)), Grant(priority, n_max, 0))
        table = self.rig.executor.table
        table.add(self.session, Peer())
        table.admit(self.session, 0, 0)
        self.t0 = self.clock.now_ns()

    def read(self) -> None:
        item = PlanItem(1, 0, Phase.PREFILL, CHUNK, True, -1, "test", PrefillMode.SLICED)
        self.calls.prefill(item, self.session, Plan(run_ns=RUN_NS, min_pieces=1), self.rig.executor.cost)
        assert self.session.transfer is not None or self.session.phase is Phase.DONE
        assert CHUNK_NS <= self.passed_ns() < RUN_NS

    def move(self, budget_ns: int = 0) -> None:
        self.calls.transfers([self.session], budget_ns)

    def passed_ns(self) -> int:
        return self.clock.now_ns() - self.t0


def test_what_waits_to_go_out_is_announced_before_a_chunk_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, done = Prompt(copy_ns=0), []
    engine = prompt.rig.engine
    opened, run = engine.prefill_open, engine.prefill_run
    monkeypatch.setattr(engine, "prefill_open", lambda *a: done.append("open") or opened(*a))
    monkeypatch.setattr(engine, "prefill_run", lambda *a: done.append("run") or run(*a))
    prompt.calls.announce = lambda: done.append("announce")
    prompt.read()
    assert done == ["announce", "open", "run"]


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


@pytest.mark.parametrize("min_pieces", [0, 1])
def test_opening_a_chunk_takes_of_its_run(min_pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = Prompt(copy_ns=0)
    engine, item = prompt.rig.engine, PlanItem(1, 0, Phase.PREFILL, CHUNK, True, -1, "test", PrefillMode.SLICED)
    open_chunk = engine.prefill_open
    monkeypatch.setattr(engine, "prefill_open", lambda *args: [prompt.clock.advance(RUN_NS), open_chunk(*args)][1])
    run, runs = engine.prefill_run, []
    monkeypatch.setattr(engine, "prefill_run", lambda *args: [runs.append(args), run(*args)][1])
    plan = Plan(run_ns=RUN_NS, quantum_ns=MS, min_pieces=min_pieces)
    prompt.calls.prefill(item, prompt.session, plan, prompt.rig.executor.cost)
    assert len(runs) == min_pieces, "nothing comes on top that can wait: an engine computes at least a piece"
    prompt.calls.prefill(item, prompt.session, plan, prompt.rig.executor.cost)
    assert prompt.session.n_past == CHUNK and prompt.passed_ns() == RUN_NS + CHUNK_NS


def test_a_request_that_ends_gives_its_paused_chunk_up() -> None:
    prompt = Prompt(copy_ns=0)
    engine, item = prompt.rig.engine, PlanItem(1, 0, Phase.PREFILL, CHUNK, True, -1, "test", PrefillMode.SLICED)
    prompt.calls.prefill(item, prompt.session, Plan(run_ns=0, quantum_ns=MS), prompt.rig.executor.cost)
    assert prompt.session.n_chunk and prompt.session.seq_id == 0
    prompt.rig.executor.output.finish(prompt.session, FinishReason.CANCELLED, prompt.clock.now_ns())
    assert engine.prefill_open(0, np.arange(CHUNK), False), "the sequence's next prompt can be read"


@pytest.mark.parametrize("budget_ns", [2 * MS, 20 * MS])
def test_a_longer_budget_counts_instead(budget_ns: int) -> None:
    prompt = Prompt(copy_ns=50 * MS)
    prompt.read()
    end = max(prompt.passed_ns() + budget_ns, RUN_NS)
    prompt.move(budget_ns)
    assert end <= prompt.passed_ns() <= end + SLICE_NS


@pytest.mark.parametrize(
    ("priority", "n_max", "is_held_back"),
    [(Priority.INTERACTIVE, 5, True), (Priority.INTERACTIVE, 1, False), (Priority.BACKGROUND, 5, False)],
)
def test_a_chats_first_token_comes_when_the_second_can_follow(
    priority: Priority, n_max: int, is_held_back: bool
) -> None:
    prompt = Prompt(copy_ns=50 * MS, priority=priority, n_max=n_max)
    prompt.read()
    assert bool(prompt.session.generated) is not is_held_back
    prompt.move(budget_ns=60 * MS)
    for _ in range(2):
        prompt.rig.executor.output.deliver_first(prompt.session)
    assert len(prompt.session.generated) == 1
    assert prompt.session.t_first_ns >= prompt.t0 + (50 * MS if is_held_back else CHUNK_NS)


def test_what_ends_before_its_first_token_went_out_ends_once() -> None:
    prompt = Prompt(copy_ns=50 * MS, priority=Priority.INTERACTIVE)
    prompt.read()
    prompt.rig.executor.output.finish(prompt.session, FinishReason.CANCELLED, prompt.clock.now_ns())
    assert [type(event) for event in prompt.rig.executor.events] == [Final]


def test_the_engine_wakes_the_reader_where_events_wait() -> None:
    prompt, fd = Prompt(copy_ns=0), os.eventfd(0, os.EFD_NONBLOCK)
    try:
        prompt.read()
        prompt.move()
        prompt.rig.executor.output.deliver_first(prompt.session)
        prompt.calls.wake_fd = lambda: fd
        prompt.calls.decode([(PlanItem(1, 0, Phase.DECODE, 1, True, 0, "test"), prompt.session)])
        assert os.eventfd_read(fd) == 1
        prompt.calls.wake_fd = lambda: -1
        prompt.calls.decode([(PlanItem(1, 0, Phase.DECODE, 1, True, 0, "test"), prompt.session)])
        with pytest.raises(BlockingIOError):
            os.eventfd_read(fd)
    finally:
        os.close(fd)


def test_a_call_that_raises_is_over() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=5)
    seen = []

    def failing(*arguments: object) -> None:
        seen.append(rig.executor.calls.is_in_call)
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(rig.engine, "decode", failing)
        for _ in range(10):
            rig.tick()
    assert seen == [True] and not rig.executor.calls.is_in_call
    rig.run()
    rig.check_one_final_each()
