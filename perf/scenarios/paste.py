"""Two applications: one sends a long paste, the other asks a short question half a second later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Chat, Figures, Logs, between_solos, solo_figures, solos
from perf.stats import against_solo, phase_figures, stream_figures

_CHAT = Chat(24, 64)  # prompt and answer, tokens


@dataclass(frozen=True, slots=True)
class Paste:
    name: ClassVar[str] = "paste"
    title: ClassVar[str] = "a chat arrives during a big paste"
    n_paste: int = 2400
    n_answer: int = 32
    chat: Chat = _CHAT
    chat_at_ms: float = 500.0

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        paste = Ask("paste", self.n_paste, self.n_answer, is_interactive=False)
        chat = self.chat.ask("chat", self.chat_at_ms)
        solo = scaled((self.chat.ask("chat"),), sizing.scale)
        return between_solos(solo, Phase("loaded", scaled((paste, chat), sizing.scale)))

    def measure(self, logs: Logs) -> Figures:
        loaded, solo = logs["loaded"], solos(logs, "chat")
        return {
            **stream_figures(loaded["chat"]),
            **against_solo(loaded["chat"], *solo),
            **solo_figures(logs, "chat", "solo_"),
            "paste_ttft_ms": loaded["paste"].ttft_ms,
            **phase_figures(loaded),
        }
