"""What a server reaches with one type of weights: one stream's pace, the rates of several, the speed of prompts.

Nothing is mixed.
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
        asks = tuple(Ask(f"stream{i}", self.n_prompt, self.n_tokens) for i in range(8))
        long = (Ask("prompt", self.n_long, 1),)
        sets = {"prompt": long, "one": asks[:1], "four": asks[:4], "eight": asks}
        return [Phase(name, scaled(chosen, sizing.scale)) for name, chosen in sets.items()]

    def measure(self, logs: Logs) -> Figures:
        prompt = logs["prompt"]["prompt"]
        return {
            **phase_figures(logs["eight"]),
            "one_itl_p50_ms": percentile(logs["one"]["stream0"].gaps_ms, 50),
            "four_steady_tok_s": logs["four"].steady_tokens_per_s,
            "eight_steady_tok_s": logs["eight"].steady_tokens_per_s,
            "prompt_tok_s": ratio(prompt.n_prompt * 1000.0, prompt.ttft_ms),
            "failed_n": float(sum(log.n_failed for log in logs.values())),
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
        asks = tuple(Ask(f"stream{i}", self.n_prompt, self.n_tokens) for i in range(16))
        sets = {"four": asks[:4], "sixteen": asks}
        return [Phase(name, scaled(chosen, sizing.scale)) for name, chosen in sets.items()]

    def measure(self, logs: Logs) -> Figures:
        return {
            **phase_figures(logs["sixteen"]),
            "four_steady_tok_s": logs["four"].steady_tokens_per_s,
            "sixteen_steady_tok_s": logs["sixteen"].steady_tokens_per_s,
            "failed_n": float(sum(log.n_failed for log in logs.values())),
        }
