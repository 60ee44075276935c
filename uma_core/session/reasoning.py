"""The thinking part of an answer: tokens between two texts, counted separately, and forced to end at a budget."""

from __future__ import annotations

import codecs
from collections import deque
from typing import Any

from uma_core.types import Reasoning, TokenId, thought_mark


class Thinking:
    """Follows one answer. `is_inside`: the text so far ends inside a thought.

    A token that is only part of the start or the end text is not counted.
    """

    def __init__(self, wanted: Reasoning, prompt_tail: bytes) -> None:
        """`prompt_tail`: the end of the prompt's text, where a template may already begin a thought."""
        self._start, self._end = thought_mark(wanted.start), thought_mark(wanted.end)
        self._budget = wanted.budget_tokens
        tail = prompt_tail.decode("utf-8", "replace")
        self.is_inside = not self._start or tail.rfind(self._start) > tail.rfind(self._end)
        self.has_ended = False
        self.n_tokens = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # since the last start or end text
        self._lengths: list[int] = []  # length of the text of each token inside the thought
        self.forced: deque[TokenId] = deque()  # the rest of the forced end, once the budget is spent

    def push(self, data: bytes) -> None:
        """Take one more token's bytes."""
        if self.has_ended:
            return
        text = self._decoder.decode(data)
        self._text += text
        if not self.is_inside:
            at = self._text.find(self._start)
            if at >= 0:
                self.is_inside, self._text = True, self._text[at + len(self._start) :]
            else:
                self._text = self._text[-len(self._start) :]
            return
        self._lengths.append(len(text))
        self.n_tokens += 1
        at = self._text.find(self._end)
        if at >= 0:
            self._close(len(self._text) - at)
        elif len(self._text) > 4 * len(self._end):
            self._text = self._text[-len(self._end) :]
            # only tokens of this text can still become part of the end text
            while sum(self._lengths) - self._lengths[0] >= len(self._text):
                self._lengths.pop(0)

    def _close(self, n_end: int) -> None:
        """End the thought. The last `n_end` characters are the end text and the rest of its last token."""
        while self._lengths and n_end > 0:
            n_end -= self._lengths.pop()
            self.n_tokens -= n_end >= 0  # a token that began before the end text belongs to the thought
        self.is_inside, self.has_ended = False, True
        self.forced.clear()

    def mark(self) -> tuple[object, ...]:
        """Return the current state, for `go_back`."""
        return (
            self.is_inside,
            self.has_ended,
            self.n_tokens,
            self._decoder.getstate(),
            self._text,
            tuple(self._lengths),
            tuple(self.forced),
        )

    def go_back(self, mark: Any) -> None:
        """Return to a marked state, because the tokens since then were taken back."""
        self.is_inside, self.has_ended, self.n_tokens, state, self._text, lengths, forced = mark
        self._decoder.setstate(state)
        self._lengths, self.forced = list(lengths), deque(forced)

    @property
    def is_over_budget(self) -> bool:
        return self._budget is not None and self.is_inside and self.n_tokens >= self._budget
