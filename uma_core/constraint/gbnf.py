"""Reads llama.cpp's grammar notation (GBNF) as llama.cpp does (llama-grammar.cpp of the pinned source). Pure.

`lexemes` translates it to llguidance's Lark. llguidance's own converter makes every literal and every character class a
lexeme, and its lexer takes the longest one: `[a-z]+ "end"` then refuses "tent", and llama.cpp's arithmetic example
never ends.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from uma_core.types import TokenId

N_DEEP_MOST = 64  # nesting depth of groups
N_RULES_MOST = 5_000
N_REPEATS_MOST = 2_000  # as in llama.cpp
N_TIMES_MOST = 4  # consecutive repetition signs after one item

_WORD = frozenset(string.ascii_letters + string.digits + "-_")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{c: c for c in '\\"[]-'}}
_DIGITS = {"x": 2, "u": 4, "U": 8}
LAST = 0x10FFFF

IdOf = Callable[[str], TokenId | None]


class GbnfError(ValueError):
    """A grammar is invalid or not supported; the text says why."""


class Text(NamedTuple):
    value: str


class Chars(NamedTuple):
    """One character."""

    ranges: tuple[tuple[int, int], ...]
    is_negated: bool = False


class Token(NamedTuple):
    """One token, or any token except that one."""

    id: TokenId
    is_negated: bool = False


class Ref(NamedTuple):
    rule: str


class Sequence(NamedTuple):
    items: tuple[Node, ...]


class Either(NamedTuple):
    items: tuple[Node, ...]


class Repeat(NamedTuple):
    item: Node
    least: int
    most: int | None


Node = Text | Chars | Token | Ref | Sequence | Either | Repeat
EMPTY = Sequence(())


def parse(source: str, id_of: IdOf, names: Iterable[str] = ()) -> dict[str, Node]:
    """Return the rules, `root` among them.

    `id_of` returns the token with a given text. `names`: texts of control tokens; such a text in a literal stands for
    the token. Raises: GbnfError.
    """
    rules = _Parser(source, id_of).run()
    if "root" not in rules:
        raise GbnfError("it has no rule `root`")
    special = {name: token for name in names if (token := id_of(name)) is not None}
    return {name: _with_tokens(node, special) for name, node in rules.items()}


# reading


class _Parser:
    def __init__(self, source: str, id_of: IdOf) -> None:
        self._source = source
        self._id_of = id_of
        self._at = 0
        self._n_deep = 0
        self._rules: dict[str, Node] = {}

    def run(self) -> dict[str, Node]:
        self._space(True)
        while self._at < len(self._source):
            self._rule()
        missing = sorted({name for node in self._rules.values() for name in refs(node)} - self._rules.keys())
        if missing:
            raise GbnfError(f"the rule `{missing[0]}` is not defined")
        return self._rules

    def _fail(self, message: str) -> GbnfError:
        line = self._source.count("\n", 0, self._at) + 1
        return GbnfError(f"line {line}: {message} at {self._source[self._at : self._at + 20]!r}")

    def _is(self, text: str) -> bool:
        return self._source.startswith(text, self._at)

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _space(self, with_lines: bool) -> None:
        while self._peek() and (self._peek() in " \t#" or (with_lines and self._peek() in "\r\n")):
            if self._peek() == "#":
                while self._peek() and self._peek() not in "\r\n":
                    self._at += 1
            else:
                self._at += 1

    def _while(self, among: Iterable[str], what: str) -> str:
        begin = self._at
        while self._peek() and self._peek() in among:
            self._at += 1
        if begin == self._at:
            raise self._fail(f"{what} is expected")
        return self._source[begin : self._at]

    def _rule(self) -> None:
        name = self._while(_WORD, "a name")
        self._space(False)
        if not self._is("::="):
            raise self._fail("`::=` is expected")
        self._at += 3
        self._space(True)
        self._rules[name] = self._either(False)
        if len(self._rules) > N_RULES_MOST:
            raise GbnfError(f"it has more than {N_RULES_MOST} rules")
        if self._peek() and self._peek() not in "\r\n":
            raise self._fail("the end of the line is expected")
        self._space(True)

    def _either(self, is_nested: bool) -> Node:
        self._n_deep += 1
        if self._n_deep > N_DEEP_MOST:
            raise self._fail(f"groups are nested deeper than {N_DEEP_MOST}")
        items = [self._sequence(is_nested)]
        while self._is("|"):
            self._at += 1
            self._space(True)
            items.append(self._sequence(is_nested))
        self._n_deep -= 1
        return items[0] if len(items) == 1 else Either(tuple(items))

    def _sequence(self, is_nested: bool) -> Node:
        items: list[Node] = []
        while (item := self._item()) is not None:
            self._space(is_nested)
            n_times = 0
            while (bounds := self._bounds(is_nested)) is not None:
                item, n_times = Repeat(item, *bounds), n_times + 1
                self._space(is_nested)
                if n_times > N_TIMES_MOST:
                    raise self._fail("a repetition of repetitions")
            items.append(item)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self) -> Node | None:
        first = self._peek()
        if first == '"':
            return self._literal()
        if first == "[":
            return self._chars()
        if first == ".":
            self._at += 1
            return Chars((), True)
        if first == "(":
            return self._group()
        if first and first in "<!":
            return self._token()
        if first and first in _WORD:
            return Ref(self._while(_WORD, "a name"))
        return None

    def _group(self) -> Node:
        self._at += 1
        self._space(True)
        inner = self._either(True)
        if not self._is(")"):
            raise self._fail("`)` is expected")
        self._at += 1
        return inner

    def _literal(self) -> Node:
        self._at += 1
        out = []
        while not self._is('"'):
            out.append(self._character())
        self._at += 1
        return Text("".join(out)) if out else EMPTY

    def _character(self) -> str:
        first = self._peek()
        if not first:
            raise self._fail("it ends too early")
        self._at += 1
        if first != "\\":
            return first
        letter = self._peek()
        self._at += 1
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        n = _DIGITS.get(letter, 0)
        digits = self._source[self._at : self._at + n]
        if not n or len(digits) < n or not set(digits) <= set(string.hexdigits):
            raise self._fail("an unknown escape")
        self._at += n
        code = int(digits, 16)
        if code > LAST or 0xD800 <= code < 0xE000:
            raise self._fail(f"{code:#x} is not a character")
        return chr(code)

    def _chars(self) -> Node:
        self._at += 1
        is_negated = self._is("^")
        self._at += is_negated
        ranges = []
        while not self._is("]"):
            low = high = ord(self._character())
            if self._is("-") and not self._is("-]"):
                self._at += 1
                high = ord(self._character())
            ranges.append((low, high))
        self._at += 1
        return Chars(tuple(ranges), is_negated) if ranges else EMPTY

    def _token(self) -> Node:
        is_negated = self._is("!")
        self._at += is_negated
        end = self._source.find(">", self._at)
        text = self._source[self._at : end + 1]
        if not text.startswith("<") or end < 0:
            raise self._fail("a token is expected")
        inner = text[2:-2] if text.startswith("<[") and text.endswith("]>") else ""
        token = int(inner) if inner.isdecimal() and len(inner) < 10 else self._id_of(text)
        if token is None:
            raise self._fail(f"{text[:64]!r} is not a token of this model")
        self._at = end + 1
        return Token(token, is_negated)

    def _bounds(self, is_nested: bool) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._is(sign):
                self._at += 1
                return bounds
        if not self._is("{"):
            return None
        self._at += 1
        self._space(is_nested)
        least = self._number()
        most: int | None = least
        self._space(is_nested)
        if self._is(","):
            self._at += 1
            self._space(is_nested)
            most = self._number() if self._peek() in string.digits and self._peek() else None
            self._space(is_nested)
        if not self._is("}"):
            raise self._fail("`}` is expected")
        self._at += 1
        if least > N_REPEATS_MOST or (most is not None and most < least):
            raise self._fail(f"a repetition from {least} to {most} is not supported, before")
        return least, None if most is None or most > N_REPEATS_MOST else most

    def _number(self) -> int:
        digits = self._while(string.digits, "a number")
        return int(digits[:10])


def _with_tokens(node: Node, special: Mapping[str, TokenId]) -> Node:
    """Replace texts of control tokens in literals: each becomes the token or its text, as in llama.cpp."""
    if isinstance(node, Text):
        return _split(node.value, special)
    if isinstance(node, Sequence):
        return Sequence(tuple(_with_tokens(item, special) for item in node.items))
    if isinstance(node, Either):
        return Either(tuple(_with_tokens(item, special) for item in node.items))
    if isinstance(node, Repeat):
        return node._replace(item=_with_tokens(node.item, special))
    return node


def _split(text: str, special: Mapping[str, TokenId]) -> Node:
    found = [(text.find(name), -len(name), name) for name in special if name in text]
    if not found:
        return Text(text) if text else EMPTY
    at, _, name = min(found)
    parts = [Text(text[:at])] if at else []
    rest = _split(text[at + len(name) :], special)
    return Sequence((*parts, Either((Token(special[name]), Text(name))), rest))


def refs(node: Node) -> set[str]:
    """Return the rules that a node refers to."""
    if isinstance(node, Ref):
        return {node.rule}
    if isinstance(node, Sequence | Either):
        return set[str]().union(*map(refs, node.items))
    return refs(node.item) if isinstance(node, Repeat) else set()
