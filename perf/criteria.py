"""The acceptance table, one row per promise, and the rules by which it judges a run. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from perf.peers import HTTP, OURS, PEER, PEER_VARIANTS, is_ours
from perf.results import Cell, Results
from perf.stats import spread

BETTER = 0.99
ENOUGH = 0.8  # share of a row's repeats that must be within its bound, in addition to the median: 4 of 5
GUARD_OFF = f"{OURS}:guard-off"
LLAMA_ENGINE = f"{OURS}:engine=llama"


class Against(Enum):
    """The value that a figure is compared with."""

    LIMIT = "limit"  # the figure itself
    PEER = "peer"  # its ratio to llama-server's default configuration
    BEST_PEER = "best peer"  # its ratio to the best of llama-server's configurations
    SOCKET = "socket"  # its ratio to our daemon without the gateway
    LLAMA_ENGINE = "llama engine"  # its ratio to our daemon with the other engine


@dataclass(frozen=True, slots=True)
class Criterion:
    """`figure` of `scenario` on `ours` must be at most (or at least) `limit`."""

    scenario: str
    what: str
    figure: str
    limit: float
    against: Against = Against.LIMIT
    is_floor: bool = False  # at least, instead of at most
    ours: str = OURS

    @property
    def target(self) -> str:
        units = {Against.PEER: "x llama-server", Against.BEST_PEER: "x llama-server's best", Against.SOCKET: "x socket"}
        unit = {**units, Against.LIMIT: "", Against.LLAMA_ENGINE: "x --engine llama"}[self.against]
        if self.against is Against.LIMIT and self.figure.endswith("_x"):
            unit = "x solo"
        return f"{'≥' if self.is_floor else '≤'} {self.limit:g}{unit}"

    def is_within(self, value: float) -> bool:
        """Whether a value is within the bound. False for NaN."""
        return value >= self.limit if self.is_floor else value <= self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    criterion: Criterion
    value: float  # median over repeats; NaN if it was not measured
    low: float
    high: float
    n: int  # repeats
    n_within: int  # of these, within the bound; a repeat without a value, or with a lost stream, is not
    runs: tuple[float, ...]  # median of each run, if there were several
    is_met: bool | None  # None: not measured

    @property
    def word(self) -> str:
        return {True: "met", False: "MISSED", None: "not measured"}[self.is_met]


def _chat_bounds(scenario: str, whose: str) -> tuple[Criterion, ...]:
    return (
        Criterion(scenario, f"{whose} inter-token p95", "p95_x", 1.2),
        Criterion(scenario, f"{whose} worst pause, first 3 s", "pause_3s_x", 2.0),
        Criterion(scenario, f"{whose} stream time", "stream_x", 1.25),
        Criterion(scenario, "makespan of everything", "makespan_ms", 1.05, Against.BEST_PEER),
    )


def _context(name: str) -> tuple[Criterion, ...]:
    return (
        Criterion(name, "chats' inter-token p95", "chats_p95_x", 1.3),
        Criterion(name, "aggregate tokens/s", "total_tok_s", 1.0, Against.PEER, is_floor=True),
    )


ON_CPU: tuple[Criterion, ...] = (
    Criterion("solo", "time to first token", "ttft_ms", 1.0, Against.PEER),
    Criterion("solo", "inter-token p50", "itl_p50_ms", 1.02, Against.PEER),
    *_chat_bounds("storm", "chat's"),
    *_chat_bounds("two-chats", "worse chat's"),
    *_chat_bounds("mixed", "worst chat's"),
    Criterion("short-storm", "chat's worst pause, first 3 s", "pause_3s_x", 2.0),
    Criterion("short-storm", "makespan of everything", "makespan_ms", 1.05, Against.BEST_PEER),
    Criterion("paste", "chat's time to first token", "ttft_x", 2.0),
    Criterion("paste", "chat's worst pause", "pause_x", 2.0),
    Criterion("paste", "the paste's time to first token", "paste_ttft_ms", 1.15, Against.PEER),
    Criterion("chain", "slowdown", "slowdown_x", 1.5),
    Criterion("chain", "makespan of everything", "makespan_ms", 1.1, Against.PEER),
    Criterion("throughput", "aggregate, guard off", "tok_s", 1.0, Against.PEER, is_floor=True, ours=GUARD_OFF),
    Criterion("throughput", "aggregate, guard on", "tok_s", 0.95, Against.PEER, is_floor=True),
    Criterion("throughput", "RSS", "rss_mb", 1.1, Against.PEER),
    Criterion("idle", "CPU without work, percent of a core", "idle_cpu_percent", 0.5),
    Criterion("crowd", "clients served", "done_n", 24, is_floor=True),
    Criterion("crowd", "time to first token p50", "ttft_p50_ms", 0.5, Against.PEER),
    Criterion("crowd", "makespan", "makespan_ms", 1.05, Against.PEER),
    *_context("context-8k"),
    *_context("context-16k"),
    *_context("context-32k"),
    Criterion("moe-sweep", "interactive inter-token p95, worst count", "p95_x", 1.2),
    *(
        Criterion("moe-sweep", f"aggregate tokens/s, {n} streams", f"x{n}_tok_s", 0.95, Against.PEER, is_floor=True)
        for n in (2, 3, 4, 6, 8)
    ),
    Criterion("agent", "prompt tokens computed, x unique ones", "computed_x_unique", 1.05),
    Criterion("agent", "TTFT of turn 20, x uncached", "warm_share", 0.1),
    Criterion("agent", "TTFT of turns 2 to 20", "ttft_p50_ms", 1.0, Against.PEER),
    Criterion("agent-restart", "TTFT of turn 20, x uncached", "warm_share", 0.2),
    Criterion("fanout", "TTFT of 8 branches", "ttft_p50_ms", BETTER, Against.PEER),
    Criterion("alternating", "TTFT of later turns", "ttft_p50_ms", BETTER, Against.PEER),
    Criterion("round-robin", "TTFT of later turns", "ttft_p50_ms", BETTER, Against.PEER),
    Criterion("snapshots", "chat's inter-token p95", "p95_x", 1.2),
    Criterion("snapshots", "chat's worst pause", "pause_x", 2.0),
)

ON_GPU: tuple[Criterion, ...] = (
    Criterion("storm", "chat's worst pause", "pause_x", 2.0),
    Criterion("storm", "chat's inter-token p95", "p95_x", 1.3),
    Criterion("storm", "makespan of everything", "makespan_ms", 1.05, Against.BEST_PEER),
    Criterion("storm", "chat's stream time", "stream_x", 1.25),
    Criterion("paste", "chat's time to first token", "ttft_x", 2.0),
    Criterion("paste", "chat's worst pause", "pause_x", 2.0),
    Criterion("paste", "the paste's time to first token", "paste_ttft_ms", 1.15, Against.PEER),
    Criterion("throughput", "aggregate of 4 streams", "tok_s", 1.3, Against.PEER, is_floor=True),
    Criterion("throughput", "steady rate against bare decode calls", "steady_x_bare", 0.95, is_floor=True),
    Criterion("throughput", "time between decode calls, share of the ticks", "tick_overhead_share", 0.05),
)


# microseconds between a decode call's return and the next call: a fixed part, and one per sequence
TICK_TARGETS = {"greedy": (60.0, 15.0), "sampled": (100.0, 90.0)}
TICK_COUNTS = (1, 4, 16)
ON_HTTP: tuple[Criterion, ...] = (  # through the gateway: the socket's rows, and the gateway's own cost
    *(
        replace(c, what=f"{c.what}, through HTTP", ours=HTTP)
        for c in ON_CPU
        if c.scenario in ("storm", "paste", "crowd")
    ),
    Criterion("throughput", "aggregate, through HTTP", "tok_s", 0.97, Against.SOCKET, is_floor=True, ours=HTTP),
    Criterion("solo", "inter-token p50, through HTTP", "itl_p50_ms", 1.03, Against.SOCKET, ours=HTTP),
)


def of_weights(shape: str) -> tuple[Criterion, ...]:
    """Return the rows that the `rates` scenario must reach with a shape's type of weights: one stream, four and eight,
    prompts.
    """
    limits = RATES.get(shape)
    if limits is None:
        return ()
    one, several, prompts = limits
    return (
        Criterion("rates", "one stream, inter-token p50", "one_itl_p50_ms", one, Against.PEER),
        Criterion("rates", "four streams, tokens/s", "four_steady_tok_s", several, Against.PEER, is_floor=True),
        Criterion("rates", "eight streams, tokens/s", "eight_steady_tok_s", several, Against.PEER, is_floor=True),
        Criterion("rates", "prompt, tokens/s", "prompt_tok_s", prompts, Against.PEER, is_floor=True),
    )


def of_many_streams(on_gpu: bool) -> tuple[Criterion, ...]:
    """Return the rows that the `rates-16` scenario must reach with any shape, on many cores or a GPU; on a GPU `rates`
    too.
    """
    least = 1.3 if on_gpu else 2.0
    rows = [("rates", "eight")] if on_gpu else []
    rows += [("rates-16", "four"), ("rates-16", "sixteen")]
    return tuple(
        Criterion(scenario, f"{n} streams, tokens/s", f"{n}_steady_tok_s", least, Against.PEER, is_floor=True)
        for scenario, n in rows
    )


# shape -> upper bound of the time between tokens, lower bounds of the rates with 4 and 8 streams and of the prompt
# speed, each relative to llama-server's
RATES: dict[str, tuple[float, float, float]] = {
    "1b-q4_k_m": (0.70, 3.0, 2.0),
    **dict.fromkeys(("1b-q6_k", "1b-q5_k_m", "1b-iq4_xs", "1b-q4_0"), (0.75, 2.5, 1.7)),
    **dict.fromkeys(("1b-moe64-q8_0", "1b-moe64-q4_k_m", "1b-moe64-mxfp4"), (0.85, 1.8, 2.0)),
    "0.5b-q8_0": (0.59, 4.4, 1.0),  # what was measured when this bound was set
    "1b-q8_0": (0.85, 3.0, 1.0),
}

GATEWAY_CRITERIA: tuple[Criterion, ...] = (  # the gateway's own cost, on an engine that costs nothing
    *(
        Criterion("gateway", f"CPU time per token, {n} stream{'s' * (n > 1)}, µs", f"x{n}_token_us", 60.0, ours=HTTP)
        for n in (1, 4, 16)
    ),
    Criterion("gateway", "delay of the first token, ms", "first_later_ms", 3.0, ours=HTTP),
)

TICK_CRITERIA: tuple[Criterion, ...] = tuple(
    Criterion("tick", f"{kind}, {n} sequences, µs", f"{kind}_{n}_us", fixed + each * n)
    for kind, (fixed, each) in TICK_TARGETS.items()
    for n in TICK_COUNTS
)


def for_engine(engine: str) -> tuple[Criterion, ...]:
    """Return the same promises for our daemon with `--engine ENGINE`; any engine but llama must also be faster than
    llama.
    """
    if engine == "auto":
        return ON_CPU
    held = _held(f"engine={engine}", ON_CPU)
    if engine == "llama":  # compared with itself it would be neither faster nor slower
        return tuple(held)
    faster = [
        replace(c, what=f"{c.what}, beside --engine llama", against=Against.LLAMA_ENGINE, limit=1.0)
        for c in held
        if c.figure == "tok_s"
    ]
    return (*held, *faster[-1:])


def with_isa(isa: str, criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Return the same promises for our daemon with the kernels of an instruction set."""
    return tuple(replace(c, what=f"{c.what}, --isa {isa}") for c in _held(f"isa={isa}", criteria))


def _held(option: str, criteria: Sequence[Criterion]) -> list[Criterion]:
    return [replace(c, ours=f"{c.ours}{',' if ':' in c.ours else ':'}{option}") for c in criteria]


def on_gpu(engine: str) -> tuple[Criterion, ...]:
    """Return the rows of a GPU; if an engine is named, also those of our daemon with it."""
    named = [] if engine == "auto" else _held(f"engine={engine}", ON_GPU)
    return (*ON_GPU, *[replace(c, what=f"{c.what}, --engine {engine}") for c in named])


def labels_for(scenario: str, criteria: Sequence[Criterion] = ON_CPU) -> tuple[str, ...]:
    """Return the servers that a scenario must run on, so that each of its rows can be judged."""
    rows = [c for c in criteria if c.scenario == scenario]
    labels = dict.fromkeys((*sorted({c.ours for c in rows}, key=len), PEER))
    if any(c.against is Against.SOCKET for c in rows):
        labels[OURS] = None
    if any(c.against is Against.LLAMA_ENGINE for c in rows):
        labels[LLAMA_ENGINE] = None
    if any(c.against is Against.BEST_PEER for c in rows):
        labels |= dict.fromkeys(PEER_VARIANTS)
    return tuple(labels)


def judge(results: Results, criterion: Criterion) -> Verdict:
    """Compare the median over the repeats of all runs, and the repeats themselves, with the limit; ratios are first
    taken repeat by repeat. A figure that all of our repeats failed to give is missed; one that no repeat should have
    given was not measured.
    """
    c = criterion
    cell = results.cells.get(c.scenario, {}).get(c.ours, Cell())
    if c.against is Against.LIMIT:
        runs = cell.runs(c.figure)
    else:
        fixed = {Against.PEER: PEER, Against.SOCKET: OURS, Against.LLAMA_ENGINE: LLAMA_ENGINE}
        peer = fixed.get(c.against) or best_peer(results, c.scenario, c.figure)
        runs = results.ratio_runs(c.scenario, c.figure, c.ours, peer)
    values = [value for run in runs for value in run]
    s = spread(values)
    n_within = sum(
        c.is_within(value) and not n_failed > 0  # NaN: a scenario without streams
        for run, lost in zip(runs, cell.runs("failed_n"), strict=False)
        for value, n_failed in zip(run, lost, strict=False)
    )
    met: bool | None = c.is_within(s.median) and n_within >= ENOUGH * len(values)
    if math.isnan(s.median):  # tried and lost every time, or not tried
        met = False if cell.has_lost(c.figure) else None
    medians = tuple(spread(run).median for run in runs if run)
    return Verdict(c, s.median, s.low, s.high, len(values), n_within, medians if len(medians) > 1 else (), met)


def best_peer(results: Results, scenario: str, figure: str) -> str:
    """Return the configuration of llama-server with the lowest median."""
    row = results.cells.get(scenario, {})
    present = [label for label in PEER_VARIANTS if label in row]
    medians = {label: row[label].spread(figure).median for label in present}
    return min((label for label in present if not math.isnan(medians[label])), key=medians.__getitem__, default=PEER)


def judge_all(results: Results, criteria: Sequence[Criterion] = ON_CPU) -> list[Verdict]:
    return [judge(results, c) for c in criteria]


def clean_rows(results: Results) -> list[tuple[str, bool]]:
    """Return the conditions that must hold in every scenario: no errors and no allocator warnings on our side."""
    cells = [cell for row in results.cells.values() for label, cell in row.items() if is_ours(label)]
    warnings = sum(n for label, n in results.allocator_warnings.items() if is_ours(label))
    n_errors = sum(len(cell.errors) for cell in cells)
    return [(f"errors: {n_errors}", n_errors == 0), (f"allocator warnings: {warnings}", warnings == 0)] if cells else []
