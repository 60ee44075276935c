"""One stream on an idle server: what everything else is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Figures, Logs
from perf.stats import phase_figures, stream_figures


@dataclass(frozen=True, slots=True)
class Solo:
    name: ClassVar[str] = "solo"
    title: ClassVar[str] = "one stream alone"
    n_prompt: int = 32
    n_tokens: int = 96

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        return [Phase("solo", scaled((Ask("chat", self.n_prompt, self.n_tokens),), sizing.scale))]

    def measure(self, logs: Logs) -> Figures:
        return {**stream_figures(logs["solo"]["chat"]), **phase_figures(logs["solo"])}
