"""Comparing the engines: what is timed, what follows from it, and which engines are open meanwhile."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from uma_core.clock import ManualClock
from uma_core.config.options import EngineOptions
from uma_core.engine.api import DecodeStatus, MemoryUse
from uma_core.engine.fake.cost import INSTANT
from uma_core.engine.fake.engine import FakeEngine, FakeModel, Faults
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.select import compare as module
from uma_core.engine.select.choose import Choice
from uma_core.engine.select.compare import (
    N_AGREE,
    N_MOST,
    SLOWEST_NS,
    Outcome,
    Shape,
    Times,
    compare,
    measure,
    shapes_of,
    verdict,
)
from uma_core.engine.select.trial import Trial
from uma_core.errors import ErrorCode, UmaError

NAMES = ("1 stream at 256", "4 streams at 256")
NEED = MemoryUse(100, 10, 1)


def times(*ms: float) -> Times:
    return {name: [round(value * 1e6)] * N_AGREE for name, value in zip(NAMES, ms, strict=True)}


# the decision


@pytest.mark.parametrize(
    ("graph", "expected"),
    [((10, 10), "llama"), ((9, 9), "graph"), ((10.2, 5), "graph"), ((11, 5), "llama"), ((20, 20), "llama")],
)
def test_it_has_to_be_faster_and_nowhere_slower(graph: tuple[float, float], expected: str) -> None:
    choice, is_lasting = verdict(times(10, 10), times(*graph))
    assert (choice.engine, is_lasting) == (expected, True)
    assert "times llama.cpp's speed" in choice.reason


def test_the_reason_has_the_ratio_of_every_shape() -> None:
    reason = verdict(times(10, 12), times(5, 4))[0].reason
    assert (
        reason
        == "the graph engine has 2.45 times llama.cpp's speed (2.00 with 1 stream at 256, 3.00 with 4 streams at 256)"
    )


def test_the_fastest_calls_count_and_slow_ones_among_them_do_not_disturb() -> None:
    noisy = {name: [90_000_000, *calls, 40_000_000] for name, calls in times(5, 5).items()}
    assert verdict(times(10, 10), noisy)[0] == verdict(times(10, 10), times(5, 5))[0]


@pytest.mark.parametrize("calls", [[1_000_000], [1_000_000, 1_400_000, 1_400_000, 2_000_000]])
def test_engines_timed_one_after_the_other_are_not_compared_by_calls_that_do_not_agree(calls: list[int]) -> None:
    for llama, graph in (
        (times(10, 10), {**times(1, 1), NAMES[0]: calls}),
        ({**times(10, 10), NAMES[1]: calls}, times(1, 1)),
    ):
        choice, is_lasting = verdict(llama, graph, are_in_turn=False)
        assert (choice.engine, is_lasting) == ("llama", False)
        assert "disturbed" in choice.reason


BUSY = [1.0, 3.0, 1.3, 1.7, 2.1]  # other work lengthens calls of equal cost by these factors


@pytest.mark.parametrize(
    ("speed", "expected", "is_clear"),
    [(1.2, "graph", False), (1.0, "llama", False), (0.9, "llama", False), (1.5, "graph", True), (0.7, "llama", True)],
)
def test_engines_timed_in_turn_are_compared_call_by_call_where_other_work_slows_both(
    speed: float, expected: str, is_clear: bool
) -> None:
    """A choice that is not clear is made again at the next start."""
    llama = {name: [round(1e6 * x) for x in BUSY] for name in NAMES}
    graph = {name: [round(1e6 * x / speed) for x in BUSY] for name in NAMES}
    choice, is_lasting = verdict(llama, graph)
    assert (choice.engine, is_lasting) == (expected, is_clear)
    assert f"{speed:.2f} times" in choice.reason and "seen beside other work" in choice.reason
    assert ("the next start compares them again" in choice.reason) != is_clear


@pytest.mark.parametrize(("ratios", "expected"), [((3.0, 0.9), "graph"), ((1.2, 0.8), "llama")])
def test_beside_other_work_the_mean_decides_and_no_single_shape(ratios: tuple[float, float], expected: str) -> None:
    llama = {name: [round(1e6 * x) for x in BUSY] for name in NAMES}
    graph = {name: [round(1e6 * x / ratio) for x in BUSY] for name, ratio in zip(NAMES, ratios, strict=True)}
    assert verdict(llama, graph)[0].engine == expected


def test_the_reason_names_the_shape_that_decided() -> None:
    assert verdict(times(10, 10), times(11, 5))[0].reason.endswith("and is slower with 1 stream at 256")


# what is timed


def test_shapes_fit_the_context() -> None:
    ticks = [Shape(1, 256), Shape(4, 256), Shape(1, 2048), Shape(4, 2048)]
    assert shapes_of(16384, 4, 512, False) == [*ticks, Shape(128)]
    assert shapes_of(16384, 1, 64, False) == [Shape(1, 256), Shape(1, 2048), Shape(64)]
    assert shapes_of(2048, 4, 512, False) == [Shape(1, 256), Shape(4, 256), Shape(1, 499), Shape(4, 499), Shape(128)]
    assert shapes_of(2048, 4, 512, True) == [Shape(1, 256), Shape(4, 256), Shape(1, 2035), Shape(128)]
    assert shapes_of(16, 4, 512, False) == [Shape(4)]


@pytest.mark.parametrize("n_engines", [1, 2])
def test_measuring_leaves_every_sequence_empty(n_engines: int) -> None:
    engines = [FakeEngine(FakeModel(n_ctx=16384)) for _ in range(n_engines)]
    shapes = shapes_of(16384, 4, 512, False)
    found = measure(engines, shapes, Trial())
    assert [list(each) for each in found] == [[shape.name for shape in shapes]] * n_engines
    assert all(N_AGREE <= len(calls) <= N_MOST for each in found for calls in each.values())
    assert [engine.kv_len(s) for engine in engines for s in range(4)] == [0] * 4 * n_engines


def test_a_machine_too_busy_ends_the_measuring_early(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = FakeEngine(FakeModel(n_ctx=16384)), iter(range(1, 10**6))
    decode = engine.decode
    monkeypatch.setattr(engine, "decode", lambda *call: decode(*call)._replace(call_ns=2 ** next(clock)))
    (found,) = measure([engine], shapes_of(16384, 4, 512, False), Trial())
    assert {name: len(calls) for name, calls in found.items()} == {"1 stream at 256": N_MOST}


def test_a_daemon_that_stops_does_not_wait_for_it() -> None:
    should_continue = iter([True, True, False])
    with pytest.raises(UmaError) as caught:
        measure([FakeEngine(FakeModel())], [Shape(1, 256)], Trial(should_continue=lambda: next(should_continue)))
    assert caught.value.error is ErrorCode.SHUTTING_DOWN


def test_a_call_that_fails_is_no_time() -> None:
    faults = Faults(statuses=deque([DecodeStatus.OK, DecodeStatus.FATAL]))
    with pytest.raises(UmaError) as caught:
        measure([FakeEngine(FakeModel(), faults=faults)], [Shape(1, 256)], Trial())
    assert caught.value.error is ErrorCode.DECODE_FAILED


# which engines are open


class Bench:
    """Opens simulated engines of given speeds, and remembers which were open at the same time."""

    def __init__(self, llama_ns: float, graph_ns: float) -> None:
        self.ns = {"llama": llama_ns, "graph": graph_ns}
        self.open: list[str] = []
        self.history: list[list[str]] = []
        self.failure: UmaError | None = None
        self.told: list[str] = []

    def __call__(self, name: str) -> FakeEngine:
        if name == "graph" and self.failure is not None:
            raise self.failure
        cost = replace(INSTANT, decode=((1, self.ns[name]),), prefill=((1, self.ns[name]),))
        engine = FakeEngine(cost=cost)
        engine.info = replace(engine.info, engine=name)
        close = engine.close

        def closed() -> None:
            self.open.remove(name)
            close()

        engine.close = closed  # type: ignore[method-assign]
        self.open.append(name)
        self.history.append(list(self.open))
        return engine

    def compare(self, room: int = 1000, calibrate: str = "auto") -> Outcome:
        trial = Trial(lambda need, free: sum(need) <= room, tell=self.told.append)
        outcome = compare(self, EngineOptions(engine="auto", calibrate=calibrate), (NEED, NEED), trial)
        assert self.open == ([] if outcome.engine is None else [outcome.choice.engine])
        return outcome


@pytest.mark.parametrize(("graph_ns", "winner"), [(500, "graph"), (2000, "llama")])
def test_with_room_for_both_the_winner_is_open_already(graph_ns: float, winner: str) -> None:
    bench = Bench(1000, graph_ns)
    choice, engine, is_lasting = bench.compare()
    assert (choice.engine, is_lasting) == (winner, True)
    assert engine is not None and engine.info.engine == winner
    assert bench.history == [["llama"], ["llama", "graph"]]
    assert bench.told == ["the engines are compared on this model, once"]


@pytest.mark.parametrize(("graph_ns", "winner"), [(500, "graph"), (2000, "llama")])
def test_with_room_for_one_the_other_goes_first(graph_ns: float, winner: str) -> None:
    bench = Bench(1000, graph_ns)
    choice, engine, is_lasting = bench.compare(room=2 * sum(NEED) - 1)
    assert (choice.engine, is_lasting, engine is not None) == (winner, True, winner == "graph")
    assert bench.history == [["llama"], ["graph"]], "never both"


@pytest.mark.parametrize(("room", "winner", "n_opened"), [(1000, "graph", 2), (2 * sum(NEED) - 1, "llama", 1)])
def test_beside_other_work_engines_are_compared_where_both_are_open(
    monkeypatch: pytest.MonkeyPatch, room: int, winner: str, n_opened: int
) -> None:
    monkeypatch.setattr(module, "_is_agreed", lambda calls: False)
    bench = Bench(1000, 900)
    choice, _, is_lasting = bench.compare(room=room)
    assert (choice.engine, is_lasting, len(bench.history)) == (winner, False, n_opened)


def test_without_room_nothing_is_opened() -> None:
    bench = Bench(1000, 500)
    choice, engine, is_lasting = bench.compare(room=sum(NEED) - 1)
    assert (choice.engine, engine, is_lasting, bench.history) == ("llama", None, False, [])
    assert "memory" in choice.reason


def test_a_device_with_memory_of_its_own_is_asked_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        @staticmethod
        def free_bytes() -> int:
            return 12345

    asked: list[int | None] = []
    trial = Trial(lambda need, free: asked.append(free) is None)
    for device, free in ((Gpu, 12345), (None, None)):
        if device:
            monkeypatch.setattr(module, "device_of", lambda options, device=device: device)
        outcome = compare(Bench(1000, 500), EngineOptions(engine="auto", n_gpu_layers=0), (NEED, NEED), trial)
        assert outcome.choice.engine == "graph" and asked == [free] * 3
        monkeypatch.undo()
        asked.clear()


def test_a_slow_model_is_compared_only_when_forced() -> None:
    bench = Bench(2 * SLOWEST_NS, SLOWEST_NS)
    choice, engine, is_lasting = bench.compare()
    assert (choice.engine, is_lasting, bench.history) == ("llama", False, [["llama"]])
    assert engine is not None and "too slow" in choice.reason
    assert Bench(2 * SLOWEST_NS, SLOWEST_NS).compare(calibrate="force").choice.engine == "graph"


def test_a_comparison_on_a_slow_model_takes_seconds() -> None:
    """A row takes 0.5 s and a token of a prompt 0.1 s: 128 tokens would take six times 13 s."""
    clock = ManualClock(1)
    rows = ((1, 5e8), (4, 6e8))
    cost = replace(INSTANT, decode=rows, prefill=((1, 5e8), (32, 3.2e9), (128, 12.8e9)))

    def opened(name: str) -> FakeEngine:
        engine = FakeEngine(cost=cost, clock=clock)
        engine.info = replace(engine.info, engine=name)
        return engine

    outcome = compare(opened, EngineOptions(engine="auto"), (NEED, NEED), Trial())
    assert "times llama.cpp's speed" in outcome.choice.reason and outcome.is_lasting
    assert clock.now_ns() < 45e9


@pytest.mark.parametrize("room", [1000, 2 * sum(NEED) - 1])
@pytest.mark.parametrize(
    ("code", "is_lasting"), [(ErrorCode.CONFIG_INVALID, True), (ErrorCode.INSUFFICIENT_MEMORY, False)]
)
def test_a_graph_engine_that_does_not_open_is_not_taken(room: int, code: ErrorCode, is_lasting: bool) -> None:
    bench = Bench(1000, 500)
    bench.failure = UmaError(code, "it will not")
    outcome = bench.compare(room)
    assert (outcome.choice, outcome.is_lasting) == (Choice("llama", "it will not"), is_lasting)


def test_giving_up_closes_what_is_open() -> None:
    bench, n_asked = Bench(1000, 500), iter(range(10**6))
    with pytest.raises(UmaError) as caught:
        compare(bench, EngineOptions(engine="auto"), (NEED, NEED), Trial(should_continue=lambda: next(n_asked) < 10))
    assert caught.value.error is ErrorCode.SHUTTING_DOWN
    assert bench.open == [] and len(bench.history) == 2


def test_both_engines_can_be_timed_on_a_real_model() -> None:
    engines = [LlamaEngine(DRAFT, OPTIONS), GraphEngine(DRAFT, OPTIONS)]
    shapes = shapes_of(OPTIONS.n_ctx, OPTIONS.n_seq, OPTIONS.n_batch, False)
    for shape in shapes:
        found = measure(engines, [shape], Trial())
        assert all(len(calls) >= N_AGREE and min(calls) > 0 for each in found for calls in each.values())
    assert [engine.kv_len(s) for engine in engines for s in range(OPTIONS.n_seq)] == [0] * 2 * OPTIONS.n_seq
    for engine in engines:
        engine.close()
