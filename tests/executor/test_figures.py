"""What the executor measures about itself: memory traffic, idle time, copies, the time until a token reaches the I/O
thread, and the guard's state.
"""

from __future__ import annotations

import pytest

import uma_core.metrics.catalog as m
from perf.simulator import calibrate
from tests.executor.rig import STEP_NS, Rig
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeModel
from uma_core.executor import view
from uma_core.executor.executor import device_view
from uma_core.metrics.export import to_json
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.types import Priority, Slo

LONG = "a long prompt, " * 120
BACK = Priority.BACKGROUND


def figures(rig: Rig) -> dict:
    return to_json(rig.registry.snapshot())


def measured(rig: Rig) -> Rig:
    """Use a cost model as calibration would have measured it."""
    rig.executor.cost = calibrate(rig.engine.cost, device_view(rig.engine))
    return rig


def ticks(rig: Rig, n: int) -> None:
    for _ in range(n):
        rig.tick()


class TestMemoryTraffic:
    def test_it_is_estimated_and_measured_in_every_tick_without_a_budget(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE))
        weights = rig.engine.info.weight_bytes
        rig.submit("a", max_tokens=30)
        rig.tick()
        for _ in range(20):
            rig.tick()
            seen = figures(rig)
            assert weights <= seen["bmt_estimate_last"] <= 1.1 * weights
            assert seen["bmt_moved_last"] == pytest.approx(seen["bmt_estimate_last"], rel=0.01)
            assert seen["bmt_ms_last"] == pytest.approx(16.2, rel=0.02) and seen["bmt_budget"] == 0
        assert seen["bmt_gb_per_s"] == pytest.approx(weights / 16.2e6, rel=0.02)
        rig.run()
        rig.tick()  # book what is left
        assert figures(rig)["bmt_moved_bytes_total"] >= 29 * weights

    def test_a_plan_that_is_repeated_counts_each_time(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE))
        rig.submit("a", max_tokens=200)
        ticks(rig, 150)
        seen = figures(rig)
        assert seen["bmt_moved_bytes_total"] >= (seen["ticks_total"] - 20) * rig.engine.info.weight_bytes
        assert seen["bmt_moved_last"] < 1.1 * rig.engine.info.weight_bytes, "of one tick"

    def test_the_budget_shows(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE, config=SchedulerConfig(bmt_budget=-1.0)))
        rig.submit("a", max_tokens=30)
        ticks(rig, 5)
        expected = rig.engine.info.weight_bytes / 16.2e6 * SchedulerConfig().tick_budget_ns
        assert figures(rig)["bmt_budget"] == pytest.approx(expected, rel=0.02)

    def test_a_prompt_counts_as_far_as_it_was_read(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE))
        rig.submit("paste", LONG, priority=BACK, max_tokens=1)
        rig.run()
        seen, info = figures(rig), rig.engine.info
        n_chunks = seen["prefill_tokens_total"] / 512
        assert n_chunks * info.weight_bytes <= seen["bmt_moved_bytes_total"] <= (n_chunks + 4) * 1.2 * info.weight_bytes


class TestIdleTime:
    def test_host_time_between_calls_is_idle_time_of_the_device(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE))
        rig.submit("a", max_tokens=100)
        for _ in range(100):
            rig.tick()
            rig.clock.advance(2 * STEP_NS)  # and one more step, which every tick of the rig takes
        assert figures(rig)["device_idle_share"] == pytest.approx(3 / (3 + 16.2), abs=0.03)

    def test_time_without_requests_does_not_count(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE))
        for name in "ab":
            rig.submit(name, max_tokens=40)
            rig.run()
            ticks(rig, 3)
            rig.clock.advance(10**12)
        assert figures(rig)["device_idle_share"] < 0.1
        assert figures(Rig())["device_idle_share"] is None


class TestCopies:
    def test_what_is_handed_over_by_copying_is_not_free(self) -> None:
        rig = Rig()
        rig.submit("a", LONG, max_tokens=2)
        rig.run()
        assert figures(rig)["copy_free_ratio"] < 0.1, "the simulated engine copies each chunk"

    def test_what_is_read_in_place_is(self) -> None:
        rig = Rig(FakeModel(n_prefill_slots=0))
        rig.submit("a", LONG, max_tokens=2)
        rig.run()
        assert figures(rig)["copy_free_ratio"] == 1.0
        assert figures(Rig())["copy_free_ratio"] is None


class TestWayOfATokenOut:
    @pytest.mark.parametrize("has_prompt", [False, True])
    def test_it_ends_when_the_io_thread_is_told(self, has_prompt: bool) -> None:
        """Not at the end of the tick. This also holds in ticks with pieces of a prompt."""
        rig = measured(Rig(cost=CPU_SHAPE))
        calls = rig.executor.calls

        def announce() -> None:
            rig.clock.advance(STEP_NS // 4)  # work on the tokens until then
            if rig.executor.events:
                calls.on_announced()

        calls.announce = announce
        calls.wake_fd = lambda: [announce(), -1][1]  # type: ignore[func-returns-value]
        rig.submit("chat", max_tokens=300)
        ticks(rig, 40)
        if has_prompt:
            rig.submit("paste", LONG, priority=BACK, max_tokens=1)
            rig.registry.gauge(m.LOGITS_TO_CHUNK).set(0)
        for _ in range(60):
            rig.executor.tick()
        assert figures(rig)["time_logits_to_first_chunk"] == pytest.approx(0.25, abs=0.01)


class TestGuardState:
    def test_it_follows_the_plan(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE))
        assert rig.executor.guard_state() == "idle"
        rig.submit("chat", max_tokens=2000)
        ticks(rig, 30)
        assert rig.executor.guard_state() == "open"
        rig.submit("paste", LONG, priority=BACK, max_tokens=1)
        seen = set()
        for _ in range(300):
            rig.tick()
            guard = rig.executor.last_plan.guard
            is_read = any(item.sid == 2 for item in rig.executor.last_plan.items)
            assert guard is not None
            assert rig.executor.guard_state() == ("active" if guard.holds_prompt else "open")
            seen.add((rig.executor.guard_state(), is_read))
        assert seen <= {("open", True), ("active", False), ("open", False)}
        rig.executor.cancel(1, "chat")
        rig.tick()
        assert rig.executor.guard_state() == "idle"

    def test_a_prompt_that_is_held_reads_active_and_a_gap_on_credit_open(self) -> None:
        rig = measured(Rig(cost=CPU_SHAPE))
        rig.submit("chat", max_tokens=2000, slo=Slo(0, STEP_NS))  # a target so short that there is no everyday room
        ticks(rig, 30)
        rig.submit("paste", LONG, priority=BACK, max_tokens=1)
        ticks(rig, 3)
        held = pulled(rig, credit=0.3, error=0.25)
        assert rig.executor.guard_state() == "active" and held["holds_prompt"]
        (note,) = [n for n in rig.executor.last_plan.notes if n.startswith("latency_guard")]
        assert f"piece {held['need_ms']:.3f} ms > room {held['room_ms']:.3f}" in note and "credit 0.3" in note
        spent = pulled(rig, credit=1.0, error=0.25)
        assert rig.executor.guard_state() == "open" and not spent["holds_prompt"] and spent["kind"] == "long"
        assert any("on credit 1.0" in note for note in rig.executor.last_plan.notes)

    def test_without_the_stage_it_is_off(self) -> None:
        rig = Rig(config=SchedulerConfig(stages=tuple(s for s in DEFAULT_STAGES if s != "latency_guard")))
        rig.submit("chat", max_tokens=20)
        ticks(rig, 5)
        assert rig.executor.guard_state() == "off"


def pulled(rig: Rig, **memory: float) -> dict:
    """Return the guard's figures of a tick that is planned with this memory."""
    known = rig.executor._memory
    rig.executor.set_config(rig.executor.config)  # a repeated plan has no new memory
    rig.executor._memory = known._replace(latency_guard=known.latency_guard._replace(planned_ns=0, **memory))
    rig.tick()
    return view.take(rig.executor, rig.clock.now_ns()).tick["guard_detail"]


class TestWaits:
    def test_a_session_that_was_parked_waited_once(self) -> None:
        rig = Rig(FakeModel(n_seq_max=1, n_prefill_slots=0))
        rig.submit("a", max_tokens=10, priority=BACK)
        for i in range(3):
            ticks(rig, 9)
            rig.submit(f"chat{i}", "hi", max_tokens=3)
        rig.run()
        assert rig.executor.meters.preemptions.value
        seen = figures(rig)
        assert [seen["queue_ms"][name]["count"] for name in ("interactive", "background")] == [3, 1]

    def test_the_time_of_prompts_is_that_of_requests_with_a_first_token(self) -> None:
        """One that ends before it only waited, and takes nothing away from the others' time."""
        rig = Rig(FakeModel(n_seq_max=1, n_prefill_slots=0))
        rig.submit("a", max_tokens=40)
        ticks(rig, 5)
        first = figures(rig)["prompt_ms_total"]
        assert first > 0
        rig.submit("long", LONG, max_tokens=1, timeout_ns=50 * STEP_NS)
        rig.run()
        assert rig.finals("long")[0].reason.value == "timeout"
        assert figures(rig)["prompt_ms_total"] == first
        rig.submit("b", max_tokens=1)
        rig.run()
        assert figures(rig)["prompt_ms_total"] > first
