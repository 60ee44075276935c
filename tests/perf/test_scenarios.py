"""Scenarios: documented sizes, unique prompts, scaling, and figures from logs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perf.criteria import ON_CPU, ON_GPU, RATES, of_weights
from perf.load import Ask, Phase, Sizing, prompt, scaled
from perf.report import scenario_table
from perf.scenarios import SCENARIOS
from perf.scenarios.base import Scenario
from perf.shapes import SHAPES
from perf.stats import PhaseLog, StreamLog
from tests.perf.made import make

EVERY = list(SCENARIOS.values())
MS = 1_000_000


def played(phase: Phase, step_ms: float = 10.0) -> PhaseLog:
    """Return a log as an ideal server would leave it: every token comes `step_ms` after the one before."""
    ended: dict[str, StreamLog] = {}
    for ask in phase.asks:
        begin = max((ended[n].t_tokens[0] if ask.gate == "first" else ended[n].t_done for n in ask.after), default=0)
        sent = begin + round(ask.at_ms * MS)
        tokens = tuple(sent + round((i + 1) * step_ms * MS) for i in range(ask.n_tokens))
        ended[ask.name] = StreamLog(
            ask.name, ask.is_interactive, ask.n_prompt, ask.n_tokens, sent, tokens, tokens[-1], "", ask.n_tokens
        )
    own = {
        "tick_overhead_ms.sum": 1.0,
        "tick_overhead_ms.count": 10.0,
        "tick_ms.sum": 100.0,
        "prefill_tokens_total": 10.0,
    }
    return PhaseLog(0, tuple(ended.values()), 0.1, 0.01, 0.0, 100.0, round(phase.lasts_s * 1e9), own)


@pytest.mark.parametrize("scenario", EVERY, ids=lambda s: s.name)
@pytest.mark.parametrize("scale", [1, 4])
def test_every_request_fits_its_sequence(scenario: Scenario, scale: int) -> None:
    sizing = Sizing(scale=scale)
    needs = scenario.needs(sizing)
    for phase in scenario.phases(sizing):
        assert max((ask.n_prompt + ask.n_tokens for ask in phase.asks), default=0) <= needs.n_ctx_seq


@pytest.mark.parametrize("scenario", EVERY, ids=lambda s: s.name)
def test_measures_a_played_log_without_gaps(scenario: Scenario) -> None:
    phases = scenario.phases(Sizing())
    figures = scenario.measure({phase.name: played(phase) for phase in phases})
    assert figures["failed_n"] == 0 and figures["makespan_ms"] > 0
    wanted = {c.figure for c in (*ON_CPU, *ON_GPU) if c.scenario == scenario.name} - {
        "steady_x_bare"
    }  # computed from a bench's rate too
    assert wanted <= set(figures)
    assert not [name for name in wanted if math.isnan(figures[name])]


@pytest.mark.parametrize("scenario", EVERY, ids=lambda s: s.name)
def test_same_seed_same_arrivals(scenario: Scenario) -> None:
    assert scenario.phases(Sizing(seed=7)) == scenario.phases(Sizing(seed=7))


def test_who_is_compared_with_a_chat_alone_is_compared_with_it_before_and_after() -> None:
    """Otherwise, if the machine became slower in between, the daemon would seem to be slower."""
    compared = [s for s in EVERY if "solo" in {phase.name for phase in s.phases(Sizing())} and s.name != "solo"]
    assert {"storm", "two-chats", "mixed", "paste", "context-8k", "moe-sweep"} <= {s.name for s in compared}
    for scenario in compared:
        phases = scenario.phases(Sizing())
        logs = {phase.name: played(phase) for phase in phases}
        assert phases[0].name == "solo" and phases[0].asks == phases[-1].asks
        usual = scenario.measure(logs)
        logs["solo-again"] = played(phases[-1], 20.0)
        late = scenario.measure(logs)
        assert late["p95_x"] < usual["p95_x"] and late["pause_x"] < usual["pause_x"]


def test_storm_as_documented() -> None:
    phases = {p.name: p.asks for p in SCENARIOS["storm"].phases(Sizing())}
    chat, *prompts = phases["loaded"]
    assert (chat.n_prompt, chat.n_tokens, chat.is_interactive, chat.priority) == (32, 160, True, None)
    assert [(a.n_prompt, a.n_tokens, a.priority) for a in prompts] == [(1200, 1, None)] * 6
    assert [a.at_ms for a in prompts] == [500, 900, 1300, 1700, 2100, 2500]


def test_chain_as_documented() -> None:
    loaded = SCENARIOS["chain"].phases(Sizing())[1].asks
    decoders = [a for a in loaded if a.priority == "background"]
    steps = [a for a in loaded if a.name.startswith("step")]
    assert [(a.n_tokens) for a in decoders] == [400] * 3
    assert [(a.n_prompt, a.n_tokens, a.priority) for a in steps] == [(48, 24, None)] * 4
    assert steps[0].gate == "first" and [s.after for s in steps[1:]] == [("step0",), ("step1",), ("step2",)]


def test_crowd_as_documented() -> None:
    (phase,) = SCENARIOS["crowd"].phases(Sizing())
    assert len(phase.asks) == 24
    assert all(16 <= a.n_prompt <= 700 and 4 <= a.n_tokens <= 48 and a.at_ms == 0 for a in phase.asks)


def test_scaling_multiplies_lengths_not_times_nor_single_tokens() -> None:
    one, four = (SCENARIOS["storm"].phases(Sizing(scale=s))[1].asks for s in (1, 4))
    assert [a.n_prompt * 4 for a in one] == [a.n_prompt for a in four]
    assert [a.at_ms for a in one] == [a.at_ms for a in four]
    assert four[0].n_tokens == 640 and four[1].n_tokens == 1
    assert scaled(one, 1) is one


def test_prompts_are_exact_ascii_and_unique() -> None:
    texts = [prompt(f"{run}/{name}", 500) for run in range(3) for name in ("a", "b")]
    assert all(len(t) == 500 and t.isascii() and t.isprintable() for t in texts)
    assert len({t[:8] for t in texts}) == len(texts)
    assert prompt("x", 50) == prompt("x", 50)


def test_phase_refuses_loose_ends() -> None:
    with pytest.raises(ValueError, match="waits for unknown asks: nobody"):
        Phase("p", (Ask("a", 1, 1, after=("nobody",)),))
    with pytest.raises(ValueError, match="share a name"):
        Phase("p", (Ask("a", 1, 1), Ask("a", 2, 1)))


def test_schemas_as_documented_and_what_it_measures() -> None:
    scenario = SCENARIOS["schemas"]
    by_name = {phase.name: phase for phase in scenario.phases(Sizing())}
    phases = {name: phase.asks for name, phase in by_name.items()}
    for free, held in (("alone", "alone_held"), ("free", "held")):
        assert [(a.name, a.n_prompt, a.n_tokens, a.at_ms) for a in phases[free]] == [
            (a.name, a.n_prompt, a.n_tokens, a.at_ms) for a in phases[held]
        ]
        assert not any(a.has_schema for a in phases[free])
        assert {a.name for a in phases[held] if a.has_schema} == {a.name for a in phases[held]} - {"chat"}

    logs = {"alone": played(by_name["alone"], 10), "alone_held": played(by_name["alone_held"], 20)}
    logs |= {"free": played(by_name["free"], 10), "held": played(by_name["held"], 11)}
    figures = scenario.measure(logs)
    assert figures["alone_speed_x"] == pytest.approx(0.5) and figures["streams_speed_x"] == pytest.approx(10 / 11)
    assert figures["free_p95_x"] == pytest.approx(1.1) and "p95_x" not in figures, "it never ran alone"
    table = scenario_table(make({"schemas": {"uma": [figures]}}), "schemas")
    assert "| inter-token p95, x beside free streams | 1.10 |" in table


def test_rates_measure_a_prompt_one_stream_and_several() -> None:
    scenario = SCENARIOS["rates"]
    by_name = {phase.name: phase for phase in scenario.phases(Sizing())}
    assert {name: len(phase.asks) for name, phase in by_name.items()} == {"prompt": 1, "one": 1, "four": 4, "eight": 8}
    figures = scenario.measure({name: played(phase, 10) for name, phase in by_name.items()})
    assert figures["one_itl_p50_ms"] == pytest.approx(10)
    assert figures["four_steady_tok_s"] == pytest.approx(400, rel=0.05)
    assert figures["eight_steady_tok_s"] == pytest.approx(800, rel=0.05)


def test_many_streams_are_measured_beside_few() -> None:
    scenario = SCENARIOS["rates-16"]
    by_name = {phase.name: phase for phase in scenario.phases(Sizing())}
    assert {name: len(phase.asks) for name, phase in by_name.items()} == {"four": 4, "sixteen": 16}
    assert len(by_name["sixteen"].asks) == scenario.needs(Sizing()).n_seq
    figures = scenario.measure({name: played(phase, 10) for name, phase in by_name.items()})
    assert figures["four_steady_tok_s"] == pytest.approx(400, rel=0.05)
    assert figures["sixteen_steady_tok_s"] == pytest.approx(1600, rel=0.05)


def lost(phase: PhaseLog, name: str) -> PhaseLog:
    """Return the same log as if this stream had been refused at once."""
    streams = [replace(s, t_tokens=(), t_done=s.t_sent, error="lost") if s.name == name else s for s in phase.streams]
    return replace(phase, streams=tuple(streams))


@pytest.mark.parametrize(
    ("scenario", "phase", "stream", "figures"),
    [
        ("crowd", "crowd", "client03", ("ttft_p50_ms", "ttft_max_ms")),
        ("chain", "loaded", "step1", ("chain_ms", "slowdown_x")),
        ("storm", "loaded", "storm2", ("prompts_ms", "prompt_tok_s", "prompt_ttft_p50_ms")),
        ("rates", "four", "stream3", ("four_steady_tok_s",)),
        ("fanout", "fanout", "child2", ("ttft_p50_ms", "ttft_max_ms")),
        ("alternating", "alternating", "turn3a", ("ttft_p50_ms", "ttft_max_ms")),
        ("round-robin", "round-robin", "round1.7", ("ttft_p50_ms", "ttft_p95_ms")),
        ("ipc", "requests", "request5", ("ttft_p50_ms", "ttft_p95_ms")),
    ],
)
def test_a_stream_that_was_refused_does_not_make_the_others_figures(
    scenario: str, phase: str, stream: str, figures: tuple[str, ...]
) -> None:
    logs = {each.name: played(each) for each in SCENARIOS[scenario].phases(Sizing())}
    logs[phase] = lost(logs[phase], stream)
    told = SCENARIOS[scenario].measure(logs)
    assert all(math.isnan(told[figure]) for figure in figures)


def test_a_document_that_was_refused_was_not_read() -> None:
    scenario = SCENARIOS["context-8k"]
    logs = {each.name: played(each) for each in scenario.phases(Sizing())}
    whole = scenario.measure(logs)["total_tok_s"] * logs["loaded"].makespan_ms
    logs["loaded"] = lost(logs["loaded"], "document")
    assert scenario.measure(logs)["total_tok_s"] * logs["loaded"].makespan_ms == pytest.approx(whole - 8_096_000)


def test_every_shape_with_bounds_exists() -> None:
    assert set(RATES) <= set(SHAPES)
    assert {c.figure for c in of_weights("1b-q4_k_m")} <= set(
        SCENARIOS["rates"].measure({phase.name: played(phase, 10) for phase in SCENARIOS["rates"].phases(Sizing())})
    )
