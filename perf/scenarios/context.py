"""Long contexts: a document of 8k, 16k or 32k tokens is read and continued beside chats with a 2k context."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing
from perf.scenarios.base import Chat, Figures, Logs, between_solos, solo_figures, solos
from perf.stats import against_solo, percentile, phase_figures, ratio, stream_figures, worst_of

_CHAT = Chat(2_000, 48)  # prompt and answer, tokens


@dataclass(frozen=True, slots=True)
class LongContext:
    """One chat arrives while the document is read, one while its answer is generated."""

    name: ClassVar[str] = "context-8k"
    title: ClassVar[str] = "2k chats beside an 8k document"
    n_document: int = 8_000
    n_answer: int = 96
    chat: Chat = _CHAT

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=2, n_ctx_seq=-(-(self.n_document + self.n_answer + 64) // 256) * 256)

    def phases(self, sizing: Sizing) -> list[Phase]:
        document = Ask("document", self.n_document, self.n_answer, is_interactive=False, priority="background")
        # marked as interactive: a server cannot know that a reader waits for it
        solo = replace(self.chat.ask("chat0"), priority="interactive")
        reading = replace(solo, at_ms=1000.0)
        writing = Ask(
            "chat1", self.chat.n_prompt, self.chat.n_tokens, 0.0, ("document",), "first", priority="interactive"
        )
        return between_solos((solo,), Phase("loaded", (document, reading, writing), timeout_s=3600.0))

    def measure(self, logs: Logs) -> Figures:
        loaded, solo = logs["loaded"], solos(logs, "chat0")
        alone = solo_figures(logs, "chat0", "solo_")
        chats = loaded.named("chat")
        gaps = [gap for chat in chats for gap in chat.gaps_ms]
        n_tokens = sum(s.n_prompt + len(s.t_tokens) for s in loaded.streams if s.t_tokens)
        return {
            **worst_of([stream_figures(chat) for chat in chats]),
            **worst_of([against_solo(chat, *solo) for chat in chats]),
            "chats_p95_x": ratio(percentile(gaps, 95), alone["solo_itl_p95_ms"]),
            **alone,
            "document_ttft_ms": loaded["document"].ttft_ms,
            **phase_figures(loaded),
            "total_tok_s": ratio(n_tokens * 1000.0, loaded.makespan_ms),
        }


@dataclass(frozen=True, slots=True)
class LongContext16k(LongContext):
    name: ClassVar[str] = "context-16k"
    title: ClassVar[str] = "2k chats beside a 16k document"
    n_document: int = 16_000


@dataclass(frozen=True, slots=True)
class LongContext32k(LongContext):
    name: ClassVar[str] = "context-32k"
    title: ClassVar[str] = "2k chats beside a 32k document"
    n_document: int = 32_000
