"""An answer whose tokens matter one by one: which of them a piece of text is made of, and which are to be taken back.

Plain answers need no more than `session.text`. Positions are characters of the answer's text.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import Any, NamedTuple

from uma_core.session.text import first_of, overlap
from uma_core.types import TokenId, TokenLogprob


class _Pending(NamedTuple):
    """A token whose text is not all released."""

    token: TokenId
    start: int
    end: int  # after its last whole character; a token may have none
    logprob: TokenLogprob | None
    state: Any  # of the decoder before it
    mark: Any  # of whoever pushed it


class Taken(NamedTuple):
    """Tokens that were taken back."""

    n: int
    token: TokenId  # the first of them
    mark: Any  # that it was pushed with


class Answer:
    """Assembles text like `TextStream`; `take` tells of the tokens that the released text came from.

    Text that a stop string may begin with is held back, and with `banned` so is text that a banned one may begin with:
    whole tokens of it. Where a banned string is complete, nothing is released and `must_rewind` is set.
    """

    def __init__(self, stops: tuple[str, ...] = (), banned: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(s for s in stops if s)
        self._banned = banned
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
    def is_settled(self) -> bool:
        """All tokens so far are in text that was released: none of them can be taken back."""
        return not self._pending

    @property
    def n_pending(self) -> int:
        """Tokens that can be taken back."""
        return len(self._pending)

    def push(self, token: TokenId, data: bytes, logprob: TokenLogprob | None = None, mark: Any = None) -> str:
        """One more token; the text that is ready. `mark` comes back should the token be taken back."""
        if self.stopped_by:
            return ""
        state = self._decoder.getstate() if self._banned else None
        start = self._n_released + len(self._tail)
        self._tail += self._decoder.decode(data)
        self._pending.append(_Pending(token, start, self._n_released + len(self._tail), logprob, state, mark))
        cut, stop = first_of(self._tail, self._stops)
        at, banned = first_of(self._tail, self._banned)
        if banned and not (stop and cut <= at):
            self._banned_at = self._n_released + at
            return ""
        if stop:
            self.stopped_by = stop
            return self._cut(cut)
        n_kept = max((overlap(self._tail, s) for s in (*self._stops, *self._banned)), default=0)
        return self._release(len(self._tail) - n_kept)

    def _release(self, n: int) -> str:
        """The next n characters, or less: a token that may be taken back is not released in part."""
        end = self._n_released + n
        if self._banned:
            end = min([p.start for p in self._pending if p.start < end < p.end], default=end)
        text, self._tail = self._tail[: end - self._n_released], self._tail[end - self._n_released :]
        self._n_released = end
        if text:
            self._carry(lambda p: p.end <= end)
        return text

    def _cut(self, n: int) -> str:
        """The last n characters there will be. A token that is only in part among them is carried."""
        end = self._n_released + n
        text, self._tail = self._tail[:n], ""
        self._carry(lambda p: p.start < end)
        self._pending.clear()
        return text

    def _carry(self, is_carried: Any) -> None:
        while self._pending and is_carried(self._pending[0]):
            logprob = self._pending.popleft().logprob
            if logprob is not None:
                self._carried.append(logprob)

    def take(self) -> tuple[TokenLogprob, ...]:
        """Of the tokens of the text that was released since the last time."""
        carried, self._carried = tuple(self._carried), []
        return carried

    def rewind(self) -> Taken:
        """Take back the tokens from the one in which the banned string begins."""
        at, self._banned_at = self._banned_at, -1
        first = next(i for i, p in enumerate(self._pending) if p.start <= at < p.end)
        taken = [self._pending.pop() for _ in range(len(self._pending) - first)]
        token, start, _, _, state, mark = taken[-1]
        self._decoder.setstate(state)
        self._tail = self._tail[: start - self._n_released]
        return Taken(len(taken), token, mark)

    def finish(self) -> str:
        """The rest, when no more tokens come: an unfinished character becomes U+FFFD."""
        if self.is_stopped:
            return ""
        self._tail += self._decoder.decode(b"", True)
        text, self._tail = self._tail, ""
        self._n_released += len(text)
        self._carry(lambda p: True)
        return text
