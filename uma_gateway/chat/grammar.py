"""Grammars as trees: the texts that the model may write, read from a template's parser, and operations on them.

llama.cpp describes an answer as a PEG parser and derives a GBNF from it. In the GBNF, "any text until </think>" is a
chain of rules that recurses at every character, and llguidance gives up after 2,000 of them. So the grammar is built
from the parser itself. `resolve` turns "any text until a delimiter, then the rest" into "up to and including the
delimiter, then what remains of the rest": this is one lexeme, and it matches what a PEG parser does with the text.
uma_gateway/chat/lark.py writes the result as Lark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from typing import Any

from uma_gateway.chat.lazy import lazy

Letters = frozenset[str]  # characters; all characters beyond ASCII count as one
BEYOND = "\uffff"
Texts = frozenset[str]  # beginnings
NONE: Letters = frozenset()
ANYHOW: Texts = frozenset([""])  # nothing is known about the beginnings
ALL: Letters = frozenset([*map(chr, range(128)), BEYOND])
MAX_NODES = 200_000  # limit for one parser; 500 tools make far fewer
MAX_OPEN = 8  # limit of texts up to a delimiter in one expression's alternatives: the lexer follows all of them at once
MAX_DELIMITERS, STEM = 16, 6  # delimiters of one open text; more of them are grouped by their first characters


class Unresolved(Exception):
    """The operations here cannot handle this form of grammar."""


class Node:
    """A set of texts. Immutable; made by a `Grammar`, in which equal nodes are one object."""

    nullable = False  # the set contains the empty text
    first: Letters = ALL  # superset of the characters that can begin a text
    more: Letters = NONE  # superset of the characters that can follow a whole text of the set within a longer one
    alphabet: Letters = ALL  # superset of the characters of its texts
    begins: Texts = ANYHOW  # each of its texts that is not empty begins with one of these
    # a regular expression can describe it: no JSON value or recursive rule inside, and at most `MAX_OPEN` open texts
    regular = True
    n_open = 0  # number of texts up to a delimiter inside


class Literal(Node):
    def __init__(self, text: str) -> None:
        self.text = text
        self.nullable = not text
        self.first, self.alphabet = letters(text[:1]), letters(text)
        self.begins = frozenset([text] if text else [])


class Chars(Node):
    """`least` to `most` characters of a class; `most` None: any number."""

    def __init__(self, ranges: tuple[tuple[int, int], ...], negated: bool, least: int, most: int | None) -> None:
        self.ranges, self.negated, self.least, self.most = ranges, negated, least, most
        self.nullable = least == 0
        self.first = self.alphabet = frozenset(
            letter for letter in ALL if self.has(letter) or (letter == BEYOND and self._goes_beyond())
        )
        self.more = NONE if most == least else self.first

    def _goes_beyond(self) -> bool:
        return self.negated or any(high >= 128 for _, high in self.ranges)

    def has(self, character: str) -> bool:
        return any(low <= ord(character) <= high for low, high in self.ranges) != self.negated


class Quoted(Node):
    """The text between the quotes of a JSON-like string."""

    nullable = True

    def __init__(self, quote: str) -> None:
        self.quote = quote
        self.first = self.more = ALL - letters(quote)


class Until(Node):
    """Any text without one of the delimiters. `seen`: characters already taken from its beginning that may be part of
    one.
    """

    nullable = True
    more = ALL
    n_open = 1

    def __init__(self, delimiters: tuple[str, ...], seen: str) -> None:
        self.delimiters, self.seen = delimiters, seen


class UpTo(Node):
    """Any text up to and including the first of the delimiters, if that one is `end`; empty `end`: any of them."""

    n_open = 1

    def __init__(self, delimiters: tuple[str, ...], end: str) -> None:
        self.delimiters, self.end = delimiters, end


class Json(Node):
    """A JSON value that follows a schema; the schema is written as JSON."""

    first = frozenset('{["-tfn0123456789')
    regular = False

    def __init__(self, schema: str) -> None:
        self.schema = schema


class Sequence(Node):
    def __init__(self, items: tuple[Node, ...]) -> None:
        self.items = items
        self.nullable = all(item.nullable for item in items)
        self.first = first_of(items)
        self.regular = all(item.regular for item in items)
        self.n_open = sum(item.n_open for item in items)

    @lazy
    def more(self) -> Letters:
        ends = list(_reached(self.items[::-1]))  # the last item that takes text, and those after it
        # if an item can take text of the next one, a text can be split, and then continue, in two ways
        unclear = [item.alphabet for i, item in enumerate(self.items[:-1]) if runs_into(item, self.items[i + 1 :])]
        return union(
            [*(item.more for item in ends), *(item.first for item in ends[: None if self.nullable else -1]), *unclear]
        )

    @lazy
    def alphabet(self) -> Letters:
        return union(item.alphabet for item in self.items)

    @lazy
    def begins(self) -> Texts:
        return begins_of(self.items)


class Choice(Node):
    def __init__(self, items: tuple[Node, ...]) -> None:
        self.items = items
        self.nullable = any(item.nullable for item in items)
        self.first = union(item.first for item in items)
        self.n_open = sum(item.n_open for item in items)
        self.regular = self.n_open <= MAX_OPEN and all(item.regular for item in items)

    @lazy
    def more(self) -> Letters:
        return union([*(item.more for item in self.items), self._after_shorter()])

    @lazy
    def alphabet(self) -> Letters:
        return union(item.alphabet for item in self.items)

    @lazy
    def begins(self) -> Texts:
        return frozenset().union(*(item.begins for item in self.items))

    def _after_shorter(self) -> Letters:
        """Return the characters that can follow an alternative that is the beginning of a longer one; ALL if that is
        unknown.
        """
        texts = {item.text for item in self.items if isinstance(item, Literal)}
        begun = union(letters(text[:1]) for text in texts)
        known, stems = set(texts), {text[:n] for text in texts for n in range(len(text))}
        for item in self.items:
            if isinstance(item, Literal):
                continue
            if not item.first.isdisjoint(begun) and any(
                text in known or text in stems or shorter(text, known) for text in item.begins
            ):
                return ALL
            begun |= item.first
            known |= item.begins
            stems |= {text[:n] for text in item.begins for n in range(len(text))}
        return letters("".join(text[n] for text in texts for n in shorter(text, texts)))


class Repeat(Node):
    def __init__(self, item: Node, least: int, most: int | None) -> None:
        self.item, self.least, self.most = item, least, most
        self.nullable = least == 0 or item.nullable
        self.first = item.first
        self.more = item.more if most == 1 else union((item.more, item.first))
        self.alphabet = item.alphabet
        self.regular = item.regular
        self.n_open = item.n_open

    @lazy
    def begins(self) -> Texts:
        return self.item.begins


class Rule(Node):
    """A node with a name, so that a grammar can contain itself.

    The facts about its body come from an earlier pass.
    """

    regular = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.body: Node | None = None


def letters(text: str) -> Letters:
    return frozenset(character if character < "\x80" else BEYOND for character in text)


def union(sets: Iterable[Letters]) -> Letters:
    return NONE.union(*sets)


def first_of(items: Iterable[Node]) -> Letters:
    """Return the characters that can begin a text of these items, one after the other."""
    found = NONE
    for item in items:  # most often there is one item to look at
        found = found | item.first if found else item.first
        if not item.nullable:
            break
    return found


def shorter(text: str, texts: Set[str]) -> list[int]:
    """Return the lengths of those of the texts with which `text` begins, except `text` itself."""
    return [n for n in range(len(text)) if text[:n] in texts]


def begins_of(items: Iterable[Node]) -> Texts:
    """Return texts such that each text of these items in sequence begins with one of them, if it is not empty."""
    return frozenset().union(*(item.begins for item in _reached(items)))


def runs_into(node: Node, rest: Collection[Node]) -> bool:
    """Whether text of the rest could be taken for a part of the node."""
    follows = first_of(rest)
    if not follows.isdisjoint(node.more):
        return True
    return node.nullable and not follows.isdisjoint(node.first) and not _apart(node.begins, begins_of(rest))


def _apart(some: Texts, others: Texts) -> bool:
    """Whether no text of either set begins with a text of the other."""
    return some.isdisjoint(others) and not any(
        shorter(text, texts) for these, texts in ((some, others), (others, some)) for text in these
    )


def _reached(items: Iterable[Node]) -> Iterator[Node]:
    """Yield the items up to and including the first one that is not nullable."""
    for item in items:
        yield item
        if not item.nullable:
            return


class Grammar:
    """Makes nodes, and takes text from them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Node] = {}
        self._resolved: dict[Node, Node] = {}
        self._n_loops = 0
        self.empty = self.literal("")
        few_blanks = Chars(((9, 9), (32, 32)), False, 0, 20)
        # the white space that llama.cpp's grammars allow at places at which its parsers skip any
        self.space = self.choice(
            self.empty, self.literal(" "), self.sequence(self.repeat(self.literal("\n"), 1, 2), few_blanks)
        )

    # --- making

    def _one(self, kind: Callable[..., Node], *arguments: Any) -> Node:
        key = (kind, *arguments)
        if key not in self._known:
            self._known[key] = kind(*arguments)
        return self._known[key]

    def literal(self, text: str) -> Node:
        return self._one(Literal, text)

    def chars(self, ranges: tuple[tuple[int, int], ...], negated: bool, least: int, most: int | None) -> Node:
        return self._one(Chars, ranges, negated, least, most) if most != 0 else self.empty

    def quoted(self, quote: str) -> Node:
        return self._one(Quoted, quote)

    def until(self, delimiters: tuple[str, ...], seen: str = "") -> Node:
        return self._one(Until, delimiters, seen)

    def up_to(self, delimiters: tuple[str, ...], end: str = "") -> Node:
        return self._one(UpTo, delimiters, end)

    def json(self, schema: Any) -> Node:
        return self._one(Json, json.dumps(schema, ensure_ascii=False))

    def sequence(self, *items: Node) -> Node:
        """Return the items one after the other; neighbouring literals become one."""
        flat: list[Node] = []
        for item in items:
            for part in item.items if isinstance(item, Sequence) else (item,):
                last = flat[-1] if flat else None
                if isinstance(part, Literal) and isinstance(last, Literal):
                    flat[-1] = self.literal(last.text + part.text)
                elif part is not self.empty:
                    flat.append(part)
        return self._one(Sequence, tuple(flat)) if len(flat) > 1 else flat[0] if flat else self.empty

    def choice(self, *items: Node) -> Node:
        """Return the choice of one of the items, of which there is at least one."""
        flat = list(
            dict.fromkeys(part for item in items for part in (item.items if isinstance(item, Choice) else (item,)))
        )
        return self._one(Choice, tuple(flat)) if len(flat) > 1 else flat[0]

    def repeat(self, item: Node, least: int, most: int | None) -> Node:
        if most == 0 or item is self.empty:
            return self.empty
        if (least, most) == (1, 1) or (most == 1 and item.nullable):
            return item
        if (
            most is None
            and item.nullable
            and isinstance(item, Sequence)
            and isinstance(item.items[0], Repeat)
            and item.items[0].most == 1
        ):
            # (call? space)+ as space (call space)*: if an item may be empty, no position tells one item from the next
            rest = self.sequence(*item.items[1:])
            return self.sequence(rest, self.repeat(self.sequence(item.items[0].item, rest), 0, None))
        return self._one(Repeat, item, least, most)

    # --- taking text from the front

    def after(self, node: Node, text: str) -> Node | None:
        """Return what may follow `text` in the texts of `node` that begin with it; None: no text does."""
        left: Node | None = node
        for character in text:
            left = self._after(left, character) if left is not None else None
        return left

    def after_each(self, node: Node, texts: Iterable[str]) -> Iterator[Node | None]:
        """Like `after` for many texts, whose common beginning is taken only once."""
        left: dict[str, Node | None] = {"": node}
        for text in texts:
            for n, character in enumerate(text, 1):
                if text[:n] not in left:
                    before = left[text[: n - 1]]
                    left[text[:n]] = self._after(before, character) if before is not None else None
            yield left[text]

    def _after(self, node: Node, character: str) -> Node | None:
        if isinstance(node, Literal):
            return self.literal(node.text[1:]) if node.text[:1] == character else None
        if isinstance(node, Chars):
            return (
                self.chars(node.ranges, node.negated, max(node.least - 1, 0), less(node.most))
                if node.has(character)
                else None
            )
        if isinstance(node, Until):
            return self._until_after(node, character)
        if isinstance(node, Sequence):
            head, *tail = node.items
            left = self._after(head, character)
            if left is None and not head.nullable:
                return None
            rest = self.sequence(*tail)
            return self._either(self._then(left, rest), self._after(rest, character) if head.nullable else None)
        if isinstance(node, Choice):
            return self._either(*(self._after(item, character) for item in node.items))
        if isinstance(node, Repeat):
            return self._then(
                self._after(node.item, character), self.repeat(node.item, max(node.least - 1, 0), less(node.most))
            )
        if isinstance(node, Rule) and node.body is not None:
            return self._after(node.body, character)
        if isinstance(node, Json) or (letters(character).isdisjoint(node.first)):
            return None  # no value begins within a prompt or a delimiter
        raise Unresolved(f"cannot take {character!r} from a {type(node).__name__}")

    def _until_after(self, node: Until, character: str) -> Node | None:
        seen = node.seen + character
        if any(delimiter in seen for delimiter in node.delimiters):
            return None
        kept = (seen[i:] for i in range(len(seen)))
        return self.until(node.delimiters, next((s for s in kept if any(d.startswith(s) for d in node.delimiters)), ""))

    def _then(self, head: Node | None, rest: Node) -> Node | None:
        return None if head is None else self.sequence(head, rest)

    def _either(self, *items: Node | None) -> Node | None:
        found = [item for item in items if item is not None]
        return self.choice(*found) if found else None

    # --- delimiters

    def resolve(self, node: Node) -> Node:
        """Replace each "any text until a delimiter" that something follows by a lexeme that ends with the delimiter."""
        return self._resolve(node, self.empty, self.empty)

    def _resolve(self, node: Node, rest: Node, resolved_rest: Node) -> Node:
        """Resolve `node` followed by `rest`; `resolved_rest` is `rest` resolved."""
        if not _is_open(node):
            return self.sequence(self._inside(node), resolved_rest)
        if isinstance(node, Until):
            return self._bounded(node, rest, resolved_rest)
        if isinstance(node, Sequence):
            return self._resolve_items(node.items, rest, resolved_rest)
        if isinstance(node, Choice):
            return self.choice(*(self._resolve(item, rest, resolved_rest) for item in node.items))
        assert isinstance(node, Repeat)
        if node.most == 1:
            return self.choice(self._resolve(node.item, rest, resolved_rest), resolved_rest)
        return self._loop(node, rest, resolved_rest)

    def _resolve_items(self, items: tuple[Node, ...], rest: Node, resolved_rest: Node) -> Node:
        """Resolve the items of a sequence. The items after one are joined only if that one ends open: a call has many
        items, and joining the rest for each of them would copy them again and again.
        """
        resolved = [resolved_rest]  # from the last to the first
        for i in reversed(range(len(items))):
            if _is_open(items[i]):
                behind = self.sequence(*items[i + 1 :], rest)
                resolved = [self._resolve(items[i], behind, self.sequence(*reversed(resolved)))]
            else:
                resolved.append(self._inside(items[i]))
        return self.sequence(*reversed(resolved))

    def _inside(self, node: Node) -> Node:
        """Resolve a node that does not end with an open text, so the text after it does not matter."""
        if node not in self._resolved:
            result = node
            if isinstance(node, Sequence):
                result = self._resolve_items(node.items, self.empty, self.empty)
            elif isinstance(node, Choice):
                result = self.choice(*(self._inside(item) for item in node.items))
            elif isinstance(node, Repeat):
                result = self.repeat(self._inside(node.item), node.least, node.most)
            elif isinstance(node, Rule):
                self._resolved[node] = node
                node.body = self.resolve(node.body or self.empty)
            self._resolved[node] = result
        return self._resolved[node]

    def _bounded(self, node: Until, rest: Node, resolved_rest: Node) -> Node:
        if node.seen:
            raise Unresolved(f"half of a delimiter was taken: {node.seen!r}")
        found: list[Node] = [node] if rest.nullable else []
        for delimiter in node.delimiters:
            left = self.after(rest, delimiter)
            if left is not None:
                found.append(self.sequence(self.up_to(node.delimiters, delimiter), self.resolve(left)))
        return self.choice(*found) if found else self.sequence(node, resolved_rest)

    def _loop(self, node: Repeat, rest: Node, resolved_rest: Node) -> Node:
        """Resolve a repetition of items that end open: after an item comes another one, or the rest."""
        if node.most is not None or node.least > 1:
            raise Unresolved("a counted repetition of open text")
        self._n_loops += 1
        plain, loop = Rule(f"loop-{self._n_loops}-plain"), Rule(f"loop-{self._n_loops}")
        plain.body = self.choice(self.sequence(node.item, plain), rest)
        plain.nullable = rest.nullable
        again = self._resolve(node.item, plain, loop)
        loop.body = self.choice(again, resolved_rest)
        return loop if node.least == 0 else again


def less(most: int | None) -> int | None:
    """Return the limit of a repetition after one more turn."""
    return None if most is None else most - 1


def _is_open(node: Node) -> bool:
    """Whether a text may end with "any text until"."""
    if isinstance(node, Sequence):
        return any(_is_open(item) for item in _reached(node.items[::-1]))
    if isinstance(node, Choice):
        return any(_is_open(item) for item in node.items)
    if isinstance(node, Repeat):
        return _is_open(node.item)
    return isinstance(node, Until)


class Reader:
    """Reads the PEG parser that `apply` returned, as llama.cpp saves it.

    `schema_of(name)` returns the JSON schema for a schema node of that name. `content`, if given, replaces the answer's
    text. `one_call`: a repetition of nothing but calls has only one. Raises: Unresolved.
    """

    def __init__(
        self,
        grammar: Grammar,
        saved: str,
        schema_of: Callable[[str], Any],
        content: Node | None = None,
        one_call: bool = False,
    ) -> None:
        arena = json.loads(saved)
        self._grammar, self._schema_of, self._content, self._one_call = grammar, schema_of, content, one_call
        self._parsers: list[dict[str, Any]] = arena["parsers"]
        self._rules: dict[str, int] = arena["rules"]
        self._root: int = arena["root"]
        self._facts: dict[str, tuple[bool, Letters, Letters]] = {}  # facts about recursive rules: nullable, first, more
        self._made: dict[str, Node] = {}
        self._n_nodes = 0

    def root(self) -> Node:
        """Return the grammar of a whole answer, including the generation prompt."""
        return self._reading(lambda: self._read(self._root))

    def triggered(self) -> Node:
        """Return the grammar of the text from a trigger on: the rules that llama.cpp marks for that, which begin with
        their triggers.
        """
        rules = [parser for parser in self._parsers if parser["type"] == "rule" and parser["trigger"]]
        names = sorted({rule["name"] for rule in rules if self._rules.get(rule["name"]) is not None})
        if not names:
            raise Unresolved("no rule is marked as a trigger's")
        return self._reading(lambda: self._grammar.choice(*(self._rule(name) for name in names)))

    def _reading(self, read: Callable[[], Node]) -> Node:
        """Repeat the reading until the facts about recursive rules no longer change."""
        while True:
            self._made, self._n_nodes, before = {}, 0, dict(self._facts)
            node = read()
            if self._facts == before:
                return node

    def _read(self, index: int) -> Node:
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            raise Unresolved("the grammar is too large")
        make, parser = self._grammar, self._parsers[index]
        kind = parser["type"]
        if kind in ("epsilon", "start", "end", "and", "not"):  # lookahead takes no text
            return make.empty
        if kind == "literal":
            return make.literal(parser["literal"])
        if kind == "sequence":
            return make.sequence(*(self._read(child) for child in parser["children"]))
        if kind == "choice":
            return (
                make.choice(*(self._read(child) for child in parser["children"])) if parser["children"] else make.empty
            )
        if kind == "repetition":
            item = self._read(parser["child"])
            # a text may be empty, JSON may not
            least = 1 if self._content is not None and item is self._content else parser["min_count"]
            most = 1 if self._one_call and self._is_call(parser["child"]) else _most(parser)
            return make.repeat(item, least, most)
        if kind == "any":
            return make.chars((), True, 1, 1)
        if kind == "space":
            return make.space
        if kind == "chars":
            ranges = tuple((part["start"], part["end"]) for part in parser["ranges"])
            return make.chars(ranges, parser["negated"], parser["min_count"], _most(parser))
        if kind == "string":
            return make.quoted(parser["delimiter"])
        if kind == "until":
            return make.until(_fewer(parser["delimiters"]))
        if kind == "ac":
            return make.up_to(tuple(parser["delimiters"]))
        if kind == "schema":
            return make.json(self._schema_of(parser["name"]))
        if kind == "gbnf":  # the GBNF accepts less than the parser: nothing, or another rule
            return self._rule(parser["grammar"]) if parser["grammar"] else make.empty
        if kind == "tag" and parser["tag"] == "content" and self._content is not None:
            return self._content
        if kind in ("tag", "atomic"):
            return self._read(parser["child"])
        if kind in ("rule", "ref"):
            return self._rule(parser["name"])
        raise Unresolved(f"a parser of an unknown kind, {kind}")

    def _is_call(self, index: int) -> bool:
        """Whether a parser reads calls, but no content and no thoughts. If each call has tags of its own, llama.cpp's
        parsers read several calls, whatever `parallel_tool_calls` says.
        """
        tags: set[str] = set()
        seen: set[int] = set()
        waiting = [index]
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            seen.add(index)
            parser = self._parsers[index]
            if parser["type"] == "tag":
                tags.add(parser["tag"])
            if parser["type"] in ("rule", "ref") and parser["name"] in self._rules:
                waiting.append(self._rules[parser["name"]])
            waiting += parser.get("children") or ()
            if isinstance(parser.get("child"), int):
                waiting.append(parser["child"])
        return "tool" in tags and not tags & {"content", "reasoning"}

    def _rule(self, name: str) -> Node:
        """Return the rule's body, or the rule itself if it contains itself."""
        if name in self._made:
            made = self._made[name]
            if isinstance(made, Rule) and made.body is None:  # met again inside its own body
                self._facts.setdefault(name, (False, NONE, NONE))
            return made
        if name not in self._rules:
            raise Unresolved(f"no rule has the name {name}")
        rule = self._made[name] = Rule(name)
        rule.nullable, rule.first, rule.more = self._facts.get(name, (False, NONE, NONE))
        body = self._read(self._parsers[self._rules[name]]["child"])
        if name in self._facts:
            rule.body = body
            self._facts[name] = (body.nullable, body.first, body.more)
            return rule
        self._made[name] = body
        return body


def _fewer(delimiters: list[str]) -> tuple[str, ...]:
    """Return the delimiters, or the common beginnings of groups of them: with one delimiter for each of 200 tools
    llguidance refuses the grammar.
    """
    if len(delimiters) <= MAX_DELIMITERS:
        return tuple(delimiters)
    groups: dict[str, list[str]] = {}
    for delimiter in delimiters:
        groups.setdefault(delimiter[:STEM], []).append(delimiter)
    return tuple(common_beginning(group) for group in groups.values())


def common_beginning(texts: list[str]) -> str:
    first, last = min(texts), max(texts)
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _most(parser: dict[str, Any]) -> int | None:
    return None if parser["max_count"] < 0 else int(parser["max_count"])
