"""Automata over characters for the regular parts of a grammar: they show how far a lexeme may continue. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import NamedTuple

from uma_core.constraint.gbnf import LAST, Chars, Either, Node, Ref, Repeat, Sequence, Text

N_STATES_MOST = 4_000  # states of all lexemes together
# nodes visited to build them, 70 ms: empty rules make no states, and could refer to each other forever
N_BUILT_MOST = 40 * N_STATES_MOST
N_REPEATS_MOST = 3  # a larger count is treated as unlimited

Classes = frozenset[int]


class Alphabet:
    """Classes of characters. A class holds characters that no part of the grammar tells apart."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        borders = {0}
        for node in nodes:
            borders |= set(_borders(node))
        self._borders = sorted(border for border in borders if border <= LAST)
        self.all: Classes = frozenset(range(len(self._borders)))

    def of(self, node: Chars) -> Classes:
        inside: set[int] = set()
        for low, high in node.ranges:
            inside |= set(range(self._at(low), self._at(high) + 1))
        return self.all - inside if node.is_negated else frozenset(inside)

    def one(self, character: str) -> Classes:
        return frozenset([self._at(ord(character))])

    def _at(self, code: int) -> int:
        return bisect.bisect_right(self._borders, code) - 1


def _borders(node: Node) -> Iterable[int]:
    if isinstance(node, Text):
        for character in node.value:
            yield from (ord(character), ord(character) + 1)
    elif isinstance(node, Chars):
        for low, high in node.ranges:
            yield from (low, high + 1)
    elif isinstance(node, Sequence | Either):
        for item in node.items:
            yield from _borders(item)
    elif isinstance(node, Repeat):
        yield from _borders(node.item)


class State(NamedTuple):
    is_end: bool
    next: dict[int, int]  # class -> state


class TooLarge(Exception):
    """There are too many states for the search to pay off."""


class Automata:
    """Deterministic automata of lexemes. States are built when they are first visited."""

    def __init__(self, alphabet: Alphabet, body_of: Callable[[str], Node]) -> None:
        """`body_of` returns the node that a reference stands for."""
        self._alphabet = alphabet
        self._body_of = body_of
        self._moves: list[list[tuple[Classes, int]]] = []  # transitions of the nondeterministic automaton
        self._free: list[list[int]] = []
        self._ends: dict[str, int] = {}
        self._starts: dict[str, int] = {}
        self._sets: dict[tuple[str, frozenset[int]], int] = {}
        self._states: list[tuple[str, frozenset[int]]] = []
        self._known: dict[int, State] = {}
        self._n_built = 0  # nodes built so far

    def start(self, lexeme: str) -> int:
        """Return the first state of a lexeme. Raises: TooLarge."""
        if lexeme not in self._starts:
            end = self._ends[lexeme] = self._new()
            self._starts[lexeme] = self._build(self._body_of(lexeme), end)
        return self._state(lexeme, frozenset([self._starts[lexeme]]))

    def at(self, state: int) -> State:
        """Return a state. Raises: TooLarge."""
        found = self._known.get(state)
        if found is None:
            lexeme, members = self._states[state]
            moves: dict[int, set[int]] = {}
            for member in members:
                for classes, to in self._moves[member]:
                    for one in classes:
                        moves.setdefault(one, set()).add(to)
            next_states = {one: self._state(lexeme, frozenset(to)) for one, to in moves.items()}
            found = self._known[state] = State(self._ends[lexeme] in members, next_states)
        return found

    def _state(self, lexeme: str, members: frozenset[int]) -> int:
        todo, closed = list(members), set(members)
        while todo:
            for to in self._free[todo.pop()]:
                if to not in closed:
                    closed.add(to)
                    todo.append(to)
        key = lexeme, frozenset(closed)
        if key not in self._sets:
            if len(self._states) >= N_STATES_MOST:
                raise TooLarge
            self._sets[key] = len(self._states)
            self._states.append(key)
        return self._sets[key]

    def _new(self) -> int:
        if len(self._moves) >= 4 * N_STATES_MOST:
            raise TooLarge
        self._moves.append([])
        self._free.append([])
        return len(self._moves) - 1

    def _build(self, node: Node, then: int) -> int:
        """Build states that read the node and continue at `then`; returns the first one. Raises: TooLarge."""
        self._n_built += 1
        if self._n_built > N_BUILT_MOST:
            raise TooLarge
        if isinstance(node, Text):
            for character in reversed(node.value):
                then = self._step(self._alphabet.one(character), then)
            return then
        if isinstance(node, Chars):
            return self._step(self._alphabet.of(node), then)
        if isinstance(node, Ref):
            return self._build(self._body_of(node.rule), then)
        if isinstance(node, Sequence):
            for item in reversed(node.items):
                then = self._build(item, then)
            return then
        if isinstance(node, Either):
            first = self._new()
            self._free[first] += [self._build(item, then) for item in node.items]
            return first
        assert isinstance(node, Repeat)
        return self._repeat(node, then)

    def _step(self, classes: Classes, then: int) -> int:
        first = self._new()
        self._moves[first].append((classes, then))
        return first

    def _repeat(self, node: Repeat, then: int) -> int:
        n_least = min(node.least, N_REPEATS_MOST)
        n_more = None if node.most is None or node.most - node.least > N_REPEATS_MOST else node.most - node.least
        first = then
        if n_more is None:
            first = self._new()
            self._free[first] += [self._build(node.item, first), then]
        for _ in range(n_more or 0):
            once = self._new()
            self._free[once] += [self._build(node.item, first), then]
            first = once
        for _ in range(n_least):
            first = self._build(node.item, first)
        return first
