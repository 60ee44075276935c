"""Turns a grammar over characters into rules over lexemes, in llguidance's Lark.

llguidance's lexer reads text as one lexeme for as long as some expected lexeme continues. So
- each regular part of a grammar becomes one lexeme. Rules that recur only at their ends are regular too, by Arden's
  lemma (automata written as rules, such as "anything but this text");
- if rules nest, as in JSON, some lexemes are split: those that could continue with the text that may follow them, and
  those that another lexeme could outrun. They are split into their parts, and finally into characters, which no lexer
  can read in two ways. Pure.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from uma_core.constraint.automaton import Alphabet, Automata, Classes, TooLarge
from uma_core.constraint.gbnf import EMPTY, Chars, Either, GbnfError, Node, Ref, Repeat, Sequence, Text, Token, refs

N_NODES_MOST = 1_500  # size of the rules that nest; above this, lexemes are not split
N_PAIRS_MOST = 5_000  # pairs of states of two lexemes to compare
N_ROUNDS_MOST = 20
_PLAIN = frozenset(string.ascii_letters + string.digits + " _,;:'\"@%=<>!")


def to_lark(rules: Mapping[str, Node]) -> str:
    """Write rules as Lark. Raises: GbnfError."""
    writer = _Writer(rules)
    writer.take_apart()
    return writer.text()


# which rules are regular


Line = tuple[Node, str | None]  # a path through a rule: the node that it begins with, and the rule that it ends with


def _all_refs(nodes: Iterable[Node]) -> set[str]:
    return set[str]().union(*map(refs, nodes))


def _lines(node: Node, among: frozenset[str]) -> list[Line] | None:
    """Return the paths through a rule that refers to `among` only at its ends. None: it does so elsewhere too."""
    if not refs(node) & among:
        return [(node, None)]
    if isinstance(node, Ref):
        return [(EMPTY, node.rule)]
    if isinstance(node, Either):
        lines = [_lines(item, among) for item in node.items]
        return None if None in lines else [line for item in lines for line in item or ()]
    if isinstance(node, Sequence) and not _all_refs(node.items[:-1]) & among:
        last = _lines(node.items[-1], among)
        return None if last is None else [(Sequence((*node.items[:-1], begin)), end) for begin, end in last]
    if isinstance(node, Repeat) and (node.least, node.most) == (0, 1):
        inner = _lines(node.item, among)
        return None if inner is None else [*inner, (EMPTY, None)]
    return None


def _has_token(node: Node) -> bool:
    if isinstance(node, Sequence | Either):
        return any(map(_has_token, node.items))
    return _has_token(node.item) if isinstance(node, Repeat) else isinstance(node, Token)


@dataclass
class _Loops:
    """Rules that recur at their ends, as states: the nodes that lead from one state to another, and those that end."""

    edges: dict[str, dict[str, list[Node]]] = field(default_factory=dict)
    ends: dict[str, list[Node]] = field(default_factory=dict)

    def eliminate(self, state: str, name: Callable[[Node], Node]) -> None:
        """Remove a state (Arden's lemma): loops at the state go before every path that leaves it."""
        loop = self.edges[state].pop(state, [])
        before = (Repeat(name(Either(tuple(loop))), 0, None),) if loop else ()
        leaving = {to: name(Sequence((*before, Either(tuple(nodes))))) for to, nodes in self.edges.pop(state).items()}
        ending = [name(Sequence((*before, Either(tuple(self.ends[state])))))] if self.ends[state] else []
        del self.ends[state]
        for source, targets in self.edges.items():
            through = targets.pop(state, None)
            if through is None:
                continue
            first = name(Either(tuple(through)))
            for to, node in leaving.items():
                targets.setdefault(to, []).append(Sequence((first, node)))
            self.ends[source] += [Sequence((first, node)) for node in ending]

    def weight(self, state: str) -> int:
        return sum(state in targets for targets in self.edges.values()) * (len(self.edges[state]) + 1)


def components(rules: Mapping[str, Node]) -> list[list[str]]:
    """Return the rules that can be reached from the root, in groups that refer to each other, callees first
    (Tarjan).
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    open_rules: set[str] = set()
    groups: list[list[str]] = []
    work: list[tuple[str, list[str]]] = []

    def enter(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        open_rules.add(name)
        work.append((name, sorted(refs(rules[name]))))

    enter("root")
    while work:
        name, todo = work[-1]
        if todo:
            other = todo.pop()
            if other not in index:
                enter(other)
            elif other in open_rules:
                low[name] = min(low[name], index[other])
            continue
        work.pop()
        if work:
            low[work[-1][0]] = min(low[work[-1][0]], low[name])
        if low[name] == index[name]:
            at = stack.index(name)
            groups.append(sorted(stack[at:]))
            open_rules.difference_update(stack[at:])
            del stack[at:]
    return groups


# rules over lexemes


class Lexeme(NamedTuple):
    name: str


class Rule(NamedTuple):
    name: str


class Special(NamedTuple):
    token: Token


class All(NamedTuple):
    items: tuple[Shape, ...]


class Any(NamedTuple):
    items: tuple[Shape, ...]


class Times(NamedTuple):
    item: Shape
    least: int
    most: int | None


Shape = Lexeme | Rule | Special | All | Any | Times


class _Writer:
    """`T0`... are lexemes, `r0`... rules that nest, `o0`... lexemes that were split."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._regular: dict[str, Node] = {}  # rules that are lexemes: a reference to the lexeme, or EMPTY
        self._nesting: dict[str, str] = {}  # the other rules, by name: their names in Lark
        self._lexemes: dict[Node, str] = {}
        self._bodies: dict[str, Node] = {}  # bodies of lexemes
        self._apart: set[str] = set()  # lexemes that were split
        self._shapes: dict[str, Shape] = {}
        for group in components(rules):
            self._disambiguate(group)

    def _disambiguate(self, group: list[str]) -> None:
        """Decide whether these rules, which refer to each other, are lexemes. The other rules that they refer to are
        already decided.
        """
        among = frozenset(group)
        outer = _all_refs(self._rules[name] for name in group) - among
        if outer <= self._regular.keys() and not any(_has_token(self._rules[name]) for name in group):
            if group[0] not in refs(self._rules[group[0]]) and len(group) == 1:
                self._regular[group[0]] = self._named(self._rules[group[0]])
                return
            lines = {name: _lines(self._rules[name], among) for name in group}
            if None not in lines.values():
                self._solve({name: found or [] for name, found in lines.items()})
                return
        self._nesting |= {name: f"r{len(self._nesting) + i}" for i, name in enumerate(group)}

    def _solve(self, lines: dict[str, list[Line]]) -> None:
        outside = _all_refs(node for name, node in self._rules.items() if name not in lines) | {"root"}
        for wanted in sorted(lines.keys() & outside):
            loops = _Loops({name: {} for name in lines}, {name: [] for name in lines})
            for name, found in lines.items():
                for begin, end in found:
                    if end is None:
                        loops.ends[name].append(begin)
                    else:
                        loops.edges[name].setdefault(end, []).append(begin)
            while len(loops.edges) > 1:
                others = sorted(name for name in loops.edges if name != wanted)
                loops.eliminate(min(others, key=loops.weight), self._named)
            loop, ends = loops.edges[wanted].get(wanted), loops.ends[wanted]
            if not ends:
                raise GbnfError(f"the rule `{wanted}` never ends")
            before = (Repeat(Either(tuple(loop)), 0, None),) if loop else ()
            self._regular[wanted] = self._named(Sequence((*before, Either(tuple(ends)))))

    def _named(self, node: Node) -> Node:
        """Return a regular node as a reference to a lexeme, so that it is written out only once."""
        if isinstance(node, Sequence | Either) and len(node.items) == 1:
            return self._named(node.items[0])
        if isinstance(node, Ref):
            return self._regular.get(node.rule, node)
        if node == EMPTY:
            return node
        name = self._lexemes.get(node)
        if name is None:
            name = self._lexemes[node] = f"T{len(self._lexemes)}"
            self._bodies[name] = node
        return Ref(name)

    def _body(self, name: str) -> Node:
        """Return the body of a lexeme, or of a rule that is a lexeme."""
        return self._bodies.get(name) or self._regular[name]

    # shapes

    def _is_regular(self, node: Node) -> bool:
        return not _has_token(node) and refs(node) <= self._regular.keys() | self._bodies.keys()

    def _shape(self, node: Node) -> Shape:
        """Return the shape of a node that contains rules or tokens. Each regular part between them becomes one
        lexeme.
        """
        if self._is_regular(node):
            return self._lexeme(node)
        if isinstance(node, Ref):
            return Rule(self._nesting[node.rule])
        if isinstance(node, Token):
            return Special(node)
        if isinstance(node, Repeat):
            return Times(self._shape(node.item), node.least, node.most)
        if isinstance(node, Either):
            return Any(tuple(map(self._shape, node.items)))
        assert isinstance(node, Sequence)
        return All(tuple(self._runs(_flat(node))))

    def _runs(self, items: list[Node]) -> Iterator[Shape]:
        run: list[Node] = []
        for item in items:
            if self._is_regular(item):
                run.append(item)
                continue
            if run:
                yield self._lexeme(Sequence(tuple(run)))
            run = []
            yield self._shape(item)
        if run:
            yield self._lexeme(Sequence(tuple(run)))

    def _lexeme(self, node: Node) -> Shape:
        named = self._named(node)
        if not isinstance(named, Ref):
            return All(())
        if named.rule not in self._apart:
            return Lexeme(named.rule)
        rule = "o" + named.rule[1:]
        if rule not in self._shapes:
            self._shapes[rule] = All(())  # lexemes do not recur, so nothing reads this placeholder
            self._shapes[rule] = self._opened(self._bodies[named.rule])
        return Rule(rule)

    def _opened(self, node: Node) -> Shape:
        """Split a lexeme into its direct parts."""
        if isinstance(node, Text):
            return All(tuple(self._lexeme(Text(character)) for character in node.value))
        if isinstance(node, Repeat):
            return Times(self._lexeme(node.item), node.least, node.most)
        if isinstance(node, Either):
            return Any(tuple(map(self._lexeme, node.items)))
        assert isinstance(node, Sequence)
        return All(tuple(map(self._lexeme, _flat(node))))

    def _reshape(self) -> None:
        self._shapes = {}
        for name, rule in self._nesting.items():
            self._shapes[rule] = self._shape(self._rules[name])

    def take_apart(self) -> None:
        """Split lexemes until none can be read in two ways, as far as that can be determined."""
        self._reshape()
        if sum(map(_size, self._shapes.values())) > N_NODES_MOST or not self._nesting:
            return
        alphabet = Alphabet(self._rules.values())
        for _ in range(N_ROUNDS_MOST):
            automata = Automata(alphabet, self._body)
            try:
                clashes = _Clashes(self._shapes, self._nesting["root"], automata).find()
            except TooLarge:
                return
            apart = {self._which(one, other) for one, other in clashes} - {""}
            if not apart:
                return
            self._apart |= apart
            self._reshape()

    def _which(self, one: str, other: str) -> str:
        """Return the lexeme to split: the longer one, if possible."""
        return next((name for name in (other, one) if _has_parts(self._bodies[name])), "")

    # Lark

    def text(self) -> str:
        start = self._nesting.get("root") or self._lark(self._lexeme(Ref("root")))
        lines = [f"{rule}: {self._lark(shape)}" for rule, shape in self._shapes.items()]
        lines += [f"{name}: {self._regex(body)}" for name, body in self._bodies.items()]
        return "\n".join(["%llguidance {}", f"start: {start}", *lines]) + "\n"

    def _lark(self, shape: Shape) -> str:
        if isinstance(shape, Lexeme | Rule):
            return shape.name
        if isinstance(shape, Special):
            return f"<[{'^' * shape.token.is_negated}{shape.token.id}]>"
        if isinstance(shape, Times):
            return _times(self._lark(shape.item), shape.least, shape.most)
        if isinstance(shape, Any):
            return "(" + " | ".join(map(self._lark, shape.items)) + ")"
        return "(" + " ".join(map(self._lark, shape.items)) + ")" if shape.items else '""'

    def _regex(self, node: Node) -> str:
        if isinstance(node, Text):
            return f"/{''.join(map(_escaped, map(ord, node.value)))}/"
        if isinstance(node, Chars):
            return _class(node)
        if isinstance(node, Ref):
            target = self._regular.get(node.rule, node)
            return target.rule if isinstance(target, Ref) else '""'
        if isinstance(node, Repeat):
            return _times(self._regex(node.item), node.least, node.most)
        if isinstance(node, Either):
            return "(" + " | ".join(map(self._regex, node.items)) + ")"
        assert isinstance(node, Sequence)
        return " ".join(map(self._regex, node.items)) or '""'


def _flat(node: Sequence) -> list[Node]:
    return [inner for item in node.items for inner in (_flat(item) if isinstance(item, Sequence) else [item])]


def _has_parts(node: Node) -> bool:
    """Whether a lexeme is worth splitting. It is not for a run of nearly any characters: the mask of a large vocabulary
    would then take milliseconds.
    """
    if isinstance(node, Repeat):
        return not _is_wide(node.item)
    return not isinstance(node, Chars) and not (isinstance(node, Text) and len(node.value) == 1)


def _is_wide(node: Node) -> bool:
    if isinstance(node, Sequence | Either):
        return any(map(_is_wide, node.items))
    return _is_wide(node.item) if isinstance(node, Repeat) else isinstance(node, Chars) and node.is_negated


def _escaped(code: int) -> str:
    return chr(code) if chr(code) in _PLAIN else f"\\x{{{code:x}}}"


def _class(node: Chars) -> str:
    if not node.ranges:
        return "/(?s:.)/"
    for low, high in node.ranges:
        if high < low:
            raise GbnfError(f"a range from {chr(low)!r} to {chr(high)!r}")
    inside = "".join(f"\\x{{{low:x}}}" + (f"-\\x{{{high:x}}}" if high > low else "") for low, high in node.ranges)
    return f"/[{'^' * node.is_negated}{inside}]/"


def _times(item: str, least: int, most: int | None) -> str:
    if most == 0:
        return '""'
    signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return f"({item})" + signs.get((least, most), f"{{{least},{'' if most is None else most}}}")


# what a lexer could read in two ways


def _size(shape: Shape) -> int:
    if isinstance(shape, All | Any):
        return 1 + sum(map(_size, shape.items))
    return 1 + _size(shape.item) if isinstance(shape, Times) else 1


Names = frozenset[str]


class _Clashes:
    """Finds which lexemes may follow which, and where a longer one hides the end of a shorter one."""

    def __init__(self, shapes: Mapping[str, Shape], root: str, automata: Automata) -> None:
        self._shapes = shapes
        self._root = root
        self._automata = automata
        self._first: dict[str, tuple[Names, bool]] = {
            rule: (frozenset(), False) for rule in shapes
        }  # and may it be empty
        self._after: dict[str, Names] = {rule: frozenset() for rule in shapes}
        self._follow: dict[str, set[str]] = {}  # lexemes that may follow each lexeme

    def find(self) -> set[tuple[str, str]]:
        """Return pairs (lexeme, the lexeme that may outrun it), which may be the same one. Raises: TooLarge."""
        self._fix(lambda: {rule: self._firsts(shape) for rule, shape in self._shapes.items()}, self._first)
        while self._spread():
            pass
        expected = {self._first[self._root][0], *map(frozenset, self._follow.values())}
        found: set[tuple[str, str]] = set()
        n_left = N_PAIRS_MOST
        for one, other in {(one, other) for names in expected for one in names for other in names}:
            n_left -= self._compare(one, other, found)
            if n_left < 0:
                raise TooLarge
        return found

    def _fix(self, step: Callable[[], dict[str, tuple[Names, bool]]], known: dict[str, tuple[Names, bool]]) -> None:
        while (new := step()) != known:
            known.update(new)

    def _firsts(self, shape: Shape) -> tuple[Names, bool]:
        if isinstance(shape, Lexeme):
            return frozenset([shape.name]), self._automata.at(self._automata.start(shape.name)).is_end
        if isinstance(shape, Rule):
            return self._first[shape.name]
        if isinstance(shape, Special):
            return frozenset(), False
        if isinstance(shape, Times):
            names, is_empty = self._firsts(shape.item)
            return names, is_empty or not shape.least
        parts = [self._firsts(item) for item in shape.items]
        if isinstance(shape, Any):
            return Names().union(*(names for names, _ in parts)), any(is_empty for _, is_empty in parts)
        found: Names = frozenset()
        for names, is_empty in parts:
            found |= names
            if not is_empty:
                return found, False
        return found, True

    def _spread(self) -> bool:
        """Update what may follow lexemes and rules, in one pass over all rules. False: nothing changed."""
        before = dict(self._after.items()), sum(map(len, self._follow.values()))
        for rule, shape in self._shapes.items():
            self._pass(shape, self._after[rule])
        return before != (self._after, sum(map(len, self._follow.values())))

    def _pass(self, shape: Shape, after: Names) -> None:
        if isinstance(shape, Lexeme):
            self._follow.setdefault(shape.name, set()).update(after)
        elif isinstance(shape, Rule):
            self._after[shape.name] |= after
        elif isinstance(shape, Any):
            for item in shape.items:
                self._pass(item, after)
        elif isinstance(shape, Times):
            again = self._firsts(shape.item)[0] if shape.most is None or shape.most > 1 else frozenset[str]()
            self._pass(shape.item, after | again)
        elif isinstance(shape, All):
            for item in reversed(shape.items):
                self._pass(item, after)
                names, is_empty = self._firsts(item)
                after = names | after if is_empty else names

    def _compare(self, one: str, other: str, found: set[tuple[str, str]]) -> int:
        """Check whether `other` can continue where `one` is complete and something else may follow it.

        Returns the number of states visited.
        """
        follow = self._characters_after(one)
        first = self._automata.start(one), self._automata.start(other)
        todo, seen = [first], {first}
        while todo and follow:
            here, there = (self._automata.at(state) for state in todo.pop())
            if here.is_end and follow & there.next.keys():
                found.add((one, other))
                break
            for one_class, state in here.next.items():
                pair = state, there.next.get(one_class, -1)
                if pair[1] >= 0 and pair not in seen:
                    seen.add(pair)
                    todo.append(pair)
        return len(seen)

    def _characters_after(self, lexeme: str) -> Classes:
        found: set[int] = set()
        for name in self._follow.get(lexeme, ()):
            found |= self._automata.at(self._automata.start(name)).next.keys()
        return frozenset(found)
