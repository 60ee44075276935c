"""Four streams at once, and one: aggregate rates. Run it with the guard on and off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Figures, Logs
from perf.stats import phase_figures, stream_figures, worst_of


@dataclass(frozen=True, slots=True)
class Throughput:
    name: ClassVar[str] = "throughput"
    title: ClassVar[str] = "four streams at once"
    n_streams: int = 4
    n_prompt: int = 128
    n_tokens: int = 96

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        asks = tuple(Ask(f"stream{i}", self.n_prompt, self.n_tokens) for i in range(self.n_streams))
        return [Phase("one", scaled(asks[:1], sizing.scale)), Phase("all", scaled(asks, sizing.scale))]

    def measure(self, logs: Logs) -> Figures:
        everyone = logs["all"]
        return {
            **worst_of([stream_figures(s) for s in everyone.streams]),
            **phase_figures(everyone),
            "steady_tok_s": everyone.steady_tokens_per_s,
            "one_tok_s": logs["one"].tokens_per_s,
            "one_steady_tok_s": logs["one"].steady_tokens_per_s,
        }
