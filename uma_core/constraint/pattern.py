"""Searches text for regular expressions as it arrives, byte by byte, in time proportional to the text.

`re` would have to start over at every token, and a client's pattern could make it run forever. Here all ways to match
are followed side by side (R. Cox, "Regular Expression Matching: the Virtual Machine Approach", 2009). The syntax is the
part of ECMA-262 that chat templates' triggers use: no back references, no look-behind, and `(?!...)` as
the only look-ahead. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

N_CHARACTERS_MOST = 1_000  # characters of a pattern
N_STEPS_MOST = 2_000  # steps of a compiled pattern: a byte of text costs at most twice as many
# Steps that the searches of one answer may follow per token, about 1 us each: all streams wait for them between two
# decode calls. Steps that a token does not use are saved, up to the second number: a thousand tools whose names begin
# alike take 20,000 once. Ways beyond that are dropped. With 64 hostile patterns a token takes 12 ms; with the second
# number allowed for each token, it took 92 ms (AMD EPYC).
N_FOLLOWED_EACH = 2_048
N_FOLLOWED_MOST = 32_768
N_REPEATS_MOST = 100
N_DEEP_MOST = 30
N_REFUTERS_MOST = 32  # look-ahead states that one way to match depends on; a way with more is dropped
N_BACK_MOST = 4_096  # how many bytes before the end a match may have begun

Bytes = frozenset[int]
ASCII: Bytes = frozenset(range(0x80))
_TAIL: Bytes = frozenset(range(0x80, 0xC0))
_LONG: list[tuple[Bytes, ...]] = [  # a character that is not ASCII, in UTF-8
    (frozenset(range(0xC2, 0xE0)), _TAIL),
    (frozenset(range(0xE0, 0xF0)), _TAIL, _TAIL),
    (frozenset(range(0xF0, 0xF5)), _TAIL, _TAIL, _TAIL),
]
_CLASSES = {"d": b"0123456789", "s": b" \t\n\v\f\r", "w": bytes(b for b in range(0x80) if chr(b).isalnum()) + b"_"}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_DIGITS = {"x": 2, "u": 4}


class PatternError(ValueError):
    """A pattern is invalid or not supported; the text says why."""


class Step(NamedTuple):
    """One step. `byte`: read one of `among`, then go to `next`.

    `split`: go to `next` and to `also`. `unless`: go to `next`, as long as the steps at `also` do not match.
    """

    kind: str  # byte, split, group, start, end, unless, match
    next: int = 0
    also: int = 0
    among: Bytes = frozenset()


Refuter = frozenset[int]  # steps at which a look-ahead may continue; it is refuted if one of them matches


class Way(NamedTuple):
    """A partial match: where it began, where its first group began (-1: not yet), and the look-aheads that would refute
    it.
    """

    begin: int
    group: int
    refuters: frozenset[Refuter]


Key = tuple[int, frozenset[Refuter]]  # a step, and the look-aheads that would refute the way to it


class Found(NamedTuple):
    begin: int  # of the first group, if the pattern has groups and that has text
    end: int


class Pattern:
    def __init__(self, source: str) -> None:
        """Compile a pattern. Raises: PatternError."""
        self.steps, self.first = _Compiler(source).run()
        # how each look-ahead begins, and the number of steps found for it: the same at every place of the text
        self.begun: dict[int, tuple[Refuter | None, int]] = {}

    def search(self) -> Search:
        return Search(self)


class Search:
    """A search in progress. Offsets count all bytes that were pushed."""

    def __init__(self, pattern: Pattern) -> None:
        self._steps, self._first, self._begun = pattern.steps, pattern.first, pattern.begun
        self._at = 0
        self._ways: dict[Key, Way] = {}  # ways that need a byte or the end of the text
        self._reached: dict[Key, Way] = {}  # the best way to each step since the last byte
        self._matches: list[tuple[Way, int]] = []  # complete ways, and where they end
        self.n_left = 0  # steps that may still be followed

    def mark(self) -> tuple[Any, ...]:
        """Return the present state, for `go_back`."""
        return self._at, dict(self._ways), dict(self._reached)

    def go_back(self, mark: tuple[Any, ...]) -> None:
        """Return to a mark, of this search or of another one for the same pattern."""
        self._at, ways, reached = mark
        self._ways, self._reached = dict(ways), dict(reached)

    def push(self, data: bytes, n_most: int = N_FOLLOWED_MOST) -> Found | None:
        """Return the leftmost match as soon as there is one. `data`: a token's text; `$` matches at its end. `n_most`:
        steps that may be followed for it.
        """
        self._matches = []
        self.n_left = n_most
        for byte in data:
            self._add(self._first, Way(self._at, -1, frozenset()))
            self._eat(byte)
        ends = [(pc, way) for (pc, _), way in self._ways.items() if self._steps[pc].kind == "end"]
        if ends:
            ways, reached = dict(self._ways), dict(self._reached)
            for pc, way in ends:
                self._add(self._steps[pc].next, way)
            self._ways, self._reached = ways, reached  # if more text comes, this was not the end
        found = [(way.begin, -end, way.group) for way, end in self._matches]
        if not found:
            return None
        begin, end, group = min(found)
        return Found(begin if group < 0 else group, -end)

    def _eat(self, byte: int) -> None:
        ways, self._ways, self._reached = self._ways, {}, {}
        self._at += 1
        seen: dict[Refuter, Refuter | None] = {}
        pending = [(self._unrefuted(way, byte, seen), end) for way, end in self._matches]
        self._matches = [(way, end) for way, end in pending if way is not None]
        for (pc, _), way in sorted(ways.items(), key=lambda item: item[1][:2]):  # best first, so that few steps repeat
            if self.n_left <= 0:
                return
            step = self._steps[pc]
            if byte in step.among and way.begin > self._at - N_BACK_MOST:
                left = self._unrefuted(way, byte, seen)
                if left is not None:
                    self._add(step.next, left)

    def _unrefuted(self, way: Way, byte: int, seen: dict[Refuter, Refuter | None]) -> Way | None:
        """Return the way after one more byte for its look-aheads. None: it is refuted. `seen`: the successors of
        look-aheads.

        Look-aheads that can no longer match are dropped. Those that began at different places but continue alike are
        merged.
        """
        if not way.refuters:
            return way
        left = set()
        self.n_left -= len(way.refuters)
        for refuter in way.refuters:
            if refuter not in seen:
                firsts = (self._steps[pc].next for pc in refuter if byte in self._steps[pc].among)
                seen[refuter] = self._refuter(firsts)
            after = seen[refuter]
            if after is None:
                return None
            if after:
                left.add(after)
        return way._replace(refuters=frozenset(left))

    def _refuter(self, firsts: Iterable[int]) -> Refuter | None:
        """Advance a look-ahead. None: it has matched."""
        refuter, n_steps = self._followed(firsts)
        self.n_left -= n_steps
        return refuter

    def _new_refuter(self, first: int) -> Refuter | None:
        """Begin a look-ahead. It counts as many steps each time, so no result depends on other searches."""
        if first not in self._begun:
            self._begun[first] = self._followed([first])
        refuter, n_steps = self._begun[first]
        self.n_left -= n_steps
        return refuter

    def _followed(self, firsts: Iterable[int]) -> tuple[Refuter | None, int]:
        """Return the steps of a look-ahead that need a byte (None: it has matched), and their number."""
        found = frozenset(_reachable(self._steps, firsts))
        return None if any(self._steps[pc].kind == "match" for pc in found) else found, len(found)

    def _add(self, first: int, way: Way) -> None:
        """Follow a way to all steps that need a byte. Of two ways to one step, the one that began first is kept."""
        todo, reached = [(first, way)], self._reached
        while todo and self.n_left > 0:
            pc, way = todo.pop()
            step, key = self._steps[pc], (pc, way.refuters)
            if key in reached and reached[key] <= way:
                continue
            reached[key] = way
            self.n_left -= 1 + len(way.refuters)
            if step.kind == "match":
                self._matches.append((way, self._at))
            elif step.kind in ("byte", "end"):
                self._ways[key] = way
            elif step.kind == "split":
                todo += [(step.also, way), (step.next, way)]
            elif step.kind == "group":
                todo.append((step.next, way if way.group >= 0 else way._replace(group=self._at)))
            elif step.kind == "unless":
                refuter = self._new_refuter(step.also)
                if refuter is not None and len(way.refuters) < N_REFUTERS_MOST:
                    todo.append((step.next, way._replace(refuters=way.refuters | {refuter})))
            elif not self._at:
                todo.append((step.next, way))


def _reachable(steps: list[Step], firsts: Iterable[int]) -> Iterator[int]:
    """Yield the steps that need a byte, and the last step, as far as they can be reached without a byte."""
    todo = list(firsts)
    seen = set(todo)
    while todo:
        pc = todo.pop()
        step = steps[pc]
        if step.kind in ("byte", "match"):
            yield pc
            continue
        more = [step.next, step.also] if step.kind == "split" else [step.next]
        todo += [pc for pc in more if pc not in seen]
        seen.update(more)


class _Compiler:
    """Parses by recursive descent into a tree; then emits the steps from the tree's end to its beginning."""

    def __init__(self, source: str) -> None:
        if len(source) > N_CHARACTERS_MOST:
            raise PatternError(f"it has {len(source)} characters, the limit is {N_CHARACTERS_MOST}")
        self._source = source
        self._at = 0
        self._n_deep = 0
        self._steps = [Step("match")]

    def run(self) -> tuple[list[Step], int]:
        tree = self._either()
        if self._at < len(self._source):
            raise PatternError(f"unexpected {self._source[self._at]!r} at {self._at}")
        first = self._emit(tree, 0)
        if 0 in _reachable(self._steps, [first]):
            raise PatternError("it matches the empty text")
        return self._steps, first

    # the tree: (kind, content)

    def _next(self) -> str:
        if self._at >= len(self._source):
            raise PatternError("it ends too early")
        self._at += 1
        return self._source[self._at - 1]

    def _has(self, text: str) -> bool:
        if not self._source.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _either(self) -> Any:
        self._n_deep += 1
        if self._n_deep > N_DEEP_MOST:
            raise PatternError(f"it is nested deeper than {N_DEEP_MOST}")
        choices = [self._sequence()]
        while self._has("|"):
            choices.append(self._sequence())
        self._n_deep -= 1
        return ("either", choices)

    def _sequence(self) -> Any:
        items = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            items.append(self._repeated(self._atom()))
        return ("all", items)

    def _repeated(self, item: Any) -> Any:
        if self._has("*"):
            least, most = 0, None
        elif self._has("+"):
            least, most = 1, None
        elif self._has("?"):
            least, most = 0, 1
        elif self._has("{"):
            least, most = self._bounds()
        else:
            return item
        self._has("?")  # a lazy repetition does not change where a match begins
        if max(least, most or 0) > N_REPEATS_MOST or (most is not None and most < least):
            raise PatternError(f"a repetition from {least} to {most}: at most {N_REPEATS_MOST} are supported")
        return ("repeat", (item, least, most))

    def _bounds(self) -> tuple[int, int | None]:
        end = self._source.find("}", self._at)
        least, comma, most = self._source[self._at : max(end, self._at)].partition(",")
        if not (least.isdecimal() and (most.isdecimal() or not most)) or len(least + most) > 8:
            raise PatternError(f"a repetition is expected at {self._at}")
        self._at = end + 1
        return int(least), int(most) if most else None if comma else int(least)

    def _atom(self) -> Any:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return ("one", self._class())
        if character == ".":
            return ("one", [(ASCII - {10, 13},), *_LONG])
        if character in "^$":
            return ("start" if character == "^" else "end", None)
        if character == "\\":
            return ("one", self._escape())
        if character in "*+?{":
            raise PatternError(f"nothing to repeat at {self._at - 1}")
        return ("one", [_utf8(character)])

    def _group(self) -> Any:
        kind = "group"
        if self._has("?:"):
            kind = "either"
        elif self._has("?!"):
            kind = "unless"
        elif self._has("?"):
            raise PatternError(f"this kind of group is not supported, at {self._at}")
        inner = self._either()
        if not self._has(")"):
            raise PatternError("a group is not closed")
        return inner if kind == "either" else (kind, inner)

    def _escape(self) -> list[tuple[Bytes, ...]]:
        character = self._next()
        if character.lower() in _CLASSES:
            among = frozenset(_CLASSES[character.lower()])
            return [(among,)] if character.islower() else [(ASCII - among,), *_LONG]
        return [_utf8(self._escaped(character))]

    def _escaped(self, character: str) -> str:
        if character in _DIGITS:
            digits = "".join(self._next() for _ in range(_DIGITS[character]))
            try:
                return chr(int(digits, 16))
            except ValueError:
                raise PatternError(f"{digits!r} is not a number") from None
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character.isalnum():
            raise PatternError(f"the escape {character!r} is not supported")
        return character

    def _class(self) -> list[tuple[Bytes, ...]]:
        is_negated = self._has("^")
        among: set[int] = set()
        longer: list[tuple[Bytes, ...]] = []
        while not self._has("]"):
            low = self._member(among, longer)
            if (
                low is not None
                and self._source[self._at : self._at + 1] == "-"
                and self._source[self._at + 1 : self._at + 2] != "]"
            ):
                self._at += 1
                high = self._member(set(), [])
                if high is None or high < low or ord(high) > 0x7F:
                    raise PatternError(f"an unsupported range at {self._at}")
                among |= set(range(ord(low), ord(high) + 1))
            elif low is not None and ord(low) < 0x80:
                among.add(ord(low))
            elif low is not None:
                longer.append(_utf8(low))
        if is_negated and longer:
            raise PatternError("a negated class with non-ASCII characters is not supported")
        return [(ASCII - among,), *_LONG] if is_negated else [(frozenset(among),), *longer]

    def _member(self, among: set[int], longer: list[tuple[Bytes, ...]]) -> str | None:
        """Read one character; None: it was a class, which has been added to `among`."""
        character = self._next()
        if character != "\\":
            return character
        character = self._next()
        if character.lower() not in _CLASSES:
            return "\b" if character == "b" else self._escaped(character)
        inner = frozenset(_CLASSES[character.lower()])
        among |= inner if character.islower() else ASCII - inner
        longer += [] if character.islower() else _LONG
        return None

    # the steps, from the end

    def _put(self, step: Step) -> int:
        if len(self._steps) >= N_STEPS_MOST:
            raise PatternError("it is too large")
        self._steps.append(step)
        return len(self._steps) - 1

    def _emit(self, tree: Any, then: int) -> int:
        """Emit steps that match the tree and continue at `then`. Returns the first of them."""
        kind, content = tree
        if kind == "one":
            return self._any_of([self._run_of(run, then) for run in content])
        if kind == "all":
            for item in reversed(content):
                then = self._emit(item, then)
            return then
        if kind == "either":
            return self._any_of([self._emit(item, then) for item in content])
        if kind == "repeat":
            return self._repeat(content, then)
        if kind == "group":
            return self._put(Step("group", self._emit(content, then)))
        if kind == "unless":
            return self._put(Step("unless", then, self._emit(content, 0)))
        return self._put(Step(kind, then))

    def _run_of(self, run: tuple[Bytes, ...], then: int) -> int:
        for among in reversed(run):
            then = self._put(Step("byte", then, 0, among))
        return then

    def _any_of(self, firsts: list[int]) -> int:
        first = firsts[-1]
        for other in reversed(firsts[:-1]):
            first = self._put(Step("split", other, first))
        return first

    def _repeat(self, content: tuple[Any, int, int | None], then: int) -> int:
        item, least, most = content
        first = then
        if most is None:
            first = self._put(Step("split", then, then))
            self._steps[first] = Step("split", self._emit(item, first), then)
        for _ in range((most or 0) - least if most is not None else 0):
            first = self._put(Step("split", self._emit(item, first), then))
        for _ in range(least):
            first, after = self._emit(item, first), first
            if first == after:  # the item has no steps, so repeating it adds none; nested, the loop could be long
                break
        return first


def _utf8(character: str) -> tuple[Bytes, ...]:
    try:
        return tuple(frozenset([byte]) for byte in character.encode())
    except UnicodeEncodeError:
        raise PatternError("an unpaired surrogate") from None
