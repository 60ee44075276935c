"""Constraints become llguidance's own languages, and its refusals name what they are about."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.constraint import driving
from uma_core.constraint.grammar import N_FORCED_MOST, N_REGEX_BYTES_MOST, Grammar, reason_of, source_of
from uma_core.constraint.vocabulary import Vocabulary
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import Constraint


@pytest.fixture(scope="module")
def known(fake) -> Vocabulary:
    return Vocabulary(fake)


def test_choices_are_taken_literally(compiler, fake):
    choices = ["a.b", "c|d", "(e)", "f\\g", "[h]", "i&j", "~k", "#l", "m n", "{o}", "^p$", "q+?*", "ä\n", "r-s/t"]
    for choice in choices:
        matcher = compiler.compile(fake, Constraint("choices", choices))
        assert driving.can_write(fake, matcher, choice.encode()), choice
    for other in ("axb", "c", "e", "m  n"):
        assert not driving.can_write(fake, compiler.compile(fake, Constraint("choices", choices)), other.encode())


def test_white_space_between_tokens_comes_to_an_end(compiler, fake):
    """A small model may never stop writing it."""
    for space, is_allowed in ((" ", True), ("\n  ", True), ("\n\t", True), ("  ", False), ("\n\n", False)):
        matcher = compiler.compile(fake, driving.schema({"type": "array"}))
        assert driving.can_begin(fake, matcher, f"[{space}1".encode()) == is_allowed, repr(space)


@pytest.mark.parametrize(
    ("value", "words"),
    [("a" * (N_REGEX_BYTES_MOST + 1), "the limit is 16384"), ("(a{900}){900}", "counted repetitions")],
)
def test_expressions_that_would_take_long_are_refused_at_once(known, value, words):
    with pytest.raises(UmaError, match=words) as caught:
        source_of(Constraint("regex", value), known)
    assert caught.value.error is ErrorCode.CONSTRAINT_REFUSED
    assert caught.value.detail["field"] == "constraint.regex"


@pytest.mark.parametrize(("kind", "value"), [("regex", "("), ("lark", "start: nothing"), ("lark", "")])
def test_what_llguidance_refuses_has_the_field_and_the_reason(known, kind, value):
    with pytest.raises(UmaError) as caught:
        Grammar(known, Constraint(kind, value))
    assert caught.value.error is ErrorCode.CONSTRAINT_REFUSED and caught.value.detail["field"] == f"constraint.{kind}"
    assert re.fullmatch(rf"\S+ constraint_refused: `constraint.{kind}`: \S.*", str(caught.value), re.DOTALL)


def test_a_beginning_is_consumed_and_a_wrong_one_refused_by_its_field(known):
    grammar = Grammar(known, Constraint("regex", "abc", prefix="ab"))
    assert grammar.forced == [ord("c")]
    with pytest.raises(UmaError, match="does not allow this beginning") as caught:
        Grammar(known, Constraint("regex", "abc", prefix="x"))
    assert caught.value.detail["field"] == "constraint.prefix"


def test_forced_tokens_are_those_without_a_choice_and_never_the_end(known, fake):
    assert Grammar(known, Constraint("regex", "ab[cd]")).forced == [ord("a"), ord("b")]
    assert Grammar(known, Constraint("regex", "abc")).forced == [ord(each) for each in "abc"]
    assert Grammar(known, Constraint("regex", "[ab]c")).forced == []
    assert len(Grammar(known, Constraint("regex", "a" * 2 * N_FORCED_MOST)).forced) <= N_FORCED_MOST


def test_copies_go_on_alone(compiler, fake):
    first = compiler.compile(fake, Constraint("regex", "ab|cd"))
    second = compiler.compile(fake, Constraint("regex", "ab|cd"))
    first.accept(ord("a"))
    assert driving.can_write(fake, second, b"cd") and driving.can_write(fake, first, b"b")


def test_messages_are_short_and_say_what_is_wrong():
    assert reason_of(b"NoExtensionBias(...)") == "no token can follow, and the grammar is not complete"
    assert reason_of(b" bad <non-verbose/>thing\n") == "bad thing"
    assert len(reason_of(b"x" * 10_000)) == 400 and reason_of(b"\xff")


def test_a_schema_is_passed_on_whole(known):
    value: Any = {"type": "object", "properties": {"ä": {"type": "string"}}, "required": ["ä"]}
    source = source_of(driving.schema(value), known)
    sent = json.loads(source.text)
    assert source.kind == b"json_schema" and sent.pop("x-guidance")["whitespace_pattern"]
    assert sent["properties"]["ä"]["type"] == "string" and sent["required"] == ["ä"]
