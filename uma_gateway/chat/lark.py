"""Writes a grammar in llguidance's dialect of Lark.

llguidance's lexer is greedy: among the lexemes that are possible at a place it takes the longest match, and never goes
back. So two lexemes are separate only if the first cannot continue with the beginning of the second; otherwise the two
become one lexeme.
"""

from __future__ import annotations

import json
from typing import TypeGuard

from uma_gateway.chat.grammar import (
    ALL,
    NONE,
    Chars,
    Choice,
    Grammar,
    Json,
    Literal,
    Node,
    Quoted,
    Repeat,
    Rule,
    Sequence,
    Unresolved,
    Until,
    UpTo,
    common_beginning,
    first_of,
    less,
    letters,
    runs_into,
    shorter,
    union,
)

Parts = list[Node]
MAX_INSIDE = 8  # limit of moving a beginning into nested parts
_ANY_TEXT = "(?s:.*)"


def write_lark(grammar: Grammar, root: Node) -> str:
    """Return the Lark text of a resolved grammar. Raises: Unresolved."""
    writer = _Writer(grammar)
    start = writer.body(root)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules, *writer.terminals]) + "\n"


class _Writer:
    def __init__(self, grammar: Grammar) -> None:
        self.rules: list[str] = []
        self.terminals: list[str] = []
        self._grammar = grammar
        self._rule_names: dict[Node, str] = {}
        self._as_rules: dict[Node, Rule] = {}
        self._terminal_names: dict[str, str] = {}
        self._names_given: set[str] = set()

    # --- rules

    def body(self, node: Node) -> str:
        """Return a rule's right side."""
        if isinstance(node, Choice) and not node.regular:
            return " | ".join(self._written(parts) for parts in self._alternatives(node))
        return self._written(self._cut(node))

    def _written(self, parts: Parts) -> str:
        return " ".join(self._item(part) for part in parts) or '""'

    def _alternatives(self, node: Choice) -> list[Parts]:
        """Return the alternatives, cut. Alternatives with a common beginning stay in one lexeme as far as possible, so
        that none hides another.
        """
        cut = {item: self._cut(item) for item in node.items}
        rivals = _rivals(list(cut.items()))
        alone = [cut[item] for item in node.items if item not in rivals]
        joined = [parts for item in node.items if item in rivals for parts in self._uncut(item)]
        return [*alone, *self._with_common_beginning(joined, alone)] if joined else alone

    def _with_common_beginning(self, joined: list[Parts], others: list[Parts]) -> list[Parts]:
        """Move a common beginning of alternatives into one lexeme, and their rests into a rule after it. Otherwise each
        of an agent's tools would repeat the beginning, and the lexer would follow all of them at once.
        """
        make = self._grammar
        groups: dict[Node, list[Parts]] = {}
        for parts in joined:
            groups.setdefault(_before_literal(make, parts), []).append(parts)
        common = {key: _common_items(make, [_items(parts[0]) for parts in group]) for key, group in groups.items()}
        firsts = {
            key: [make.sequence(*common[key])] if common[key] else self._firsts(group) for key, group in groups.items()
        }
        beside = self._firsts(others)
        found: list[Parts] = []
        for key, group in groups.items():
            beginning = common[key]
            rivals = [*beside, *(first for other in groups if other is not key for first in firsts[other])]
            lexeme, text = make.sequence(*beginning), _last_text(beginning)
            rest = make.choice(*(_behind(make, beginning, parts) for parts in group)) if text else make.empty
            if text and _ends_for_certain(lexeme, text, rivals) and not _can_continue(lexeme, [rest]):
                found.append([lexeme, self._as_rule(rest)])
            else:
                found += group
        return found

    def _firsts(self, alternatives: list[Parts]) -> Parts:
        """Return the first parts of the alternatives, including those inside rules."""
        found: dict[Node, None] = {}
        waiting = [parts[0] for parts in alternatives if parts]
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found[node] = None
            body = node.body if isinstance(node, Rule) else node
            if body is not None and not body.regular:
                items = body.items if isinstance(body, Choice) else (body,)
                waiting += [parts[0] for parts in map(self._cut, items) if parts and parts[0] is not node]
        return [node for node in found if node.regular or isinstance(node, (Json, Repeat))]

    def _uncut(self, node: Node, n_inside: int = 0) -> list[Parts]:
        """Return the alternatives of a node, each with its beginning in one lexeme. The beginning ends before the first
        part that is not a regular expression, or after the first delimiter of an open text. `n_inside`: how often the
        beginning was moved into another part, which in loops might never end.
        """
        make = self._grammar
        items = _items(node)
        n = next(
            (i for i, item in enumerate(items) if not item.regular or (i and _ends_with_delimiter(items[i - 1]))),
            len(items),
        )
        lexeme, rest = make.sequence(*items[:n]), items[n + 1 :]
        if n == len(items):
            return [[lexeme]]
        is_over = items[n].regular or _ends_with_delimiter(lexeme)
        inside = None if is_over or n_inside == MAX_INSIDE else self._with_beginning(lexeme, items[n])
        if inside is None:
            return [[*([] if lexeme is make.empty else [lexeme]), *self._cut(make.sequence(*items[n:]))]]
        found = inside.items if isinstance(inside, Choice) else (inside,)
        return [parts for item in found for parts in self._uncut(make.sequence(item, *rest), n_inside + 1)]

    def _cut(self, node: Node) -> Parts:
        """Split into parts that are lexemes, or not regular expressions; join parts between which no cut is
        possible.
        """
        if node is self._grammar.empty:
            return []
        make = self._grammar
        parts: list[Node] = []
        lexeme = make.empty
        waiting = _items(node)
        while waiting:
            can_continue = lexeme is not make.empty and _can_continue(lexeme, waiting)
            item = waiting.pop(0)
            if can_continue:
                if item.regular:
                    lexeme = make.sequence(lexeme, item)
                    continue
                inside = self._with_beginning(lexeme, item)
                if inside is not None:
                    waiting[:0] = _items(inside)
                    lexeme = make.empty
                    continue
            if lexeme is not make.empty:
                parts.append(lexeme)
            lexeme = make.empty
            if item.regular and _is_loop(item) and _can_continue(item, waiting):
                return [*parts, self._loop(item, waiting)]
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
        """Return `item` with `lexeme` moved into its beginning; None if the item has no inside."""
        make = self._grammar
        if isinstance(item, Choice):
            return make.choice(*(make.sequence(lexeme, part) for part in item.items))
        if isinstance(item, Repeat):
            rest = make.repeat(item.item, max(item.least - 1, 0), less(item.most))
            if item.most != 1:  # nothing may be moved into it, or this would never end
                rest = self._as_rule(rest)
            once = make.sequence(lexeme, item.item, rest)
            return once if item.least else make.choice(once, lexeme)
        return None

    def _loop(self, loop: Repeat, rest: Parts) -> Node:
        """Return a loop and the rest as a rule: another turn of the loop, or the rest. In one lexeme with the beginning
        of the rest, the loop would be repeated for each of the rest's alternatives.
        """
        make = self._grammar
        rule = Rule("")
        turn, end = make.sequence(loop.item, rule), make.sequence(*rest)
        if isinstance(turn, Sequence) and isinstance(end, Sequence) and turn.items[0] is end.items[0]:
            rule.body = make.sequence(
                turn.items[0], make.choice(make.sequence(*turn.items[1:]), make.sequence(*end.items[1:]))
            )
        else:
            rule.body = make.choice(turn, end)
        rule.nullable, rule.first, rule.more = rule.body.nullable, rule.body.first, rule.body.more
        return rule

    def _with_end(self, item: Node, waiting: list[Node]) -> Node | None:
        """Return `item` with the text that follows moved inside, if no cut between the two is possible. None: a cut is
        possible, or the item has no inside.
        """
        make = self._grammar
        if not waiting or item.more.isdisjoint(first_of(waiting)):
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
                raise Unresolved(f"the rule {node.name} has no body")
            return self.body(node.body)
        if isinstance(node, Repeat):
            inside = self._as_rule(node.item) if isinstance(node.item, (Sequence, Choice)) else node.item
            return self._item(inside) + _times(node.least, node.most)
        return self.body(node)

    def _as_rule(self, node: Node) -> Node:
        if node not in self._as_rules:
            rule = self._as_rules[node] = Rule("")
            rule.body, rule.nullable, rule.first, rule.more = node, node.nullable, node.first, node.more
        return self._as_rules[node]

    # --- terminals

    def _terminal(self, node: Node) -> str:
        if isinstance(node, Literal):
            return _quote(node.text)
        return self._named(self._expression(node))

    def _named(self, expression: str) -> str:
        if expression in self._names_given:
            return expression
        if expression not in self._terminal_names:
            self._terminal_names[expression] = f"T{len(self._terminal_names)}"
            self._names_given.add(self._terminal_names[expression])
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
        raise Unresolved(f"a {type(node).__name__} is not a regular expression")

    def _grouped(self, node: Node) -> str:
        expression = self._expression(node)
        is_compound = isinstance(node, (Sequence, Choice, Repeat)) and node is not self._grammar.space
        return f"({expression})" if is_compound else expression


def _items(node: Node) -> Parts:
    return list(node.items) if isinstance(node, Sequence) else [node]


def _last(node: Node) -> Node:
    return node.items[-1] if isinstance(node, Sequence) else node


def _before_literal(make: Grammar, parts: Parts) -> Node:
    """Return the part of an alternative before its first literal; all of it if there is none."""
    items = _items(parts[0]) if parts else []
    n = next((i for i, item in enumerate(items) if isinstance(item, Literal)), len(items))
    return make.sequence(*items[:n])


def _common_items(make: Grammar, several: list[Parts]) -> Parts:
    """Return the common beginning of several alternatives, up to the end of a literal; [] if there is none, or only one
    alternative.
    """
    common: Parts = []
    for items in zip(*several, strict=False) if len(several) > 1 else ():
        if all(item is items[0] for item in items):
            common.append(items[0])
            continue
        texts = [item.text for item in items if isinstance(item, Literal)]
        beginning = common_beginning(texts) if len(texts) == len(items) else ""
        common += [make.literal(beginning)] if beginning else []
        break
    while common and not _last_text(common):
        common.pop()
    return common if len(common) > 1 else []


def _last_text(beginning: Parts) -> str:
    return beginning[-1].text if beginning and isinstance(beginning[-1], Literal) else ""


def _behind(make: Grammar, beginning: Parts, parts: Parts) -> Node:
    """Return the rest of an alternative whose first lexeme has this beginning."""
    half, *items = _items(parts[0])[len(beginning) - 1 :]
    assert isinstance(half, Literal)
    return make.sequence(make.literal(half.text[len(_last_text(beginning)) :]), *items, *parts[1:])


def _ends_for_certain(lexeme: Node, text: str, others: Parts) -> bool:
    """Whether the lexer ends here: no other lexeme continues after this one has ended with this text."""
    return all(lexeme.first.isdisjoint(other.first) or _is_over(other, text) for other in others)


def _is_over(lexeme: Node, text: str) -> bool:
    """Whether a lexeme never continues after the first place at which it contains this text."""
    if not letters(text) <= lexeme.alphabet:
        return True
    *head, last = _items(lexeme)
    if not letters(text[:1]).isdisjoint(union(item.alphabet for item in head)):
        return False
    if isinstance(last, UpTo):
        return any(delimiter in text for delimiter in last.delimiters)
    return isinstance(last, Literal) and (last.text == text or text not in last.text)


def _can_continue(lexeme: Node, rest: list[Node]) -> bool:
    """Whether no cut is possible between the lexeme and the rest."""
    # a lexeme that ends with a delimiter and can continue should do so: the delimiter was then inside the thought
    return runs_into(lexeme, rest) and not _ends_with_delimiter(lexeme)


def _is_loop(node: Node) -> TypeGuard[Repeat]:
    """Whether the node is a repetition, any number of times, of a text up to a delimiter."""
    return isinstance(node, Repeat) and (node.least, node.most) == (0, None) and _ends_with_delimiter(node.item)


def _ends_with_delimiter(node: Node) -> bool:
    last = _last(node)
    if isinstance(last, Choice):
        return any(map(_ends_with_delimiter, last.items)) and all(
            _ends_with_delimiter(item) or isinstance(_last(item), Literal) for item in last.items
        )
    return isinstance(last, UpTo)


def _rivals(alternatives: list[tuple[Node, Parts]]) -> set[Node]:
    """Return the alternatives that the lexer could follow to a place from which only another one continues. They differ
    in their first part; alternatives with the same first part are compared by the parts after it.
    """
    groups: dict[Node, list[tuple[Node, Parts]]] = {}
    for node, parts in alternatives:
        if parts:
            groups.setdefault(parts[0], []).append((node, parts[1:]))
    found = {node for first in _hidden(list(groups)) for node, _ in groups[first]}
    return found.union(*(_rivals(group) for group in groups.values() if len(group) > 1))


def _hidden(parts: Parts) -> list[Node]:
    """Return the parts that begin like another part. An open text may contain anything, so it does not count."""
    literals = {part.text for part in parts if isinstance(part, Literal) and part.text}
    longer = {text for text in literals if shorter(text, literals)}
    hidden_texts = longer | {text[:n] for text in longer for n in shorter(text, literals)}
    begun, twice = NONE, NONE  # characters that begin parts other than literals; those that begin several
    for part in parts:
        if not isinstance(part, Literal) and part.first != ALL:
            begun, twice = begun | part.first, twice | (begun & part.first)
    of_literals = union(letters(text[:1]) for text in literals)
    return [
        part
        for part in parts
        if (
            (part.text in hidden_texts or not part.first.isdisjoint(begun))
            if isinstance(part, Literal)
            else part.first != ALL and not part.first.isdisjoint(of_literals | twice)
        )
    ]


def _times(least: int, most: int | None) -> str:
    if (least, most) == (1, 1):
        return ""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return short or f"{{{least},{'' if most is None else most}}}"


def _until(node: Until) -> str:
    if node.seen:
        raise Unresolved(f"half of a delimiter was taken: {node.seen!r}")
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
