"""What lookups would have drafted of recorded texts: how much of it holds, and which constants of
`uma_core.speculation` that chooses.

No engine and no clock: a step's time is a model of rows (`Price`), in steps of one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from perf.recorded import WORKLOADS, Recorded, recorded
from perf.replayed import vocabulary
from uma_core.policy.stages.speculate import LEAST_SURVIVAL
from uma_core.session.draft import Agreement
from uma_core.speculation import acceptance
from uma_core.speculation.acceptance import N_BUCKETS, PRIOR, Acceptance, bucket_of
from uma_core.speculation.lookup import Lookup
from uma_core.types import TokenId

N_MOST = 15  # draft tokens of a step
N_CHEAP = 4  # rows that cost little
N_TOKENS = 256  # of each answer
STEPS = (0.02, 0.04, 0.08, 0.16, 0.32)
GLOBAL_STEPS = (0.0, 0.003, 0.01, 0.03)
PLACES = {
    Agreement.ONE: "where the match has one earlier place",
    Agreement.SAME: "where its two latest places say the same",
    Agreement.DIFFERENT: "where they differ",
}

Texts = list[tuple[Recorded, np.ndarray, list[TokenId]]]


class Price(NamedTuple):
    """Of one more row, in steps."""

    cheap: float  # of the first rows
    later: float  # of each after N_CHEAP

    def of(self, n_rows: int) -> float:
        return 1.0 + self.cheap * (min(n_rows, N_CHEAP) - 1) + self.later * max(0, n_rows - N_CHEAP)


class Tally:
    """What replaying made of a workload."""

    def __init__(self) -> None:
        self.n_tokens = self.n_drafted = self.n_held = 0
        self.time = 0.0
        self.log_loss, self.n_judged = 0.0, 0
        # [seen, held] of the first draft token
        self.by_match = {agreement: [[0, 0] for _ in range(N_BUCKETS)] for agreement in Agreement}

    @property
    def speed(self) -> float:
        """Tokens in the time of a step without drafts."""
        return self.n_tokens / self.time if self.time else math.nan


def play(source: Lookup, answer: list[TokenId], price: Price, tally: Tally) -> None:
    """One answer, step by step, with as many draft rows as `policy/stages/speculate.py` would give one stream."""
    at = 0
    while at < len(answer):
        draft = source.propose(answer[:at], min(N_MOST, len(answer) - at - 1))
        n, expected = 0, 1.0
        for survival in draft.survival:
            is_worth = survival * price.of(1 + n) > expected * (price.of(2 + n) - price.of(1 + n))
            if survival < LEAST_SURVIVAL or not is_worth:
                break
            n, expected = n + 1, expected + survival
        held = 0
        while held < n and draft.tokens[held] == answer[at + held]:
            held += 1
        if draft.tokens:
            is_right = draft.tokens[0] == answer[at]
            bucket = tally.by_match[draft.agreement[0]][bucket_of(draft.n_match)]
            bucket[0], bucket[1] = bucket[0] + 1, bucket[1] + is_right
            chance = min(0.999, max(0.001, draft.survival[0]))
            tally.log_loss -= math.log(chance if is_right else 1.0 - chance)
            tally.n_judged += 1
        tally.n_drafted, tally.n_held = tally.n_drafted + n, tally.n_held + held
        tally.time += price.of(1 + n)
        tally.n_tokens += 1 + held
        at += 1 + held


def replay(texts: Texts, price: Price) -> dict[str, Tally]:
    """By workload. One daemon's life: what its sessions learn goes on to the next ones."""
    known = Acceptance()
    out: dict[str, Tally] = {workload: Tally() for workload in WORKLOADS}
    for text, prompt, answer in texts:
        source = Lookup(prompt, (), Acceptance(known))
        while not source.feed():
            pass
        play(source, answer, price, out[text.workload])
    return out


def _with(module: object, name: str, value: float, run: Callable[[], dict[str, Tally]]) -> dict[str, Tally]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        return run()
    finally:
        setattr(module, name, before)


def study(row_price: float, later_price: float) -> Iterator[str]:
    """Lines of the tables."""
    vocab, price = vocabulary(), Price(row_price, later_price)
    texts: Texts = [
        (
            t,
            np.array(vocab.tokenize(t.prompt, True, False), np.int32),
            vocab.tokenize(t.answer, False, False)[:N_TOKENS],
        )
        for t in recorded()
    ]
    found = replay(texts, price)
    yield f"a row costs {row_price} of a step, from the fifth on {later_price}; tokens a step's time, drafted and held"
    for workload, tally in found.items():
        yield (
            f"  {workload:8} {tally.speed:5.2f}x  {tally.n_held:6} of {tally.n_drafted:6} drafted tokens held, "
            f"{tally.n_tokens} tokens"
        )
    for agreement in Agreement:
        yield f"part of first draft tokens that held, by the bit length of the match (now: PRIOR), {PLACES[agreement]}"
        for workload, tally in found.items():
            counts = tally.by_match[agreement][1:]
            told = " ".join(f"{held / seen:5.2f}/{seen:<4}" if seen else "   -      " for seen, held in counts)
            yield f"  {workload:8} {told}"
        yield "  PRIOR    " + " ".join(f"{rate:5.2f}     " for rate in PRIOR[agreement][1:])
    for name, values in (("STEP", STEPS), ("GLOBAL_STEP", GLOBAL_STEPS)):
        yield f"{name} (now {getattr(acceptance, name)}): speed, and mean log loss of the first token's probability"
        for value in values:
            tried = _with(acceptance, name, value, lambda: replay(texts, price))
            yield f"  {value:6} {_brief(tried)}"


def _brief(found: dict[str, Tally]) -> str:
    speeds = "  ".join(f"{workload} {tally.speed:.3f}" for workload, tally in found.items())
    n = sum(tally.n_judged for tally in found.values())
    return f"{speeds}  loss {sum(tally.log_loss for tally in found.values()) / max(1, n):.4f}"
