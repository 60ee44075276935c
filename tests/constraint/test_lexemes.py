"""Grammars over characters become rules over lexemes that mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraint import driving
from tests.constraint.llama_grammar import LlamaGrammar
from uma_core.constraint.gbnf import GbnfError, parse
from uma_core.constraint.lexemes import to_lark
from uma_core.errors import UmaError
from uma_core.types import Constraint

pytestmark = pytest.mark.model

ITEMS = st.sampled_from(
    ['"a"', '"b"', '"ab"', "[ab]", "[^a]", '("a" | "ba")', '"a"?', "[ab]{1,2}", '"b"*', "x", "y", '("b" x)?']
)
RULES = st.lists(st.lists(ITEMS, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=3).map(" | ".join)


@settings(max_examples=150)
@given(RULES, RULES, st.text("abc", max_size=7))
def test_regular_grammars_allow_exactly_what_llama_cpp_allows(tiny, compiler, fake, root, x, text):
    source = f'root ::= {root}\nx ::= {x.replace("x", "y")}\ny ::= "c" x | "b" y | "a"'.replace(
        'y ::= "c" x', 'y ::= "c" | "bb"'
    )
    try:
        grammar = LlamaGrammar(tiny.model, source)
    except ValueError:
        return  # llama.cpp does not support left recursion
    with grammar as theirs:
        expected = True
        for character in text:
            (token,) = tiny.tokenize(character, False, False)[-1:]
            expected = bool(theirs.allowed([token]))
            if not expected:
                break
            theirs.accept(token)
        expected = expected and bool(theirs.allowed(sorted(tiny.model.eog)))
    try:
        matcher = compiler.compile(fake, Constraint("gbnf", source))
    except UmaError as error:
        assert "only the empty answer" in error.message or "no token can follow" in error.message
        return
    assert driving.can_write(fake, matcher, text.encode()) == expected


def test_tokens_stand_for_themselves_and_in_literals_for_their_text():
    ids = {"<think>": 7, "</think>": 8, "<call>": 9}
    lark = to_lark(parse('root ::= <think> !</think>* "</think>x<call>" [a-z]', ids.get, ["</think>", "<call>"]))
    start, *_rules = lark.splitlines()[1:]
    assert start == "start: r0"
    assert "<[7]> (<[^8]>)* (<[8]> | T0)" in lark and "(<[9]> | T2)" in lark
    with pytest.raises(GbnfError, match="not a token"):
        parse("root ::= <think>", lambda name: None)
