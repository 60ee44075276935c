"""Replays recorded texts through the lookups: what they would have drafted, how much of it holds, and which constants
suit.

No engine and no clock: the policy gives rows to drafts, and a call takes the time that is given for its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np

from perf import states
from perf.recorded import WORKLOADS, Recorded, recorded
from perf.replayed import vocabulary
from perf.stats import percentile
from uma_core.config.options import SpeculationOptions
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.policy.cost.calibrate import build
from uma_core.policy.cost.curve import Curve
from uma_core.policy.cost.model import CostModel
from uma_core.policy.memory import PolicyMemory, TbtMemory
from uma_core.policy.pipeline import compose
from uma_core.policy.stages import speculate
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.session.draft import Agreement, Draft
from uma_core.speculation import acceptance, speculator
from uma_core.speculation.acceptance import N_BUCKETS, PRIOR, Acceptance, bucket_of
from uma_core.speculation.lookup import Lookup
from uma_core.types import Phase, TokenId

MS = 1_000_000
STEP_NS = 16 * MS
CELL_NS = 500.0  # a thousand positions add 3 % to a step
N_VERIFY_ROWS = 16
N_TOKENS = 256  # of each answer
POLICY = compose(DEFAULT_STAGES)
PLACES = {
    Agreement.ONE: "where the match has one earlier place",
    Agreement.SAME: "where its two latest places say the same",
    Agreement.DIFFERENT: "where they differ",
}


class Text(NamedTuple):
    recorded: Recorded
    prompt: np.ndarray  # (n,) int32
    answer: list[TokenId]


class Constant(NamedTuple):
    """A constant that this study chooses, by the speed of this many streams."""

    module: ModuleType
    name: str
    values: tuple[float, ...]
    n_streams: int


CONSTANTS = (
    Constant(acceptance, "STEP", (0.02, 0.04, 0.08, 0.16), 1),
    Constant(acceptance, "GLOBAL_STEP", (0.0, 0.003, 0.01, 0.03), 1),
    Constant(speculate, "LEAST_SURVIVAL", (0.15, 0.25, 0.35), 1),
    Constant(speculator, "AHEAD_MOST", (4.0, 8.0, 16.0, 32.0), 4),
)
DEVICE = states.DEVICE._replace(is_unified=True, can_mix_rows=True, n_verify_rows=N_VERIFY_ROWS)


def cost_of(prices: Mapping[int, float]) -> CostModel:
    """Make a cost model. `prices`: times of calls of this many rows, in steps of one row."""
    rows = {1: 1.0, **prices}
    decode = Curve(tuple(rows), tuple(STEP_NS * price for price in rows.values()), (CELL_NS,) * len(rows))
    prefill = Curve((1, 512), (STEP_NS, 25 * STEP_NS), (CELL_NS, CELL_NS))
    return build(decode, prefill, Curve((1, 512), (MS, 4 * MS), (0.0, 0.0)), Curve((1,), (0.1,), (0.0,)), 24, True)


class Tally:
    """Results of replaying a workload."""

    def __init__(self) -> None:
        self.n_tokens = self.n_drafted = self.n_held = 0
        self.ns = self.plain_ns = 0  # time that the streams took, and would have taken without drafts
        self.steps_ns: list[float] = []
        self.log_loss, self.n_judged = 0.0, 0
        # [seen, held] of the first draft token
        self.by_match = {agreement: [[0, 0] for _ in range(N_BUCKETS)] for agreement in Agreement}

    @property
    def speed(self) -> float:
        """Tokens a second, as a multiple of those without drafts."""
        return self.plain_ns / self.ns if self.ns else math.nan

    @property
    def steps_p95(self) -> float:
        return percentile(self.steps_ns, 95) / STEP_NS

    def judge(self, draft: Draft, token: TokenId) -> None:
        """Compare a proposed draft with the next token."""
        if not draft.tokens:
            return
        is_right = draft.tokens[0] == token
        bucket = self.by_match[draft.agreement[0]][bucket_of(draft.n_match)]
        bucket[0], bucket[1] = bucket[0] + 1, bucket[1] + is_right
        chance = min(0.999, max(0.001, draft.survival[0]))
        self.log_loss -= math.log(chance if is_right else 1.0 - chance)
        self.n_judged += 1


class Stream:
    """One text that is being answered."""

    def __init__(self, sid: int, text: Text, rates: Acceptance, n_most: int) -> None:
        self._sid = sid
        self._text = text
        self._source = Lookup(text.prompt, (), Acceptance(rates))
        while not self._source.feed():
            pass
        self._n_most = n_most
        self._ahead = speculator.AHEAD_FIRST
        self._draft = Draft()
        self.n_done = 0

    @property
    def is_over(self) -> bool:
        return self.n_done >= len(self._text.answer)

    @property
    def n_past(self) -> int:
        return len(self._text.prompt) + self.n_done

    def view(self, now_ns: int) -> SessionView:
        """Return the session's view, with its present draft."""
        answer, n = self._text.answer, self.n_done
        self._draft = self._source.propose(answer[:n], min(self._n_most, len(answer) - n - 1))
        return states.WAITING._replace(
            sid=self._sid,
            seq_id=self._sid,
            phase=Phase.DECODE,
            n_prompt=len(self._text.prompt),
            n_past=self.n_past,
            n_generated=n + 1,
            n_max=len(answer),
            n_cells=self.n_past + len(answer),
            t_queued_ns=1,
            t_first_ns=1,
            t_last_ns=now_ns,
            t_progress_ns=now_ns,
            survival=self._draft.survival,
            ahead=self._ahead,
        )

    def go_on(self, n_drafted: int, stretch: float, tally: Tally) -> None:
        """Continue after a step that gave rows to this many draft tokens."""
        answer, draft = self._text.answer, self._draft
        tally.judge(draft, answer[self.n_done])
        n_held = 0
        while n_held < n_drafted and draft.tokens[n_held] == answer[self.n_done + n_held]:
            n_held += 1
        tally.n_drafted, tally.n_held = tally.n_drafted + n_drafted, tally.n_held + n_held
        tally.n_tokens += 1 + n_held
        self.n_done += 1 + n_held
        self._ahead = max(0.0, min(speculator.AHEAD_MOST, self._ahead + n_held - stretch))


def play(texts: Sequence[Text], rates: Acceptance, cost: CostModel, tally: Tally) -> None:
    """Answer these texts at once, step by step."""
    n_most = SpeculationOptions().max_draft_tokens
    live = [Stream(i, text, rates, n_most) for i, text in enumerate(texts)]
    now_ns, tick = 1, 0
    while live:
        tick += 1
        views = tuple(stream.view(now_ns) for stream in live)
        memory = PolicyMemory(latency_guard=TbtMemory(tick=tick))
        state = SchedulerState(tick, now_ns, views, DEVICE, SchedulerConfig(), cost, (), memory)
        plan = POLICY(state)
        rows = {item.sid: item.n_tokens for item in plan.decodes}
        ns = cost.decode_ns(sum(rows.values()), sum(view.n_past * rows[view.sid] for view in views))
        tally.steps_ns.append(ns)
        tally.ns += ns * len(live)
        now_ns += ns
        for stream, view in zip(live, views, strict=True):
            stream.go_on(rows[view.sid] - 1, plan.stretch, tally)
        live = [stream for stream in live if not stream.is_over]
    tally.plain_ns += _plain_ns(texts, cost)


def _plain_ns(texts: Sequence[Text], cost: CostModel) -> int:
    """Return the time that all streams take without drafts."""
    ns = 0
    for i in range(max(len(text.answer) for text in texts)):
        cells = [len(text.prompt) + i for text in texts if i < len(text.answer)]
        ns += len(cells) * cost.decode_ns(len(cells), sum(cells))
    return ns


def replay(texts: Sequence[Text], cost: CostModel, n_streams: int) -> dict[str, Tally]:
    """Replay all workloads; returns tallies by workload. As in one daemon's life, later sessions use what earlier ones
    learnt.
    """
    rates = Acceptance()
    out: dict[str, Tally] = {}
    for workload in WORKLOADS:
        tally = out[workload] = Tally()
        those = [text for text in texts if text.recorded.workload == workload]
        for i in range(0, len(those), n_streams):
            play(those[i : i + n_streams], rates, cost, tally)
    return out


def _with(constant: Constant, value: float, texts: Sequence[Text], cost: CostModel) -> dict[str, Tally]:
    before = getattr(constant.module, constant.name)
    setattr(constant.module, constant.name, value)
    try:
        return replay(texts, cost, constant.n_streams)
    finally:
        setattr(constant.module, constant.name, before)


def study(prices: Mapping[int, float]) -> Iterator[str]:
    """Yield the lines of the tables."""
    vocab, cost = vocabulary(), cost_of(prices)
    texts = [
        Text(
            each,
            np.array(vocab.tokenize(each.prompt, True, False), np.int32),
            vocab.tokenize(each.answer, False, False)[:N_TOKENS],
        )
        for each in recorded()
    ]
    by_rows = ", ".join(f"{n} rows {price:g}" for n, price in prices.items())
    yield f"calls, in steps of one row: {by_rows}. Tokens a second as multiples of those without drafts"
    for n in (4, 1):
        found = replay(texts, cost, n)
        for workload, tally in found.items():
            yield (
                f"  {n} x {workload:8} {tally.speed:5.2f}x  steps' p95 {tally.steps_p95:.2f}  "
                f"{tally.n_held:6} of {tally.n_drafted:6} drafted tokens held, {tally.n_tokens} tokens"
            )
    for agreement in Agreement:
        yield f"share of first draft tokens that held, by the bit length of the match (now: PRIOR), {PLACES[agreement]}"
        for workload, tally in found.items():
            counts = tally.by_match[agreement][1:]
            line = " ".join(f"{held / seen:5.2f}/{seen:<4}" if seen else "   -      " for seen, held in counts)
            yield f"  {workload:8} {line}"
        yield "  PRIOR    " + " ".join(f"{rate:5.2f}     " for rate in PRIOR[agreement][1:])
    for constant in CONSTANTS:
        now = getattr(constant.module, constant.name)
        yield f"{constant.name} (now {now}), streams: {constant.n_streams}; speed, and mean log loss of first tokens"
        for value in constant.values:
            yield f"  {value:6} {_brief(_with(constant, value, texts, cost))}"


def _brief(found: dict[str, Tally]) -> str:
    speeds = "  ".join(f"{workload} {tally.speed:.3f}" for workload, tally in found.items())
    n = sum(tally.n_judged for tally in found.values())
    return f"{speeds}  loss {sum(tally.log_loss for tally in found.values()) / max(1, n):.4f}"
