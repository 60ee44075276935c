"""What another client's large request, or a reload, costs a stream: its gaps while the request is read and answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from perf.load import BURDENS, Ask, Needs, Phase, Sizing, scaled
from perf.scenarios.base import Chat, Figures, Logs, between_solos, solo_figures, solos
from perf.stats import against_solo, percentile, phase_figures, ratio, worst_of

_CHAT = Chat(32, 320)  # prompt and answer, tokens


@dataclass(frozen=True, slots=True)
class Burdens:
    """A phase for each burden, which arrives while the chat streams.

    Prompts exceed the context, so they are read and then refused.
    """

    name: ClassVar[str] = "burdens"
    title: ClassVar[str] = "a chat beside one large request, or a reload"
    chat: Chat = _CHAT
    at_ms: float = 200.0

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=2, n_ctx_seq=2048 * sizing.scale)

    def phases(self, sizing: Sizing) -> list[Phase]:
        chat = scaled((self.chat.ask("chat"),), sizing.scale)
        beside = {name: Ask(name, 1, 1, self.at_ms, is_interactive=False, burden=name) for name in BURDENS}
        return between_solos(chat, *(Phase(name, (*chat, ask)) for name, ask in beside.items()))

    def measure(self, logs: Logs) -> Figures:
        solo = solos(logs, "chat")
        usual = solo_figures(logs, "chat")
        chats = {name: logs[name]["chat"] for name in BURDENS}
        figures = worst_of([against_solo(chat, *solo) for chat in chats.values()])
        figures["solo_pause_x"] = ratio(usual["pause_ms"], usual["itl_p50_ms"])
        for name, chat in chats.items():
            figures[f"{name}_pause_ms"] = chat.worst_ms()
            figures[f"{name}_p95_x"] = ratio(percentile(chat.gaps_ms, 95), usual["itl_p95_ms"])
        return {**figures, **phase_figures(logs[next(iter(BURDENS))])}
