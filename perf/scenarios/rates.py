"""A server's rates with one type of weights: one stream's pace, the rates of several, the speed of prompts.

Each is measured alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Figures, Logs
from perf.stats import percentile, phase_figures, ratio


@dataclass(frozen=True, slots=True)
class Rates:
    name: ClassVar[str] = "rates"
    title: ClassVar[str] = "one, four and eight streams, and a prompt, each alone"
    n_prompt: int = 64  # of a stream
    n_tokens: int = 64
    n_long: int = 512  # the prompt whose speed is measured

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=8, n_ctx_seq=1024 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        sets: dict[str, tuple[Ask, ...]] = {"prompt": (Ask("prompt", self.n_long, 1),)}
        sets |= _streams({"one": 1, "four": 4, "eight": 8}, self.n_prompt, self.n_tokens)
        return [Phase(name, scaled(chosen, sizing.scale)) for name, chosen in sets.items()]

    def measure(self, logs: Logs) -> Figures:
        prompt = logs["prompt"]["prompt"]
        return {
            **phase_figures(logs["eight"]),
            "one_itl_p50_ms": percentile(logs["one"]["stream0"].gaps_ms, 50),
            "prompt_tok_s": ratio(prompt.n_prompt * 1000.0, prompt.ttft_ms),
            **_steady(logs, "four", "eight"),
        }


@dataclass(frozen=True, slots=True)
class ManyRates:
    name: ClassVar[str] = "rates-16"
    title: ClassVar[str] = "four and sixteen streams, each alone, for a machine of many cores"
    n_prompt: int = 64  # of a stream
    n_tokens: int = 128

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=16, n_ctx_seq=512 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        sets = _streams({"four": 4, "sixteen": 16}, self.n_prompt, self.n_tokens)
        return [Phase(name, scaled(chosen, sizing.scale)) for name, chosen in sets.items()]

    def measure(self, logs: Logs) -> Figures:
        return {**phase_figures(logs["sixteen"]), **_steady(logs, "four", "sixteen")}


def _streams(counts: dict[str, int], n_prompt: int, n_tokens: int) -> dict[str, tuple[Ask, ...]]:
    """Return, by phase, this many streams at once; a smaller phase has the first ones of a larger one."""
    asks = tuple(Ask(f"stream{i}", n_prompt, n_tokens) for i in range(max(counts.values())))
    return {name: asks[:n] for name, n in counts.items()}


def _steady(logs: Logs, *phases: str) -> Figures:
    """Return the rates of these phases while all of their streams ran."""
    return {f"{name}_steady_tok_s": logs[name].steady_tokens_per_s for name in phases}
