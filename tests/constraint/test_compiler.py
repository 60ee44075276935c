"""Matchers for requests: what is kept of them, and what is refused."""

from __future__ import annotations

import pytest

from tests.constraint import driving
from uma_core.constraint import compiler as module
from uma_core.constraint.compiler import Compiler
from uma_core.engine.fake.engine import FakeEngine
from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics import catalog as m
from uma_core.types import Constraint, Trigger


@pytest.mark.parametrize(("prefix", "is_complete"), [("ab", True), ("b", None)])
def test_a_beginning_that_is_the_whole_answer_is_told_from_a_wrong_one(compiler, fake, prefix, is_complete):
    with pytest.raises(UmaError) as caught:
        compiler.compile(fake, Constraint("gbnf", 'root ::= "ab"', prefix=prefix))
    assert caught.value.error is ErrorCode.CONSTRAINT_REFUSED
    assert caught.value.detail.get("is_complete") is is_complete


class Bench:
    """A compiler, and how often it found a grammar."""

    def __init__(self) -> None:
        self.registry = m.new_registry()
        self.compiler = Compiler(self.registry)

    def write(self, text: FakeEngine, value: str, **more: str) -> None:
        self.compiler.compile(text, Constraint("regex", value, **more))

    @property
    def counts(self) -> tuple[float, float]:
        hit, miss = (self.registry.counter(m.CONSTRAINT_CACHE, result=result) for result in ("hit", "miss"))
        return hit.value, miss.value


def test_the_same_grammar_is_compiled_once_for_each_model(fake):
    bench, other = Bench(), FakeEngine()
    bench.write(fake, "[a-z]+")
    bench.write(fake, "[a-z]+")
    assert bench.counts == (1, 1)
    bench.write(other, "[a-z]+")
    bench.write(fake, "[a-z]+", prefix="a")
    assert bench.counts == (1, 3)


def test_the_least_recently_used_grammars_go(fake, monkeypatch):
    monkeypatch.setattr(module, "N_KEPT_MOST", 2)
    bench = Bench()
    for value in ("a", "b", "a", "c"):
        bench.write(fake, value)
    assert bench.counts == (1, 3)
    bench.write(fake, "a")
    assert bench.counts == (2, 3)
    bench.write(fake, "b")
    assert bench.counts == (2, 4)


def test_large_grammars_do_not_add_up(fake, monkeypatch):
    monkeypatch.setattr(module, "N_BYTES_KEPT_MOST", 100)
    bench = Bench()
    for value in ("a" * 60, "b" * 60, "b" * 60, "a" * 60):
        bench.write(fake, value)
    assert bench.counts == (1, 3)


def test_a_grammar_whose_copy_failed_is_compiled_anew(fake):
    """The lexer that all its copies share may be full."""
    bench = Bench()
    matcher = bench.compiler.compile(fake, Constraint("regex", "ab"))
    with pytest.raises(UmaError) as caught:
        matcher.accept(ord("x"))
    assert caught.value.error is ErrorCode.CONSTRAINT_FAILED
    matcher = bench.compiler.compile(fake, Constraint("regex", "ab"))
    assert bench.counts == (0, 2) and driving.can_write(fake, matcher, b"ab")


def test_schemas_are_the_same_however_they_are_made(fake):
    bench = Bench()
    for value in ({"const": "\u00e4"}, {"const": "ä"}):
        bench.compiler.compile(fake, Constraint("json_schema", value))
    assert bench.counts == (1, 1)


def test_a_trigger_that_cannot_be_awaited_is_refused_by_its_field(compiler, fake):
    with pytest.raises(UmaError) as caught:
        compiler.compile(fake, Constraint("regex", "a", triggers=(Trigger("pattern", "("),)))
    assert caught.value.error is ErrorCode.CONSTRAINT_REFUSED
    assert caught.value.detail["field"] == "constraint.triggers"
