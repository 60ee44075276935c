"""Mixed load: three interactive chats and one long document, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Chat, Figures, Logs, between_solos, solo_figures, solos
from perf.stats import against_solo, phase_figures, stream_figures, worst_of

_CHAT = Chat(32, 160)  # prompt and answer, tokens


@dataclass(frozen=True, slots=True)
class Mixed:
    name: ClassVar[str] = "mixed"
    title: ClassVar[str] = "three chats and one long document"
    chat: Chat = _CHAT
    n_chats: int = 3
    n_document: int = 2400
    n_summary: int = 64
    document_at_ms: float = 500.0

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        chats = tuple(self.chat.ask(f"chat{i}", 100.0 * i) for i in range(self.n_chats))
        document = Ask("document", self.n_document, self.n_summary, self.document_at_ms, is_interactive=False)
        return between_solos(
            scaled(chats[:1], sizing.scale),
            Phase("together", scaled(chats, sizing.scale)),
            Phase("loaded", scaled((*chats, document), sizing.scale)),
        )

    def measure(self, logs: Logs) -> Figures:
        loaded, together, solo = logs["loaded"], logs["together"], solos(logs, "chat0")
        chats = loaded.named("chat")
        return {
            **worst_of([stream_figures(chat) for chat in chats]),
            **worst_of([against_solo(chat, *solo) for chat in chats]),
            **worst_of([against_solo(chat, together[chat.name], prefix="together_") for chat in chats]),
            **solo_figures(logs, "chat0", "solo_"),
            "document_ttft_ms": loaded["document"].ttft_ms,
            **phase_figures(loaded),
        }
