"""One interactive stream beside increasing numbers of background decoders, on a dense and on a MoE shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing
from perf.scenarios.base import Figures, Logs, between_solos, solo_figures, solos
from perf.stats import against_solo, phase_figures, worst_of


@dataclass(frozen=True, slots=True)
class DenseSweep:
    name: ClassVar[str] = "dense-sweep"
    title: ClassVar[str] = "1 to 8 streams, dense 1B"
    shape: str = "1b-q8_0"
    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    n_prompt: int = 64
    n_tokens: int = 160  # 159 gaps: with 64 tokens, a p95 would depend on the fourth longest of 63 gaps
    n_background_tokens: int = 320  # outlasts the chat

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=max(self.counts), n_ctx_seq=1024, shape=self.shape)

    def phases(self, sizing: Sizing) -> list[Phase]:
        counts = (1, max(self.counts)) if sizing.is_quick else self.counts
        return between_solos(self._asks(1), *(Phase(f"x{n}", self._asks(n)) for n in counts if n > 1))

    def _asks(self, n: int) -> tuple[Ask, ...]:
        names = tuple(f"background{i}" for i in range(n - 1))
        background = [
            Ask(name, self.n_prompt, self.n_background_tokens, is_interactive=False, priority="background")
            for name in names
        ]
        return (*background, Ask("chat", self.n_prompt, self.n_tokens, after=names, gate="first"))

    def measure(self, logs: Logs) -> Figures:
        solo = solos(logs, "chat")
        figures: Figures = {"solo_itl_p50_ms": solo_figures(logs, "chat")["itl_p50_ms"]}
        rows = []
        sweep = {name: log for name, log in logs.items() if name.startswith("x")}
        for name, log in sweep.items():
            rows.append(against_solo(log["chat"], *solo))
            figures[f"{name}_p95_x"] = rows[-1]["p95_x"]
            figures[f"{name}_pause_x"] = rows[-1]["pause_x"]
            figures[f"{name}_tok_s"] = log.tokens_per_s
        last = list(sweep)[-1]
        return {**figures, **worst_of(rows), **phase_figures(sweep[last])}


@dataclass(frozen=True, slots=True)
class MoeSweep(DenseSweep):
    name: ClassVar[str] = "moe-sweep"
    title: ClassVar[str] = "1 to 8 streams, 1B mixture of experts"
    shape: str = "1b-moe-q8_0"
