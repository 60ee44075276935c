"""Finds where a lazy constraint begins: scans the answer for its first trigger, and keeps only the end of the text.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from uma_core.constraint.pattern import N_BACK_MOST, N_FOLLOWED_EACH, N_FOLLOWED_MOST, Pattern
from uma_core.types import TokenId, Trigger

Encode = Callable[[bytes], list[TokenId]]  # returns tokens for exactly these bytes
Spell = Callable[[TokenId], bytes]  # returns a token's text, also for control tokens


class Rules(NamedTuple):
    """A request's triggers. Each flag tells whether the grammar begins after the trigger."""

    words: tuple[tuple[bytes, bool], ...] = ()
    tokens: tuple[tuple[TokenId, bool], ...] = ()
    patterns: tuple[tuple[Pattern, bool], ...] = ()


def rules_of(triggers: tuple[Trigger, ...], id_of: Callable[[str | int], TokenId | None]) -> Rules:
    """Compile triggers. Raises: PatternError; ValueError for a token that the model does not have."""
    words, tokens, patterns = [], [], []
    for trigger in triggers:
        if trigger.kind == "word":
            words.append((str(trigger.value).encode(), trigger.is_after))
        elif trigger.kind == "pattern":
            patterns.append((Pattern(str(trigger.value)), trigger.is_after))
        else:
            token = id_of(trigger.value)
            if token is None:
                raise ValueError(f"{trigger.value!r:.80} is not a token of this model")
            tokens.append((token, trigger.is_after))
    return Rules(tuple(words), tuple(tokens), tuple(patterns))


class Scanner:
    """Reads every token until a trigger appears. Then `push` returns the tokens that the grammar must read first."""

    def __init__(self, rules: Rules, spell: Spell, encode: Encode) -> None:
        self._rules, self._spell, self._encode = rules, spell, encode
        self._searches = [(pattern.search(), is_after) for pattern, is_after in rules.patterns]
        self._n_left = N_FOLLOWED_MOST  # steps that the patterns may still follow
        longest = max((len(word) for word, _ in rules.words), default=1)
        self._n_kept = N_BACK_MOST if rules.patterns else longest
        self._recent: deque[tuple[TokenId, bytes]] = deque()  # tokens of the last `_n_kept` bytes, or slightly more
        self._n_recent = 0
        self._end = 0  # bytes so far
        self._tail = b""  # text in which a word may have begun

    def fork(self) -> Scanner:
        """Return a new scanner with the same rules."""
        return Scanner(self._rules, self._spell, self._encode)

    def mark(self) -> tuple[Any, ...]:
        """Return the present state, for `go_back`."""
        searches = [search.mark() for search, _ in self._searches]
        return searches, self._n_left, tuple(self._recent), self._n_recent, self._end, self._tail

    def go_back(self, mark: tuple[Any, ...]) -> None:
        """Return to a mark, of this scanner or of another one for the same triggers."""
        searches, self._n_left, recent, self._n_recent, self._end, self._tail = mark
        self._recent = deque(recent)
        for (search, _), each in zip(self._searches, searches, strict=True):
            search.go_back(each)

    def push(self, token: TokenId) -> list[TokenId] | None:
        """Take a token. None: no trigger yet.

        Otherwise returns the tokens of the answer so far that belong to the grammar; a token that belongs to it only
        partly is encoded again.
        """
        text = self._spell(token)
        begin, self._end = self._end, self._end + len(text)
        self._remember(token, text)
        starts = [self._end if is_after else begin for id, is_after in self._rules.tokens if id == token]
        starts += self._words(text)
        self._n_left = min(N_FOLLOWED_MOST, max(0, self._n_left) + N_FOLLOWED_EACH)
        for search, is_after in self._searches:
            match = search.push(text, self._n_left)
            self._n_left = search.n_left
            starts += [match.end if is_after else match.begin] if match else []
        return self._since(min(starts)) if starts else None

    def _remember(self, token: TokenId, text: bytes) -> None:
        self._recent.append((token, text))
        self._n_recent += len(text)
        while self._n_recent - len(self._recent[0][1]) >= self._n_kept:
            self._n_recent -= len(self._recent.popleft()[1])

    def _words(self, text: bytes) -> list[int]:
        starts = []
        seen = self._tail + text
        offset = self._end - len(seen)
        for word, is_after in self._rules.words:
            at = seen.find(word)
            if at >= 0:
                starts.append(offset + at + (len(word) if is_after else 0))
        longest = max((len(word) for word, _ in self._rules.words), default=1)
        self._tail = seen[max(0, len(seen) - longest + 1) :]
        return starts

    def _since(self, start: int) -> list[TokenId]:
        tokens: list[TokenId] = []
        at = self._end - self._n_recent
        for token, text in self._recent:
            end = at + len(text)
            if at >= start:
                tokens += [token] if text else []
            elif end > start:
                tokens += self._encode(text[start - at :])
            at = end
        return tokens
