"""More clients than sequences, all at once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Figures, Logs
from perf.stats import percentile, phase_figures


@dataclass(frozen=True, slots=True)
class Crowd:
    name: ClassVar[str] = "crowd"
    title: ClassVar[str] = "24 clients over 4 sequences"
    n_clients: int = 24
    prompts: tuple[int, int] = (16, 700)
    tokens: tuple[int, int] = (4, 48)

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        rng = random.Random(sizing.seed)
        asks = tuple(
            Ask(f"client{i:02}", rng.randint(*self.prompts), rng.randint(*self.tokens)) for i in range(self.n_clients)
        )
        return [Phase("crowd", scaled(asks, sizing.scale))]

    def measure(self, logs: Logs) -> Figures:
        crowd = logs["crowd"]
        first = [s.ttft_ms for s in crowd.streams]
        gaps = [gap for s in crowd.streams for gap in s.gaps_ms]
        return {
            "done_n": float(sum(s.is_complete for s in crowd.streams)),
            "ttft_p50_ms": percentile(first, 50),
            "ttft_max_ms": percentile(first, 100),
            "itl_p50_ms": percentile(gaps, 50),
            "itl_p95_ms": percentile(gaps, 95),
            **phase_figures(crowd),
        }
