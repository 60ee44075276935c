"""Several answers to one request: they share its prompt, end one by one, and the request ends once.

One of them reads the prompt. The others wait until it has been read, and begin with it as with any cached beginning.
"""

from __future__ import annotations

from collections.abc import Iterable

from uma_core.errors import UmaError
from uma_core.session.events import Final
from uma_core.session.session import Session
from uma_core.types import Ended, FinishReason, Phase

WORST_FIRST = (
    FinishReason.ERROR,
    FinishReason.DRAINING,
    FinishReason.TIMEOUT,
    FinishReason.LENGTH,
    FinishReason.STOP,
    FinishReason.CANCELLED,
)


class Group:
    """Owned by the executor. `sessions` are the answers by their index."""

    def __init__(self, sessions: list[Session]) -> None:
        self.sessions = sessions
        self.is_cancelled = False  # as a whole
        self.has_scores = False  # all log probabilities of the prompt have been sent, if they are wanted, ...
        self.n_scored = 0  # ... or this many
        self._ended: list[tuple[float, Ended]] = []
        self._error: UmaError | None = None
        for index, session in enumerate(sessions):
            session.index, session.group = index, self
            session.is_waiting = index > 0
            session.first_sid = sessions[0].sid
            session.seed = (sessions[0].seed + index) & 0xFFFFFFFF  # so that each answer can be reproduced alone

    @property
    def is_over(self) -> bool:
        return len(self._ended) == len(self.sessions)

    def has_others(self, session: Session) -> bool:
        """Whether any other answer has not ended."""
        return any(other is not session and other.phase is not Phase.DONE for other in self.sessions)

    @property
    def is_waiting(self) -> bool:
        return any(session.is_waiting and session.phase is Phase.QUEUED for session in self.sessions)

    def follow(self) -> Iterable[Session]:
        """Return the answers that may begin now: all once the prompt has been read, or the next one if no answer is
        reading it.
        """
        waiting = [session for session in self.sessions if session.is_waiting and session.phase is Phase.QUEUED]
        begun = [session for session in self.sessions if not session.is_waiting and session.phase is not Phase.DONE]
        if any(
            session.phase is Phase.DECODE and session.transfer is None and session.scoring is None for session in begun
        ):
            return waiting
        return [] if begun else waiting[:1]

    def end(self, session: Session, answer: Ended, error: UmaError | None) -> Final | None:
        """Note the end of an answer. Returns the request's final event after the last answer."""
        self._ended.append((session.likelihood, answer))
        self._error = self._error or error
        return self._final() if self.is_over else None

    def _final(self) -> Final:
        first = self.sessions[0]
        request = first.request
        answers = [answer for _, answer in sorted(self._ended, key=lambda pair: pair[1].which)]
        told = self._told() if not request.stream else None
        reason = (
            FinishReason.CANCELLED if self.is_cancelled else min((a.reason for a in answers), key=WORST_FIRST.index)
        )
        error = self._error if reason is FinishReason.ERROR else None  # a cancel counts more than a failed answer
        usage = _sum_of([answer.usage for answer in answers])
        return Final(first.conn_id, first.id, reason, "", usage, self._timing(answers), error, answers=told)

    def _told(self) -> tuple[Ended, ...]:
        """Return the answers in order of their index; if more were made than asked for, the likeliest, best first."""
        n = self.sessions[0].request.n
        kept = sorted(self._ended, key=lambda pair: pair[1].which)
        if n < len(kept):
            kept = sorted(kept, key=lambda pair: -pair[0])[:n]
        return tuple(answer._replace(which=i) for i, (_, answer) in enumerate(kept))

    @staticmethod
    def _timing(answers: list[Ended]) -> dict[str, float]:
        def of(name: str) -> list[float]:
            return [a.timing[name] for a in answers if a.timing.get(name)] or [0.0]

        gaps = sorted(of("itl_p50_ms"))
        return {
            "queue_ms": min(of("queue_ms")),
            "ttft_ms": min(of("ttft_ms")),
            "total_ms": max(of("total_ms")),
            "itl_p50_ms": gaps[len(gaps) // 2],
            "itl_max_ms": max(of("itl_max_ms")),
        }


def _sum_of(usages: list[dict[str, int]]) -> dict[str, int]:
    """Add up the usage of several answers. Their prompt is read once, and the restored part is what the first reader
    found in the cache.
    """
    total: dict[str, int] = {}
    for usage in usages:
        for name, n in usage.items():
            total[name] = total.get(name, 0) + n
    once = {"prompt_tokens": usages[0]["prompt_tokens"], "cached_tokens": min(u["cached_tokens"] for u in usages)}
    if "dropped_tokens" in total:
        once["dropped_tokens"] = max(u.get("dropped_tokens", 0) for u in usages)
    return total | once
