"""An accepted schema never exceeds the library's bounds in the middle of an answer: it is refused beforehand, with the
keyword.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.constraint import driving
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import Constraint


def of(properties, **more):
    return {"type": "object", "properties": properties, **more}


def optional(first, last, **more):
    return of({f"p{i}": {"type": "integer"} for i in range(first, last)}, **more)


def nested(schema):
    return of({"a": {"type": "array", "items": schema}}, required=["a"])


def write(text, matcher, data: bytes):
    for byte in data:
        matcher.accept(byte)


CASES = {  # a schema that grows with n, the largest n to accept, an n to refuse, and the keyword
    "optional": (lambda n: optional(0, n), 480, 520, "properties"),
    "closed": (lambda n: optional(0, n, additionalProperties=False), 480, 520, "properties"),
    "nested": (lambda n: nested(optional(0, n)), 480, 520, "properties"),
    "behind a reference": (lambda n: {"$defs": {"x": optional(0, n)}, "$ref": "#/$defs/x"}, 470, 520, "$ref"),
    "some are required": (lambda n: optional(0, n, required=[f"p{i}" for i in range(0, n, 4)]), 1000, 0, ""),
    "branches": (lambda n: {"anyOf": [optional(i * 100, i * 100 + n) for i in range(4)]}, 115, 130, "anyOf"),
    "objects": (lambda n: {"anyOf": [of({f"k{i}": {}}, required=[f"k{i}"],
    additionalProperties=False) for i in range(n)]}, 1100, 0, ""),
    "constants": (lambda n: {"anyOf": [{"const": f"value {i}"} for i in range(n)]}, 5000, 0, ""),
    "enum": (lambda n: {"enum": [{"a": i} for i in range(n)]}, 1900, 2100, "enum"),
    "merged": (lambda n: {"allOf": [optional(0, n), optional(n, 2 * n)]}, 235, 260, "allOf"),
    "longest": (lambda n: {"type": "string", "maxLength": n}, 9_900, 10_100, "maxLength"),
    "shortest": (lambda n: {"type": "string", "minLength": n}, 9_900, 10_100, "minLength"),
    "several": (lambda n: of({f"p{i}": {"type": "string", "maxLength": n + i} for i in range(10)}), 950, 1_050,
    "maxLength"),
    "alike": (lambda n: of({f"p{i}": {"type": "string", "maxLength": n} for i in range(10)}), 9_900, 0, ""),
    "pattern": (lambda n: {"type": "string", "pattern": f"^(.{{0,100}}x){{0,{n}}}$"}, 90, 110, "pattern"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_bound_is_told_before_anything_is_computed(compiler, fake, name):
    schema, n_good, n_bad, keyword = CASES[name]
    assert driving.keyword_of(compiler, fake, schema(n_good)) == ""
    if n_bad:
        assert driving.keyword_of(compiler, fake, schema(n_bad)) == keyword


@pytest.mark.parametrize(
    "name", ["optional", "closed", "nested", "some are required", "branches", "objects", "enum", "merged"]
)
@pytest.mark.parametrize("manner", [driving.even, driving.hasty, driving.contrary], ids=lambda manner: manner.__name__)
def test_what_is_just_accepted_can_be_written(compiler, fake, name, manner):
    schema, n_good, _, _ = CASES[name]
    for seed in range(2):
        driving.write(fake, compiler.compile(fake, driving.schema(schema(n_good))), manner(fake), seed, 300)


def test_a_string_of_its_full_length_can_be_written(compiler, fake):
    for schema, body in (
        ({"type": "string", "maxLength": 9_900}, b"x" * 9_900),
        ({"type": "string", "minLength": 9_000}, "ä€x".encode() * 3_000),
        (of({f"p{i}": {"type": "string", "maxLength": 950 + i} for i in range(10)}), None),
    ):
        matcher = compiler.compile(fake, driving.schema(schema))
        fields = b",".join(b'"p%d":"%s"' % (i, b"y" * (950 + i)) for i in range(10))
        write(fake, matcher, b'"' + body + b'"' if body else b"{" + fields + b"}")
        assert matcher.is_done


def test_any_mixture_is_refused_or_can_be_written(compiler, fake):
    rng, ends = random.Random(5), []
    for seed in range(60):
        schema = mixture(rng, 3)
        if driving.keyword_of(compiler, fake, schema):
            ends.append("refused")
            continue
        for manner in (driving.hasty, driving.contrary):
            ends.append(driving.write(fake, compiler.compile(fake, driving.schema(schema)), manner(fake), seed, 250)[1])
    assert set(ends) == {"refused", "stop", "length"}


_names = itertools.count()


def mixture(rng, depth):
    """Return a schema of many alternatives."""
    kind = rng.choice(["object", "object", "array", "anyOf", "string"] if depth else ["string", "integer"])
    if kind == "object":
        properties = {f"n{next(_names)}": mixture(rng, 0) for _ in range(rng.choice([3, 60, 300, 600]))}
        properties |= {f"n{next(_names)}": mixture(rng, depth - 1) for _ in range(2)}
        share = rng.choice([0, 0, 0.2])
        required = [name for name in properties if rng.random() < share]
        return of(properties, required=required, additionalProperties=rng.random() < 0.5)
    if kind == "array":
        return {"type": "array", "items": mixture(rng, depth - 1), "maxItems": rng.choice([3, 300])}
    if kind == "anyOf":
        return {"anyOf": [mixture(rng, depth - 1) for _ in range(rng.choice([2, 6]))]}
    return {"type": "string", "maxLength": rng.choice([5, 50, 2000])} if kind == "string" else {"type": "integer"}


def test_an_expression_of_too_many_counted_characters_is_refused(compiler, fake):
    compiler.compile(fake, Constraint("regex", "[a-z]{0,50000}"))
    with pytest.raises(UmaError) as caught:
        compiler.compile(fake, Constraint("regex", "(.{0,200}x){0,100}"))
    assert caught.value.error is ErrorCode.CONSTRAINT_REFUSED and caught.value.detail["field"] == "constraint.regex"
