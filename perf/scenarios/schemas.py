"""The cost of schemas: a chat beside four streams that must follow one, compared with a chat beside four free ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Chat, Figures, Logs
from perf.stats import StreamLog, against_solo, phase_figures, ratio, stream_figures

_CHAT = Chat(32, 160)  # prompt and answer, tokens


@dataclass(frozen=True, slots=True)
class Schemas:
    name: ClassVar[str] = "schemas"
    title: ClassVar[str] = "a chat beside four streams with a JSON Schema"
    chat: Chat = _CHAT
    n_streams: int = 4
    n_prompt: int = 32
    n_tokens: int = 240

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=self.n_streams + 1, n_ctx_seq=2048 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        def beside(has_schema: bool) -> tuple[Ask, ...]:
            streams = (
                Ask(f"stream{i}", self.n_prompt, self.n_tokens, has_schema=has_schema) for i in range(self.n_streams)
            )
            return scaled((self.chat.ask("chat", 200.0), *streams), sizing.scale)

        alone = Ask("alone", self.n_prompt, self.n_tokens)
        held = Ask("alone", self.n_prompt, self.n_tokens, has_schema=True)
        return [
            Phase("alone", scaled((alone,), sizing.scale)),
            Phase("alone_held", scaled((held,), sizing.scale)),
            Phase("free", beside(False)),
            Phase("held", beside(True)),
        ]

    def measure(self, logs: Logs) -> Figures:
        free, held = logs["free"], logs["held"]
        return {
            **stream_figures(held["chat"]),
            **stream_figures(free["chat"], "free_"),
            **against_solo(held["chat"], free["chat"], prefix="free_"),
            "alone_speed_x": ratio(_pace(logs["alone"].named("alone")), _pace(logs["alone_held"].named("alone"))),
            "streams_speed_x": ratio(_pace(free.named("stream")), _pace(held.named("stream"))),
            **phase_figures(held),
        }


def _pace(streams: list[StreamLog]) -> float:
    """Return the mean gap in ms: it includes a grammar's rare long steps, and ticks that a stream skips for them."""
    gaps = [gap for stream in streams for gap in stream.gaps_ms]
    return sum(gaps) / len(gaps) if gaps else float("nan")
