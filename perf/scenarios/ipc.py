"""The cost of the protocol: the model is so small that its tokens cost nothing, and only the server's cost remains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing
from perf.scenarios.base import Figures, Logs
from perf.stats import median, percentile, phase_figures, ratio


@dataclass(frozen=True, slots=True)
class Ipc:
    name: ClassVar[str] = "ipc"
    title: ClassVar[str] = "frames on a Unix socket against HTTP with server-sent events"
    shape: str = "tiny-q8_0"
    n_requests: int = 40  # one after another: time to first token
    n_streams: int = 4  # at once: time per token
    n_tokens: int = 400

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=1024, shape=self.shape)

    def phases(self, sizing: Sizing) -> list[Phase]:
        single = [Ask("request0", 16, 1)]
        single += [Ask(f"request{i}", 16, 1, after=(f"request{i - 1}",)) for i in range(1, self.n_requests)]
        streams = tuple(Ask(f"stream{i}", 16, self.n_tokens) for i in range(self.n_streams))
        return [Phase("requests", tuple(single)), Phase("one", streams[:1]), Phase("streams", streams)]

    def measure(self, logs: Logs) -> Figures:
        first = [s.ttft_ms for s in logs["requests"].streams]
        streams = logs["streams"]
        n_tokens = sum(len(s.t_tokens) for s in streams.streams)
        return {
            "ttft_p50_ms": median(first),
            "ttft_p95_ms": percentile(first, 95),
            "one_itl_p50_ms": percentile(logs["one"].streams[0].gaps_ms, 50),
            "client_cpu_us_per_token": ratio(streams.client_cpu_s * 1e6, n_tokens),
            **phase_figures(streams),
        }
