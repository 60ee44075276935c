"""No requests: what an idle server costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Needs, Phase, Sizing
from perf.scenarios.base import Figures, Logs
from perf.stats import phase_figures, ratio


@dataclass(frozen=True, slots=True)
class Idle:
    name: ClassVar[str] = "idle"
    title: ClassVar[str] = "no work"
    seconds: float = 20.0

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        return [Phase("idle", (), lasts_s=self.seconds)]

    def measure(self, logs: Logs) -> Figures:
        idle = logs["idle"]
        share = ratio(idle.server_cpu_s * 1e3, idle.makespan_ms)
        return {"idle_cpu_percent": 100.0 * share, **{k: v for k, v in phase_figures(idle).items() if k in _KEPT}}


_KEPT = ("makespan_ms", "failed_n", "rss_mb", "foreign_cores")
