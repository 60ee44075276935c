"""Prompts that begin like earlier ones: an agent's turns, branches, chats that alternate on few sequences.

All servers have their prompt caches on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from perf.load import Ask, Needs, Phase, Sizing, composed, scaled
from perf.scenarios.base import Figures, Logs, between_solos, solos
from perf.stats import PhaseLog, against_solo, median, percentile, phase_figures, ratio, stream_figures

_ROUND = 256  # sequences hold multiples of it
_COMPUTED = "prefill_tokens_total"  # our daemon's count of prompt tokens that were computed


def _cells(n: int, sizing: Sizing) -> int:
    return -(-(n * sizing.scale + 64) // _ROUND) * _ROUND


def _turns(n: int, n_system: int, n_turn: int, n_tokens: int) -> list[Ask]:
    """Return prompts that grow by a part per turn, each sent when the one before has been answered."""
    asks: list[Ask] = []
    parts: tuple[tuple[str, int], ...] = (("system", n_system),)
    for i in range(n):
        asks.append(composed(f"turn{i}", parts, n_tokens, (f"turn{i - 1}",) if i else ()))
        parts = (*parts, (f"said{i}", n_turn))
    return asks


def _firsts(log: PhaseLog, prefix: str) -> list[float]:
    return [s.ttft_ms for s in log.named(prefix)]


@dataclass(frozen=True, slots=True)
class Agent:
    """Each turn's prompt extends the one before; the last one is also measured without a cache."""

    name: ClassVar[str] = "agent"
    title: ClassVar[str] = "agent of 20 turns over one growing prompt"
    n_turns: int = 20
    n_system: int = 1_500
    n_turn: int = 150
    n_tokens: int = 16

    @property
    def n_last(self) -> int:
        return self.n_system + self.n_turn * (self.n_turns - 1)

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=4, n_ctx_seq=_cells(self.n_last + self.n_tokens, sizing))

    def phases(self, sizing: Sizing) -> list[Phase]:
        turns = _turns(self.n_turns, self.n_system, self.n_turn, self.n_tokens)
        cold = Ask("cold", self.n_last, 1)
        return [
            Phase("cold", scaled((cold,), sizing.scale)),
            Phase("agent", scaled(tuple(turns), sizing.scale), timeout_s=1800.0),
        ]

    def measure(self, logs: Logs) -> Figures:
        agent, cold = logs["agent"], logs["cold"]["cold"]
        turns = agent.named("turn")
        computed = agent.counters.get(_COMPUTED, float("nan"))
        return {
            "ttft_ms": turns[-1].ttft_ms,
            "ttft_p50_ms": median(_firsts(agent, "turn")[1:]),
            "cold_ttft_ms": cold.ttft_ms,
            "warm_share": ratio(turns[-1].ttft_ms, cold.ttft_ms),
            "computed_x_unique": ratio(computed, turns[-1].n_prompt),
            **phase_figures(agent),
        }


@dataclass(frozen=True, slots=True)
class AgentRestart(Agent):
    """The server is restarted before the last turn; ours keeps what it computed in a cache directory."""

    name: ClassVar[str] = "agent-restart"
    title: ClassVar[str] = "agent whose last turn comes after a restart, with the disk tier"

    def needs(self, sizing: Sizing) -> Needs:
        return replace(Agent.needs(self, sizing), has_disk=True)

    def phases(self, sizing: Sizing) -> list[Phase]:
        cold, agent = Agent.phases(self, sizing)
        *turns, last = agent.asks
        return [
            cold,
            replace(agent, asks=tuple(turns)),
            Phase("restarted", (replace(last, after=()),), is_restarted=True),
        ]

    def measure(self, logs: Logs) -> Figures:
        last, cold = logs["restarted"]["turn" + str(self.n_turns - 1)], logs["cold"]["cold"]
        return {
            "ttft_ms": last.ttft_ms,
            "cold_ttft_ms": cold.ttft_ms,
            "warm_share": ratio(last.ttft_ms, cold.ttft_ms),
            **phase_figures(logs["restarted"]),
        }


@dataclass(frozen=True, slots=True)
class Fanout:
    """Eight prompts that begin with one whose answer is still streaming."""

    name: ClassVar[str] = "fanout"
    title: ClassVar[str] = "8 branches from a prompt that still streams"
    n_prompt: int = 1_500
    n_answer: int = 240
    n_children: int = 8
    n_new: int = 40
    n_tokens: int = 16

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=1 + self.n_children, n_ctx_seq=_cells(self.n_prompt + self.n_answer + self.n_new, sizing))

    def phases(self, sizing: Sizing) -> list[Phase]:
        base = ("base", self.n_prompt)
        parent = composed("parent", (base,), self.n_answer)
        children = [
            composed(f"child{i}", (base, (f"own{i}", self.n_new)), self.n_tokens, ("parent",), "first")
            for i in range(self.n_children)
        ]
        return [Phase("fanout", scaled((parent, *children), sizing.scale))]

    def measure(self, logs: Logs) -> Figures:
        log = logs["fanout"]
        firsts = _firsts(log, "child")
        children_ms = (max(s.t_done for s in log.named("child")) - min(s.t_sent for s in log.named("child"))) / 1e6
        return {
            "ttft_p50_ms": median(firsts),
            "ttft_max_ms": percentile(firsts, 100),
            "children_ms": children_ms,
            **stream_figures(log["parent"], "parent_"),
            **phase_figures(log),
        }


@dataclass(frozen=True, slots=True)
class Alternating:
    """Two long chats that take turns over one sequence."""

    name: ClassVar[str] = "alternating"
    title: ClassVar[str] = "2 long chats over one sequence"
    n_turns: int = 6
    n_prompt: int = 1_500
    n_turn: int = 100
    n_tokens: int = 8

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=1, n_ctx_seq=_cells(self.n_prompt + self.n_turn * self.n_turns + self.n_tokens, sizing))

    def phases(self, sizing: Sizing) -> list[Phase]:
        asks: list[Ask] = []
        for turn in range(self.n_turns):
            for chat in ("a", "b"):
                parts = ((f"{chat}", self.n_prompt), *((f"{chat}{i}", self.n_turn) for i in range(turn)))
                asks.append(composed(f"turn{turn}{chat}", parts, self.n_tokens, (asks[-1].name,) if asks else ()))
        return [Phase("alternating", scaled(tuple(asks), sizing.scale))]

    def measure(self, logs: Logs) -> Figures:
        log = logs["alternating"]
        later = _firsts(log, "turn")[2:]
        return {"ttft_p50_ms": median(later), "ttft_max_ms": percentile(later, 100), **phase_figures(log)}


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """A hundred chats, four at a time, in several rounds."""

    name: ClassVar[str] = "round-robin"
    title: ClassVar[str] = "100 chats round-robin over 4 sequences"
    n_chats: int = 100
    n_rounds: int = 2
    n_system: int = 40
    n_prompt: int = 40
    n_turn: int = 20
    n_tokens: int = 4
    n_at_once: int = 4

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(
            n_seq=4,
            n_ctx_seq=_cells(self.n_system + self.n_prompt + self.n_turn * self.n_rounds + self.n_tokens, sizing),
        )

    def phases(self, sizing: Sizing) -> list[Phase]:
        asks: list[Ask] = []
        for turn in range(self.n_rounds):
            for chat in range(self.n_chats):
                said = ((f"chat{chat}.{i}", self.n_turn) for i in range(turn))
                parts = (("system", self.n_system), (f"chat{chat}", self.n_prompt), *said)
                after = (asks[-self.n_at_once].name,) if len(asks) >= self.n_at_once else ()
                asks.append(composed(f"round{turn}.{chat}", parts, self.n_tokens, after))
        return [Phase("round-robin", scaled(tuple(asks), sizing.scale), timeout_s=1800.0)]

    def measure(self, logs: Logs) -> Figures:
        log = logs["round-robin"]
        later = [s.ttft_ms for s in log.streams if not s.name.startswith("round0.")]
        return {
            "ttft_p50_ms": median(later),
            "ttft_p95_ms": percentile(later, 95),
            "first_ttft_p50_ms": median(_firsts(log, "round0.")),
            **phase_figures(log),
        }


@dataclass(frozen=True, slots=True)
class Snapshots:
    """A chat streams while two documents of 100 MB each (0.5B shape) push each other out of one sequence and come
    back.
    """

    name: ClassVar[str] = "snapshots"
    title: ClassVar[str] = "a chat beside 100 MB snapshots"
    n_document: int = 8_000
    n_swaps: int = 6
    chat: tuple[int, int] = (32, 900)

    def needs(self, sizing: Sizing) -> Needs:
        return Needs(n_seq=2, n_ctx_seq=_cells(self.n_document + 20 * self.n_swaps, sizing))

    def phases(self, sizing: Sizing) -> list[Phase]:
        def document(which: str, swap: int, after: tuple[str, ...], gate: str = "done") -> Ask:
            parts = ((which, self.n_document), *((f"{which}{i}", 10) for i in range(swap)))
            ask = composed(f"document{swap}{which}", parts, 1, after, gate)
            return Ask(ask.name, ask.n_prompt, 1, 0.0, after, gate, False, "background", "", parts)

        first = document("a", 0, ())
        second = document("b", 0, (first.name,))
        chat = Ask("chat", *self.chat, after=(second.name,))
        asks, gate = [first, second, chat], "first"
        for swap in range(1, self.n_swaps):
            for which in ("a", "b"):
                asks.append(document(which, swap, (asks[-1].name,), gate))
                gate = "done"
        solo = (Ask("chat", *self.chat),)
        swapping = Phase("swapping", scaled(tuple(asks), sizing.scale), timeout_s=1800.0)
        return between_solos(scaled(solo, sizing.scale), swapping)

    def measure(self, logs: Logs) -> Figures:
        log, chat = logs["swapping"], logs["swapping"]["chat"]
        swaps = [s for s in log.named("document") if s.t_sent >= chat.t_sent]
        beside = [s for s in swaps if chat.t_tokens and s.t_done and s.t_done <= chat.t_tokens[-1]]
        return {
            **stream_figures(chat),
            **against_solo(chat, *solos(logs, "chat")),
            "swaps_beside_n": float(len(beside)),
            "document_ttft_p50_ms": median([s.ttft_ms for s in swaps]),
            **phase_figures(log),
        }
