"""Grammars in llguidance's dialect of Lark. test_constraint.py reads answers by whole grammars."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher

from uma_gateway.chat.grammar import Grammar, Node, Unresolved
from uma_gateway.chat.lark import write_lark

make = Grammar()
DIGITS = make.chars(((48, 57),), False, 1, None)


def is_valid(lark: str) -> bool:
    return LLMatcher.validate_grammar(json.dumps({"grammars": [{"lark_grammar": lark}]}), None) == ""


@pytest.mark.parametrize(
    "node",
    [
        make.literal("a"),
        make.literal('"\\/\n\t\x00é\u2028]['),
        make.empty,
        DIGITS,
        make.chars(((0, 0x10FFFF),), True, 0, 1),
        make.chars(((93, 94), (45, 45)), True, 1, 3),
        make.quoted('"'),
        make.until(("</a>", "[b]")),
        make.until(()),
        make.up_to(("</a>",)),
        make.json({"type": "object"}),
        make.choice(make.literal("ab"), make.literal("ac"), make.literal("b")),
        make.sequence(make.json(True), make.literal("\n"), make.json(True)),
        make.repeat(make.sequence(make.literal("<"), make.json(True)), 1, None),
        make.repeat(make.literal("ab"), 2, 5),
    ],
)
def test_llguidance_reads_what_is_written(node: Node) -> None:
    lark = write_lark(make, make.resolve(node))
    assert lark.startswith("%llguidance {}\nstart: ") and is_valid(lark), lark


def test_equal_parts_are_written_once() -> None:
    part = make.sequence(make.literal("<"), make.json({"type": "integer"}))
    lark = write_lark(make, make.resolve(make.sequence(part, make.literal(";"), part)))
    assert lark.count('"integer"') == 1


def test_a_delimiter_of_which_half_was_taken_is_not_written() -> None:
    with pytest.raises(Unresolved):
        write_lark(make, make.until(("</a>",), "</"))
