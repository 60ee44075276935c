"""An agent's sequential steps, alone and beside background decoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Figures, Logs
from perf.stats import PhaseLog, median, percentile, phase_figures, ratio


@dataclass(frozen=True, slots=True)
class Chain:
    name: ClassVar[str] = "chain"
    title: ClassVar[str] = "agent chain beside three decoders"
    n_steps: int = 4
    n_prompt: int = 48
    n_tokens: int = 24
    n_decoders: int = 3
    n_decoder_prompt: int = 64
    n_decoder_tokens: int = 400

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def _steps(self, after: tuple[str, ...], gate: str) -> tuple[Ask, ...]:
        steps = [Ask("step0", self.n_prompt, self.n_tokens, after=after, gate=gate, app="agent")]
        steps += [
            Ask(f"step{i}", self.n_prompt, self.n_tokens, after=(f"step{i - 1}",), app="agent")
            for i in range(1, self.n_steps)
        ]
        return tuple(steps)

    def phases(self, sizing: Sizing) -> list[Phase]:
        decoders = tuple(
            Ask(
                f"decoder{i}", self.n_decoder_prompt, self.n_decoder_tokens, is_interactive=False, priority="background"
            )
            for i in range(self.n_decoders)
        )
        loaded = (*decoders, *self._steps(tuple(d.name for d in decoders), "first"))
        return [
            Phase("alone", scaled(self._steps((), "done"), sizing.scale)),
            Phase("loaded", scaled(loaded, sizing.scale)),
        ]

    def measure(self, logs: Logs) -> Figures:
        alone, loaded = _chain_ms(logs["alone"]), _chain_ms(logs["loaded"])
        steps = logs["loaded"].named("step")
        gaps = [gap for step in steps for gap in step.gaps_ms]
        return {
            "alone_ms": alone,
            "chain_ms": loaded,
            "slowdown_x": ratio(loaded, alone),
            "ttft_ms": median([step.ttft_ms for step in steps]),
            "itl_p50_ms": percentile(gaps, 50),
            "itl_p95_ms": percentile(gaps, 95),
            "pause_ms": max(gaps, default=float("nan")),
            **phase_figures(logs["loaded"]),
        }


def _chain_ms(log: PhaseLog) -> float:
    """Return ms from sending the first step to the end of the last; NaN if a step is incomplete: it ends early."""
    steps = log.named("step")
    is_whole = all(step.is_complete for step in steps)
    return (steps[-1].t_done - steps[0].t_sent) / 1e6 if is_whole else float("nan")
