"""A scenario: phases of asks, and the figures computed from them. Values and arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from perf.load import Ask, Needs, Phase, Sizing
from perf.stats import PhaseLog, StreamLog, mean_of, stream_figures

SOLO_AGAIN = "solo-again"  # the phase after the loaded ones
Logs = Mapping[str, PhaseLog]  # phase name -> what happened
Figures = dict[str, float]


class Scenario(Protocol):
    """Each is in a file under perf/scenarios; the fields of its dataclass are the sizes that the pages list."""

    name: ClassVar[str]
    title: ClassVar[str]  # one line for the tables

    def needs(self, sizing: Sizing) -> Needs: ...
    def phases(self, sizing: Sizing) -> list[Phase]: ...
    def measure(self, logs: Logs) -> Figures:
        """Figures by name; names end in their unit: _ms, _x (times solo), _tok_s, _n, ..."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A stream that a reader waits for."""

    n_prompt: int
    n_tokens: int

    def ask(self, name: str, at_ms: float = 0.0) -> Ask:
        return Ask(name, self.n_prompt, self.n_tokens, at_ms)


def between_solos(solo: tuple[Ask, ...], *phases: Phase) -> list[Phase]:
    """Return the phases, with a stream alone before the first and after the last of them, because the memory of a
    shared machine may become 1.3 times faster or slower within seconds.
    """
    return [Phase("solo", solo), *phases, Phase(SOLO_AGAIN, solo)]


def solos(logs: Logs, name: str) -> tuple[StreamLog, StreamLog]:
    """Return the logs of that stream alone, before and after the phases."""
    return logs["solo"][name], logs[SOLO_AGAIN][name]


def solo_figures(logs: Logs, name: str, prefix: str = "") -> Figures:
    """Return the figures of that stream alone: the mean of both runs."""
    return mean_of([stream_figures(run, prefix) for run in solos(logs, name)])


def storm(n: int, n_prompt: int, first_ms: float, every_ms: float) -> tuple[Ask, ...]:
    """Return unique prompts with one output token each, arriving at a fixed pace."""
    return tuple(Ask(f"storm{i}", n_prompt, 1, first_ms + i * every_ms, is_interactive=False) for i in range(n))
