"""An answer whose tokens matter one by one: which tokens a piece of text consists of, and which are to be taken back.

Plain answers need no more than `session.text`. Positions are characters of the answer's text.
"""

from __future__ import annotations

import bisect
import codecs
from collections import deque
from typing import Any, NamedTuple

from uma_core.session.search import State, beginning, search
from uma_core.types import TokenId, TokenLogprob


class _Pending(NamedTuple):
    """A token whose text is not all released."""

    token: TokenId
    start: int
    end: int  # after its last whole character; a token may have none
    logprob: TokenLogprob | None
    state: Any  # of the decoder before it
    mark: Any  # of whoever pushed it
    found: State  # of the search before it


class Taken(NamedTuple):
    """Tokens that were taken back."""

    n: int
    token: TokenId  # the first of them
    mark: Any  # that it was pushed with


class Answer:
    """Assembles text like `TextStream`; `take` also returns the tokens that the released text came from.

    Text that a stop string may begin with is held back, and with `banned` so is text that a banned one may begin with:
    whole tokens of it. Where a banned string is complete, nothing is released and `must_rewind` is set.
    """

    def __init__(self, stops: tuple[str, ...] = (), banned: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(s for s in stops if s)
        self._banned = tuple(s for s in banned if s)
        self._found = beginning((*self._stops, *self._banned))  # at one place a stop string counts
        self._tail = ""  # decoded, not released
        self._n_released = 0
        self._pending: deque[_Pending] = deque()
        self._banned_at = -1
        self._carried: list[TokenLogprob] = []
        self.stopped_by = ""

    @property
    def is_stopped(self) -> bool:
        return bool(self.stopped_by)

    @property
    def must_rewind(self) -> bool:
        return self._banned_at >= 0

    @property
    def n_pending(self) -> int:
        """The number of tokens that can be taken back."""
        return len(self._pending)

    def push(self, token: TokenId, data: bytes, logprob: TokenLogprob | None = None, mark: Any = None) -> str:
        """Take one more token; return the text that is ready. `mark` is returned if the token is taken back."""
        if self.stopped_by:
            return ""
        state = self._decoder.getstate() if self._banned else None
        start = self._n_released + len(self._tail)
        piece = self._decoder.decode(data)
        self._tail += piece
        end = start + len(piece)
        self._pending.append(_Pending(token, start, end, logprob, state, mark, self._found))
        self._found, found = search(self._found, piece)
        if found is None:
            return self._release(end - self._found.n_pending)
        if found.which >= len(self._stops):
            self._banned_at = start + found.at
            return ""
        self.stopped_by = self._stops[found.which]
        return self._cut(max(start + found.at, self._n_released))

    def _release(self, end: int) -> str:
        """Release the text up to this position, or less: a token that may be taken back is not released in part."""
        if self._banned:
            first_kept = bisect.bisect_right(self._pending, end, key=lambda p: p.end)
            if first_kept < len(self._pending):
                end = min(end, self._pending[first_kept].start)
        end = max(end, self._n_released)
        text, self._tail = self._tail[: end - self._n_released], self._tail[end - self._n_released :]
        self._n_released = end
        if text:
            self._carry(lambda p: p.end <= end)
        return text

    def _cut(self, end: int) -> str:
        """Release the last text that there will be, up to this position. A token that is only partly in the text is
        carried.
        """
        text, self._tail = self._tail[: end - self._n_released], ""
        self._carry(lambda p: p.start < end)
        self._pending.clear()
        return text

    def _carry(self, is_carried: Any) -> None:
        while self._pending and is_carried(self._pending[0]):
            logprob = self._pending.popleft().logprob
            if logprob is not None:
                self._carried.append(logprob)

    def take(self) -> tuple[TokenLogprob, ...]:
        """Return the tokens of the text that was released since the last time."""
        carried, self._carried = tuple(self._carried), []
        return carried

    def rewind(self) -> Taken:
        """Take back the tokens from the one in which the banned string begins.

        Text of an earlier token that belongs to the string may already have been released. Then all tokens that were
        not released are taken back.
        """
        at, self._banned_at = max(self._banned_at, self._n_released), -1
        first = next(i for i, p in enumerate(self._pending) if at < p.end)
        taken = [self._pending.pop() for _ in range(len(self._pending) - first)]
        oldest = taken[-1]
        self._decoder.setstate(oldest.state)
        self._found = oldest.found
        self._tail = self._tail[: oldest.start - self._n_released]
        return Taken(len(taken), oldest.token, oldest.mark)

    def finish(self) -> str:
        """Return the rest when no more tokens come: an unfinished character becomes U+FFFD."""
        if self.is_stopped:
            return ""
        self._tail += self._decoder.decode(b"", True)
        text, self._tail = self._tail, ""
        self._n_released += len(text)
        self._carry(lambda p: True)
        return text
