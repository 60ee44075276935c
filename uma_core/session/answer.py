"""An answer whose tokens matter one by one: which tokens a piece of text consists of, and which must be taken back.

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
    """A token whose text has not been released completely."""

    token: TokenId
    start: int
    end: int  # after its last complete character; a token may have none
    logprob: TokenLogprob | None
    state: Any  # of the decoder, before this token
    mark: Any  # the caller's own value, passed to `push`
    found: State  # of the search, before this token


class Taken(NamedTuple):
    """Tokens that were taken back."""

    n: int
    token: TokenId  # the first of them
    mark: Any  # the mark that it was pushed with


class Answer:
    """Assembles text like `TextStream`; `take` returns the tokens of the released text.

    Text that may be the beginning of a stop string is held back. With `banned`, whole tokens are held back whose text
    may begin a banned string; once a banned string is complete, nothing is released and `must_rewind` is set.
    """

    def __init__(self, stops: tuple[str, ...] = (), banned: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(s for s in stops if s)
        self._banned = tuple(s for s in banned if s)
        self._found = beginning((*self._stops, *self._banned))  # at the same place, stop strings win
        self._tail = ""  # decoded text that is not released
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
        """Return how many tokens can be taken back."""
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
        """Release the text up to this position, or less: a token that may be taken back is never released in part."""
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
        """Release the last text of the answer, up to this position. A token that is only partly in it is
        carried too.
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
        """Return the tokens of the text that was released since the last call."""
        carried, self._carried = tuple(self._carried), []
        return carried

    def rewind(self) -> Taken:
        """Take back the tokens from the one in which the banned string begins.

        If text of the string has already been released with an earlier token, all tokens that were not released are
        taken back.
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
        """Return the rest of the text at the end: an incomplete character becomes U+FFFD."""
        if self.is_stopped:
            return ""
        self._tail += self._decoder.decode(b"", True)
        text, self._tail = self._tail, ""
        self._n_released += len(text)
        self._carry(lambda p: True)
        return text
