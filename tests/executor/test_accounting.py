"""Figures that are noted while a plan is repeated are booked in the end, and repeating changes nothing else."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.executor.rig import Rig
from uma_core.engine.api import Batch, DecodeOutcome, DecodeStatus, Sampler
from uma_core.engine.fake.cost import GPU_SHAPE
from uma_core.engine.fake.engine import FakeModel
from uma_core.metrics import catalog as m
from uma_core.policy.config import SchedulerConfig
from uma_core.session.events import Token
from uma_core.trace.recorder import Recorder
from uma_core.types import FinishReason, Peer, Priority

N = 60
MS, SAMPLE_NS = 1_000_000, 1000


def streams(rig: Rig, n: int = 3) -> Rig:
    for i in range(n):
        rig.submit(f"r{i}", f"prompt {i}", conn_id=i, peer=Peer(1, 1, i), max_tokens=N, priority=Priority.INTERACTIVE)
    return rig


def watch(rig: Rig) -> list[tuple[bool, int]]:
    """Return a list that collects, for each decode call from now on, whether the next call is the same, and its
    rows.
    """
    seen: list[tuple[bool, int]] = []
    decode = rig.engine.decode

    def watched(batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        seen.append((batch.starts_next, batch.n))
        return decode(batch, samplers)

    rig.engine.decode = watched  # type: ignore[method-assign]
    return seen


def test_every_call_and_token_is_counted_once() -> None:
    rig = streams(Rig())
    rig.run()
    rig.tick()
    meters, snapshot = rig.executor.meters, rig.registry.snapshot()
    calls = snapshot.merged(m.DECODE_CALL)
    assert meters.tokens.value == 3 * N
    assert calls.n_values == meters.calls.value
    assert snapshot.merged(m.INTER_TOKEN).n_values == 3 * (N - 1)
    assert meters.ticks.value >= calls.n_values
    assert sum(rig.executor.client_ns.values()) > 0.99 * calls.total


def test_repeated_ticks_give_the_text_of_planned_ones() -> None:
    repeated, planned = streams(Rig()), streams(Rig())
    planned.executor.record(Recorder())  # a recorded tick is never a repeat
    repeated.run()
    planned.run()
    assert repeated.executor.n_ticks == planned.executor.n_ticks
    assert [repeated.text(f"r{i}") for i in range(3)] == [planned.text(f"r{i}") for i in range(3)]


def test_a_repeated_batch_goes_on_until_somebody_ends() -> None:
    rig = streams(Rig())
    seen = watch(rig)
    rig.run()
    assert sum(starts_next for starts_next, _ in seen) > len(seen) / 2
    assert all(n == n_next for (starts_next, n), (_, n_next) in itertools.pairwise(seen) if starts_next)
    assert not seen[-1][0]


def test_nothing_is_begun_for_a_plan_that_may_let_the_background_in() -> None:
    rig = Rig(config=SchedulerConfig(guard_cap=1.0, pause_cap=4.0, long_tick_share=0.1))
    rig.submit("work", "background", conn_id=9, max_tokens=N, priority=Priority.BACKGROUND)
    for _ in range(8):
        rig.tick()
    streams(rig, 1)
    seen = watch(rig)
    rig.run()
    sizes = [n for _, n in seen]
    assert 2 in sizes and sizes.count(1) > N / 2, "the background is let in now and then"
    assert any(starts_next for starts_next, _ in seen)
    assert all(n == n_next for (starts_next, n), (_, n_next) in itertools.pairwise(seen) if starts_next)


def test_tokens_are_announced_before_the_next_call_is_begun() -> None:
    rig = streams(Rig(FakeModel(computes_ahead=True)))
    announced: list[set[str]] = []
    begun: list[set[str]] = []

    def waiting() -> set[str]:
        return {event.request_id for event in rig.executor.events if isinstance(event, Token)}

    def announce() -> int:
        announced.append(waiting())
        return 7

    rig.executor.calls.wake_fd = announce
    rig.engine.begin_next = lambda wake_fd: begun.append(announced[-1])  # type: ignore[method-assign]
    rig.run()
    assert len(begun) > N / 2
    assert all(them == {"r0", "r1", "r2"} for them in begun), "of all streams, and nothing is begun when one has ended"


def test_time_between_calls_ends_when_the_next_one_was_begun() -> None:
    rig = streams(Rig())
    for _ in range(20):
        rig.tick()
    rig.executor.flush()
    decode, begun = rig.engine.decode, [rig.clock.now_ns()]

    def begun_ahead(batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        rig.clock.advance(5_000_000)
        begun[0] += 6_000_000
        return decode(batch, samplers)._replace(begun_ns=begun[0] - 6_000_000, call_ns=6_000_000 - SAMPLE_NS)

    rig.engine.decode = begun_ahead  # type: ignore[method-assign]
    before = rig.registry.snapshot().merged(m.TICK_OVERHEAD)
    for _ in range(4):
        rig.tick()
    rig.executor.flush()
    after = rig.registry.snapshot().merged(m.TICK_OVERHEAD)
    assert after.n_values == before.n_values + 4
    assert after.total - before.total <= MS + 3 * SAMPLE_NS, "not the time that Python took while the device computed"


def test_a_call_that_was_begun_ahead_tells_nothing_about_the_hosts_time() -> None:
    rig = streams(Rig())
    rig.executor.record(Recorder())  # while ticks are recorded, every tick is planned
    for _ in range(50):
        rig.tick()
    typical = rig.executor.meters.overhead_ns
    assert typical == pytest.approx(MS, rel=0.1)
    decode = rig.engine.decode

    def begun_ahead(batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        return decode(batch, samplers)._replace(begun_ns=rig.executor.calls.t_returned_ns + 1)

    rig.engine.decode = begun_ahead  # type: ignore[method-assign]
    for _ in range(5):
        rig.tick()
    assert rig.executor.meters.overhead_ns == pytest.approx(typical, rel=0.1)


def test_a_paste_is_read_as_soon_where_the_plans_that_hold_it_are_repeated() -> None:
    """Its pieces fit only long gaps: most rounds of the chat have no room for it."""

    def rounds_read(rig: Rig) -> list[int]:
        rig.submit("chat", "hello", conn_id=1, max_tokens=400)
        for _ in range(5):
            rig.executor.tick()
        rig.submit("paste", "x" * 2000, conn_id=2, max_tokens=4, priority=Priority.BACKGROUND)
        read: list[int] = []
        prefill_run = rig.engine.prefill_run

        def seen(*args: Any) -> Any:
            read.append(rig.executor.n_ticks)
            return prefill_run(*args)

        rig.engine.prefill_run = seen  # type: ignore[method-assign]
        while len(rig.executor.table):
            rig.executor.tick()  # the host takes no time
        return read

    repeated, planned = (Rig(cost=GPU_SHAPE, config=SchedulerConfig(guard_cap=1.01)) for _ in range(2))
    planned.executor.record(Recorder())
    pairs = list(zip(rounds_read(repeated), rounds_read(planned), strict=True))
    assert len(pairs) > 8 and all(abs(a - b) <= 1 for a, b in pairs)
    n_plans = [sum(rig.executor.meters.plan_time.counts) for rig in (repeated, planned)]
    assert n_plans[0] < 0.5 * n_plans[1]


@pytest.mark.parametrize("status", [DecodeStatus.FULL, DecodeStatus.ABORTED])
def test_a_repeat_that_did_not_work_is_done_again(status: DecodeStatus) -> None:
    alone = streams(Rig())
    alone.run()
    rig = streams(Rig())
    for _ in range(20):
        rig.tick()
    for _ in range(5):
        rig.faults.statuses.append(status)
        rig.tick()
        rig.tick()
    rig.run()
    assert [rig.text(f"r{i}") for i in range(3)] == [alone.text(f"r{i}") for i in range(3)]


def test_a_fatal_repeat_ends_its_sessions() -> None:
    rig = streams(Rig())
    for _ in range(20):
        rig.tick()
    rig.faults.statuses.append(DecodeStatus.FATAL)
    rig.run()
    assert {rig.finals(f"r{i}")[0].reason for i in range(3)} == {FinishReason.ERROR}
    rig.check_all_free()


def test_metrics_are_late_by_a_moment_at_most() -> None:
    rig = streams(Rig(), 1)
    for _ in range(10):
        rig.tick()
    for _ in range(2):
        rig.clock.advance(300_000_000)
        rig.tick()
    assert rig.executor.meters.tokens.value >= len(next(iter(rig.executor.table)).generated) - 1
