"""Writes a grammar down in llguidance's dialect of Lark.

llguidance's lexer is greedy: it takes the longest text that a lexeme of those possible at a place matches, and never goes back.
So a cut between two lexemes is made only where the first cannot go on with what the second begins with; else they become one.
"""

from __future__ import annotations

import json

from uma_gateway.chat.grammar import (
    Chars,
    Choice,
    First,
    Grammar,
    Json,
    Literal,
    Node,
    Quoted,
    Repeat,
    Rule,
    Sequence,
    Unsettled,
    Until,
    UpTo,
    overlap,
    union,
)

_ANY_TEXT = "(?s:.*)"


def write_lark(grammar: Grammar, root: Node) -> str:
    """Return the Lark text of a settled grammar. Raises: Unsettled."""
    writer = _Writer(grammar)
    start = writer.body(root)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules, *writer.terminals]) + "\n"


class _Writer:
    def __init__(self, grammar: Grammar) -> None:
        self.rules: list[str] = []
        self.terminals: list[str] = []
        self._grammar = grammar
        self._rule_names: dict[Node, str] = {}
        self._terminal_names: dict[str, str] = {}

    # --- rules

    def body(self, node: Node) -> str:
        """A rule's right side."""
        if isinstance(node, Choice) and not node.regular:
            return " | ".join(self._sequence(item) for item in node.items)
        return self._sequence(node)

    def _sequence(self, node: Node) -> str:
        return " ".join(self._item(part) for part in self._cut(node)) or '""'

    def _cut(self, node: Node) -> list[Node]:
        """Split into parts that are lexemes, or no regular expressions; put together what cannot be cut."""
        make = self._grammar
        parts: list[Node] = []
        lexeme = make.empty
        waiting = list(node.items) if isinstance(node, Sequence) else [node]
        while waiting:
            item = waiting.pop(0)
            if lexeme is not make.empty and _runs_into(lexeme, item, waiting):
                if item.regular:
                    lexeme = make.sequence(lexeme, item)
                    continue
                inside = self._with_beginning(lexeme, item)
                if inside is not None:
                    waiting[:0] = list(inside.items) if isinstance(inside, Sequence) else [inside]
                    lexeme = make.empty
                    continue
            if lexeme is not make.empty:
                parts.append(lexeme)
            lexeme = make.empty
            if item.regular:
                lexeme = item
                continue
            inside = self._with_end(item, waiting)
            if inside is not None:
                waiting[:1] = [inside]
                continue
            parts.append(item)
        return parts if lexeme is make.empty else [*parts, lexeme]

    def _with_beginning(self, lexeme: Node, item: Node) -> Node | None:
        """`lexeme` and `item` with the lexeme inside the item; None where the item has no inside."""
        make = self._grammar
        if isinstance(item, Choice):
            return make.choice(*(make.sequence(lexeme, part) for part in item.items))
        if isinstance(item, Repeat):
            rest = make.repeat(item.item, max(item.least - 1, 0), None if item.most is None else item.most - 1)
            once = make.sequence(lexeme, item.item, rest)
            return once if item.least else make.choice(once, lexeme)
        if isinstance(item, Rule) and item.body is not None:
            return make.sequence(lexeme, item.body)
        return None

    def _with_end(self, item: Node, waiting: list[Node]) -> Node | None:
        """`item` with what follows it inside, where its end cannot be cut from that; None where it can, or has no inside."""
        make = self._grammar
        if not waiting or not overlap(item.more, _first_of(waiting)):
            return None
        if isinstance(item, Choice):
            return make.choice(*(make.sequence(part, waiting[0]) for part in item.items))
        if isinstance(item, Repeat) and item.most == 1:
            return make.choice(make.sequence(item.item, waiting[0]), waiting[0])
        return None

    def _item(self, node: Node) -> str:
        if node.regular:
            return self._terminal(node)
        if node not in self._rule_names:
            name = self._rule_names[node] = f"r{len(self._rule_names)}"
            place = len(self.rules)
            self.rules.append("")
            self.rules[place] = f"{name}: {self._rule_body(node)}"
        return self._rule_names[node]

    def _rule_body(self, node: Node) -> str:
        if isinstance(node, Json):
            return f"%json {node.schema}"
        if isinstance(node, Rule):
            if node.body is None:
                raise Unsettled(f"the rule {node.name} has no body")
            return self.body(node.body)
        if isinstance(node, Repeat):
            inside = self._item(node.item) if not isinstance(node.item, (Sequence, Choice)) else self._item(self._as_rule(node.item))
            return inside + _times(node.least, node.most)
        return self.body(node)

    def _as_rule(self, node: Node) -> Node:
        rule = Rule("")
        rule.body = node
        return rule

    # --- terminals

    def _terminal(self, node: Node) -> str:
        if isinstance(node, Literal):
            return _quote(node.text)
        return self._named(self._expression(node))

    def _named(self, expression: str) -> str:
        if expression not in self._terminal_names:
            self._terminal_names[expression] = f"T{len(self._terminal_names)}"
            self.terminals.append(f"{self._terminal_names[expression]}: {expression}")
        return self._terminal_names[expression]

    def _expression(self, node: Node) -> str:
        if node is self._grammar.space:
            return self._named('"" | " " | /\\n{1,2}[ \\t]{0,20}/')
        if isinstance(node, Literal):
            return _quote(node.text)
        if isinstance(node, Chars):
            return f"/{_class(node)}{_times(node.least, node.most)}/"
        if isinstance(node, Quoted):
            quote = _escape_regex(node.quote)
            return f'/([^{quote}\\\\]|\\\\(["\\\\\\/ bfnrt{quote}]|u[0-9a-fA-F]{{4}}))*/'
        if isinstance(node, Until):
            return self._named(_until(node))
        if isinstance(node, UpTo):
            return self._named(_up_to(node))
        if isinstance(node, Sequence):
            return " ".join(self._grouped(item) for item in node.items)
        if isinstance(node, Choice):
            return " | ".join(self._grouped(item) for item in node.items)
        if isinstance(node, Repeat):
            return self._grouped(node.item) + _times(node.least, node.most)
        raise Unsettled(f"a {type(node).__name__} is no regular expression")

    def _grouped(self, node: Node) -> str:
        expression = self._expression(node)
        return f"({expression})" if isinstance(node, (Sequence, Choice, Repeat)) and node is not self._grammar.space else expression


def _runs_into(lexeme: Node, item: Node, waiting: list[Node]) -> bool:
    """True where the lexer could take for the lexeme what belongs to that which follows."""
    follows = _first_of([item, *waiting])
    if isinstance(lexeme, UpTo) or (isinstance(lexeme, Sequence) and isinstance(lexeme.items[-1], UpTo)):
        return False  # it ends with its delimiter; where it can go on, it should: the delimiter stood inside the thinking
    return overlap(lexeme.more, follows) or (lexeme.nullable and overlap(lexeme.first, follows))


def _first_of(items: list[Node]) -> First:
    found = []
    for item in items:
        found.append(item.first)
        if not item.nullable:
            break
    return union(found)


def _times(least: int, most: int | None) -> str:
    if (least, most) == (1, 1):
        return ""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return short or f"{{{least},{'' if most is None else most}}}"


def _until(node: Until) -> str:
    if node.seen:
        raise Unsettled(f"half of a delimiter was taken: {node.seen!r}")
    if not node.delimiters:
        return f"/{_ANY_TEXT}/"
    return f"/{_ANY_TEXT}/ & ~/{_ANY_TEXT}({_alternatives(node.delimiters)}){_ANY_TEXT}/"


def _up_to(node: UpTo) -> str:
    ends = (node.end,) if node.end else node.delimiters
    return f"/{_ANY_TEXT}({_alternatives(ends)})/ & ~/{_ANY_TEXT}({_alternatives(node.delimiters)})(?s:.+)/"


def _alternatives(texts: tuple[str, ...]) -> str:
    return "|".join(_escape_regex(text) for text in texts)


def _class(node: Chars) -> str:
    if not node.ranges:
        return "(?s:.)" if node.negated else "[^\\s\\S]"
    parts = "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" if high > low else f"\\u{{{low:x}}}" for low, high in node.ranges)
    return f"[{'^' if node.negated else ''}{parts}]"


def _escape_regex(text: str) -> str:
    return "".join(c if c.isalnum() or c in "_ <>=\"'" else f"\\u{{{ord(c):x}}}" for c in text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
