"""GBNF means the same as in llama.cpp, whose own grammar sampler serves as the reference."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.constraint import driving
from tests.constraint.llama_grammar import LlamaGrammar
from uma_core.constraint.gbnf import GbnfError, parse
from uma_core.constraint.lexemes import to_lark
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import Constraint

pytestmark = pytest.mark.model

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws # a comment
ws     ::= | " " | "\n" [ \t]{0,3}
"""
GRAMMARS = {
    "json": JSON,
    "words": 'root ::= [a-z]+ "end"',
    "chess": 'root ::= ("1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n"){0,3})\n'
    'move ::= (pawn | nonpawn | castle) [+#]?\npawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?\n'
    'nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]\ncastle ::= "O-O" "-O"?',
    "list": 'root ::= item{1,4}\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]{1,9} "\\n"',
    "arithmetic": 'root ::= (expr "=" ws term "\\n"){1,2}\nexpr ::= term ([-+*/] term){0,2}\n'
    'term ::= ident | num | "(" ws expr ")" ws\nident ::= [a-z] [a-z0-9_]{0,3} ws\n'
    "num ::= [0-9]{1,3} ws\nws ::= [ \\t\\n]{0,2}",
    "until": 'root ::= s0 "</t>"\ns0 ::= | "<" s1 | [^<] s0\ns1 ::= | "/" s2 | "<" s1 | [^/<] s0\n'
    's2 ::= | "t" s3 | "<" s1 | [^t<] s0\ns3 ::= | "<" s1 | [^><] s0',
    "prefixes": 'root ::= ("ab" | "abcd") "ce" | "a" [b-d]? "x"',
    "characters": 'root ::= "\\u00e4\\U0001F600\\x41\\[\\]" [ä-ü] [^a-z] . "-"',
    "names": 'root ::= fooBar foo-bar foo-Bar\nfooBar ::= "1"\nfoo-bar ::= "2"\nfoo-Bar ::= "3" | (\n "4" |\n "5"\n)',
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_written_under_it_llama_cpp_accepts(compiler, tiny, name):
    constraint = Constraint("gbnf", GRAMMARS[name])
    n_ended = 0
    for seed in range(8):
        with LlamaGrammar(tiny.model, GRAMMARS[name]) as theirs:
            data, end = driving.write(
                tiny, compiler.compile(tiny, constraint), driving.hasty(tiny), seed, 60, watch=theirs
            )
            if end == "stop":
                n_ended += 1
                assert theirs.allowed(sorted(tiny.model.eog)), data
    assert n_ended or name in ("json", "words", "until", "arithmetic")


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_llama_cpp_writes_is_accepted(compiler, fake, tiny, name):
    """Byte by byte, so that our own preference of tokens plays no role."""
    constraint = Constraint("gbnf", GRAMMARS[name])
    for seed in range(8):
        rng, text = random.Random(seed), b""
        with LlamaGrammar(tiny.model, GRAMMARS[name]) as theirs:
            for _ in range(25):
                tokens = theirs.allowed()
                ends = [token for token in tokens if token in tiny.model.eog]
                if ends and rng.random() < 0.3:
                    assert driving.can_write(fake, compiler.compile(fake, constraint), text), text
                    break
                others = [token for token in tokens if token not in ends]
                if not others:
                    break
                token = rng.choice(others)
                theirs.accept(token)
                text += tiny.piece(token)
        assert driving.can_begin(fake, compiler.compile(fake, constraint), text), text


@pytest.mark.parametrize(
    "source",
    [
        "", "root", 'root ::= "a', "root ::= [a", "root ::= (", "root ::= )",
        'root ::= "a" {', 'root ::= "a"{2', 'root ::= "a"{3,2}', "root ::= x",
        'rot ::= "a"', 'root ::= "\\q"', 'root ::= "\\xZZ"', 'root ::= "\\uD800"', "root ::= <none>",
        "root ::= <[99999999]>", "root ::= !x",
        'root ::= "a" ; b', "root ::= " + "(" * 100_000, "root ::= " + '"a" ' + "*" * 100_000, "root ::= root",
        'root ::= "a" root', "root ::= [z-a]",
        'root ::= "a"{9999}', "\n".join(f'r{i} ::= "a"' for i in range(6000)), 'root ::= ' + '"a" ' * 200_000,
    ],
    ids=range(26),
)  # fmt: skip
def test_what_is_wrong_is_a_coded_error(compiler, fake, source):
    with pytest.raises(UmaError) as caught:
        compiler.compile(fake, Constraint("gbnf", source))
    assert caught.value.error is ErrorCode.CONSTRAINT_REFUSED and caught.value.detail["field"] == "constraint.gbnf"


@pytest.mark.fuzz
@given(st.text('ab"[]()|*+?{}:=\n\\-^.<>! #x,12', max_size=60))
def test_any_text_is_a_grammar_or_an_error(source):
    for text in (source, "root ::= " + source):
        try:
            to_lark(parse(text, lambda name: 5))
        except GbnfError:
            continue
