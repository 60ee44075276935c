"""Prefill storms: unique long prompts arrive while one chat streams, or two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Chat, Figures, Logs, between_solos, solo_figures, solos, storm
from perf.stats import against_solo, median, percentile, phase_figures, ratio, stream_figures, worst_of

_CHAT = Chat(32, 160)  # prompt and answer, tokens


@dataclass(frozen=True, slots=True)
class Storm:
    name: ClassVar[str] = "storm"
    title: ClassVar[str] = "prefill storm beside one chat"
    chat: Chat = _CHAT
    n_prompts: int = 6
    n_prompt: int = 1200
    first_ms: float = 500.0
    every_ms: float = 400.0
    n_chats: int = 1

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_ctx_seq=4096 * sizing.scale)

    def _chats(self) -> tuple[Ask, ...]:
        return tuple(self.chat.ask(f"chat{i}", 100.0 * i) for i in range(self.n_chats))

    def phases(self, sizing: Sizing) -> list[Phase]:
        prompts = storm(self.n_prompts, self.n_prompt, self.first_ms, self.every_ms)
        together = Phase("together", scaled(self._chats(), sizing.scale))
        loaded = Phase("loaded", scaled((*self._chats(), *prompts), sizing.scale))
        solo = scaled((self.chat.ask("chat0"),), sizing.scale)
        return between_solos(solo, *([together] if self.n_chats > 1 else []), loaded)

    def measure(self, logs: Logs) -> Figures:
        loaded, solo = logs["loaded"], solos(logs, "chat0")
        chats = loaded.named("chat")
        figures = {
            **worst_of([stream_figures(chat) for chat in chats]),
            **worst_of([against_solo(chat, *solo) for chat in chats]),
            **solo_figures(logs, "chat0", "solo_"),
            **phase_figures(loaded),
        }
        prompts = loaded.named("storm")
        begin = min(s.t_sent for s in prompts)
        figures["prompts_ms"] = percentile([(s.t_sent - begin) / 1e6 + s.stream_ms for s in prompts], 100)
        figures["prompt_tok_s"] = ratio(sum(s.n_prompt for s in prompts) * 1000.0, figures["prompts_ms"])
        figures["prompt_ttft_p50_ms"] = median([s.ttft_ms for s in prompts])
        if "together" in logs:
            pairs = [(chat, logs["together"][chat.name]) for chat in chats]
            figures |= worst_of([against_solo(chat, together, prefix="together_") for chat, together in pairs])
        return figures


@dataclass(frozen=True, slots=True)
class TwoChats(Storm):
    name: ClassVar[str] = "two-chats"
    title: ClassVar[str] = "prefill storm beside two chats"
    n_chats: int = 2


@dataclass(frozen=True, slots=True)
class ShortStorm(Storm):
    """Short prompts count as chats: somebody awaits each first token."""

    name: ClassVar[str] = "short-storm"
    title: ClassVar[str] = "short prompts of six other chats beside one chat"
    n_prompt: int = 400
