"""Builds the form that an answer must have, as the wire's `constraint`: from a template's parser, tools and schemas to
a Lark grammar.

If the grammar cannot be built here, the daemon gets llama.cpp's GBNF instead, which describes the parser's text less
precisely.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from uma_core.constraint.lark import TooLarge, check, check_size
from uma_gateway.chat.grammar import Grammar, Node, Reader, Unresolved
from uma_gateway.chat.kept import kept
from uma_gateway.chat.lark import write_lark
from uma_gateway.chat.lazy import lazy
from uma_gateway.chat.schema import Schema, constrained, part

Constraint = dict[str, Any]

_PLAIN_TEXT = "Hello, world."
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # a tool's name that JSON needs no escapes for
_N_IN_PATTERN = 500  # characters of names; the daemon accepts patterns of 1,000


class Schemas:
    """The schemas of one request, by the names that llama.cpp's parsers give them."""

    def __init__(
        self, tools: list[dict[str, Any]], json_schema: Schema | None, is_strict: bool, one_call: bool = False
    ) -> None:
        self.one_call = one_call  # the answer calls one tool at most
        self.tools = {tool["function"]["name"]: tool["function"] for tool in tools}
        self._json_schema, self._is_strict = json_schema, is_strict
        self._made: dict[str, Schema] = {}

    @lazy
    def _text(self) -> str:
        return json.dumps([self.tools, self._json_schema, self._is_strict, self.one_call])

    def __str__(self) -> str:
        """Return everything that the schemas contain: the key under which results of earlier requests are kept."""
        return self._text

    @lazy
    def _arguments(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return each argument rule's tool, and the argument's place in the tool's parameters."""
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        for name, function in self.tools.items():
            for rule, pointer in _argument_rules(function.get("parameters")):
                found.setdefault(f"tool-{name}-arg{rule}-schema", (name, pointer))
                found.setdefault(f"ling3-arg-{name}{rule}-schema", (name, pointer))
        return found

    def __call__(self, name: str) -> Schema:
        """Return the schema in the daemon's form; any JSON if the name is unknown. Not to be changed: a parser is read
        several times, and gets the same schema each time.
        """
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Schema:
        if name.startswith("response-format") and self._json_schema is not None:
            return constrained(self._json_schema, self._is_strict)
        tool = self.tools.get(name.removeprefix("tool-").removesuffix("-schema"))
        pointer: tuple[str, ...] = ()
        if tool is None and name in self._arguments:
            tool_name, pointer = self._arguments[name]
            tool = self.tools[tool_name]
        if tool is None:
            return constrained({}, False)
        whole = tool.get("parameters") or {"type": "object", "properties": {}}
        return constrained(part(whole, pointer), bool(tool.get("strict")))

    def with_any_arguments(self) -> Schemas:
        """Return the same tools, with any object as their arguments."""
        tools = [{"function": {"name": name, "parameters": {"type": "object"}}} for name in self.tools]
        return Schemas(tools, self._json_schema, self._is_strict, self.one_call)


def _argument_rules(
    schema: Any, rule: str = "", pointer: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rules that parsers of tagged arguments make for the parts of a schema, and where these parts are."""
    if not isinstance(schema, dict):
        return
    if pointer:
        yield rule, pointer
    for name, sub in schema.get("properties", {}).items() if isinstance(schema.get("properties"), dict) else ():
        yield from _argument_rules(sub, f"{rule}-{name}", (*pointer, "properties", name))
    if "items" in schema:
        yield from _argument_rules(schema["items"], f"{rule}-item", (*pointer, "items"))
    for key in ("anyOf", "oneOf"):
        for i, sub in enumerate(schema[key]) if isinstance(schema.get(key), list) else ():
            yield from _argument_rules(sub, f"{rule}-{i}", (*pointer, key, str(i)))


def constraint_of(
    applied: dict[str, Any], schemas: Schemas, must_call: bool = False, begun: str = ""
) -> Constraint | None:
    """Return the constraint of an `apply` that came with a grammar; None without a grammar.

    `must_call`: nothing but thinking may come before a call. `begun`: the part of the answer's text that the generation
    prompt contains.
    """
    if not applied["has_grammar"]:
        return None
    triggers = [_trigger(trigger) for trigger in applied["grammar_triggers"]] if applied["grammar_lazy"] else []
    words_only = all(trigger["type"] == "word" for trigger in triggers)
    # A trigger's word may also occur inside a thought, and other triggers depend on their position. In these cases the
    # grammar covers the whole answer.
    follows_all = not applied["grammar_lazy"] or applied["supports_thinking"] or not words_only
    key = (applied["parser"], applied["generation_prompt"], schemas)
    lark = _calls_lark(*key) if must_call else ""
    if follows_all and not lark:
        lark = _whole_lark(*key, applied["grammar_lazy"] and words_only)
    if lark:
        return {"lark": lark}
    if triggers:
        lark = _triggered_lark(applied["parser"], schemas)
        return {"lark": lark, "triggers": triggers} if lark else {"gbnf": applied["gbnf"](), "triggers": triggers}
    if begun:  # inside JSON only the daemon can continue
        lark = _whole_lark(applied["parser"], applied["generation_prompt"].removesuffix(begun), schemas, False)
        if lark:
            return {"lark": lark, "prefix": begun}
    return {"gbnf": applied["gbnf"](), "prefix": applied["generation_prompt"]}


def unmarked_constraint(must_call: dict[str, Any], schemas: Schemas) -> Constraint | None:
    """Return the constraint of optional calls that differ from an answer only by their own JSON (Llama 3.x): the
    grammar of a required call applies from `{"name": <a tool>, "parameters":` on.

    `must_call`: an `apply` whose calls are required. None if its calls do not begin so.
    """
    key = must_call["parser"], must_call["generation_prompt"], schemas
    lark, names = _calls_lark(*key), _unmarked_names(*key)
    if not lark or not names:
        return None
    return {"lark": lark, "triggers": [{"type": "pattern", "value": _call_begins(batch)} for batch in _batches(names)]}


def _batches(names: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the names in groups, each of which fits into one pattern."""
    batch: list[str] = []
    for name in names:
        if batch and sum(map(len, batch)) + len(name) > _N_IN_PATTERN:
            yield batch
            batch = []
        batch.append(name)
    yield batch


def _call_begins(names: list[str]) -> str:
    """Return a pattern for the grammar's text up to the arguments, with as much white space as the grammar allows."""
    space = r"(?: |\n{1,2}[ \t]{0,20})?"
    words = [
        space + space + r"\{",
        rf'(?:"type"{space}:{space}"function"{space},{space})?"name"',
        ":",
        f'"(?:{"|".join(re.escape(name) for name in names)})"',
        ",",
        '"parameters"',
        ":",
    ]
    return "^" + space.join(words)


def json_constraint(applied: dict[str, Any], schemas: Schemas, begun: str = "") -> Constraint | None:
    """Return the constraint of a JSON answer, for a template without such answers: the JSON replaces the text."""
    lark = _json_lark(applied["parser"], applied["generation_prompt"], schemas)
    if lark or not begun:
        return {"lark": lark} if lark else None
    lark = _json_lark(applied["parser"], applied["generation_prompt"].removesuffix(begun), schemas)
    return {"lark": lark, "prefix": begun} if lark else None


def either_constraint(tools: dict[str, Any], text: dict[str, Any], schemas: Schemas) -> Constraint | None:
    """Return the constraint of an answer that either calls tools or is JSON. `tools` requires calls; `text` has
    none.
    """
    of_tools, of_text = ((each["parser"], each["generation_prompt"]) for each in (tools, text))
    lark = _either_lark(*of_tools, *of_text, text["has_grammar"], schemas)
    return {"lark": lark} if lark else None


def too_large(constraint: Constraint | None) -> str:
    """Return why the daemon would refuse a constraint, "" if it would accept it."""
    return _too_large(constraint.get("lark", ""), constraint.get("gbnf", "")) if constraint is not None else ""


@kept
def _too_large(lark: str, gbnf: str) -> str:
    try:
        check_size((lark or gbnf).encode())
        check(lark)
    except TooLarge as error:
        return str(error)
    return ""


def _trigger(trigger: dict[str, str]) -> dict[str, str]:
    """Return llama.cpp's trigger in the wire's form. Its patterns are tried at every token, so `$` means "so far"."""
    kind, value = trigger["type"], trigger["value"]
    if kind == "pattern_full":
        kind, value = "pattern", "^" + value.removeprefix("^")
    return {"type": kind, "value": value.removesuffix("$") if kind == "pattern" else value}


def _kept_lark(build: Callable[..., Node]) -> Callable[..., str]:
    """Wrap a function that builds a grammar: return it as Lark, "" if it cannot be built here. The grammars of recent
    requests are kept.
    """

    @kept
    @functools.wraps(build)
    def lark(*of: Any) -> str:
        grammar = Grammar()
        try:
            return write_lark(grammar, grammar.resolve(build(grammar, *of)))
        except (Unresolved, RecursionError):
            return ""

    return lark


@_kept_lark
def _whole_lark(grammar: Grammar, parser: str, generation_prompt: str, schemas: Schemas, must_take_text: bool) -> Node:
    """Build the grammar of the text after the generation prompt."""
    root = _read(grammar, parser, generation_prompt, schemas)
    if must_take_text:  # some parsers of optional calls end only with a call; as grammars they would force one
        rest = grammar.after(root, _PLAIN_TEXT)
        if rest is None or not rest.nullable:
            raise Unresolved("only a call ends an answer")
    return root


@_kept_lark
def _calls_lark(grammar: Grammar, parser: str, generation_prompt: str, schemas: Schemas) -> Node:
    """Build the grammar of calls without content: a model that may write content first may never get to the call."""
    root = _read(grammar, parser, generation_prompt, schemas, grammar.empty)
    if root.nullable:
        raise Unresolved("no call has to come")
    return root


@kept
def _unmarked_names(parser: str, generation_prompt: str, schemas: Schemas) -> tuple[str, ...]:
    """Return the tools whose calls begin as in `_call_begins`."""
    try:
        grammar = Grammar()
        root = _read(grammar, parser, generation_prompt, schemas, grammar.empty)
        names = [name for name in schemas.tools if _PLAIN_NAME.fullmatch(name)]
        calls = grammar.after_each(root, (f'{{"type": "function", "name": "{name}", "parameters": ' for name in names))
        return tuple(name for name, rest in zip(names, calls, strict=True) if rest is not None)
    except (Unresolved, RecursionError):
        return ()


@_kept_lark
def _triggered_lark(grammar: Grammar, parser: str, schemas: Schemas) -> Node:
    return Reader(grammar, parser, schemas, one_call=schemas.one_call).triggered()


@_kept_lark
def _json_lark(grammar: Grammar, parser: str, generation_prompt: str, schemas: Schemas) -> Node:
    return _read(grammar, parser, generation_prompt, schemas, _json_text(grammar, schemas))


@_kept_lark
def _either_lark(
    grammar: Grammar, tools: str, tools_prompt: str, text: str, text_prompt: str, knows_json: bool, schemas: Schemas
) -> Node:
    content = None if knows_json else _json_text(grammar, schemas)
    return grammar.choice(
        _read(grammar, tools, tools_prompt, schemas, grammar.empty),
        _read(grammar, text, text_prompt, schemas, content),
    )


def _read(grammar: Grammar, parser: str, generation_prompt: str, schemas: Schemas, content: Node | None = None) -> Node:
    """Return the rest of a parser's grammar after the end of the prompt, which the parser includes."""
    root = Reader(grammar, parser, schemas, content, schemas.one_call).root()
    rest = grammar.after(root, generation_prompt)
    if rest is None:
        raise Unresolved("the generation prompt does not fit the grammar")
    return rest


def _json_text(grammar: Grammar, schemas: Schemas) -> Node:
    return grammar.sequence(grammar.space, grammar.json(schemas("response-format")), grammar.space)
