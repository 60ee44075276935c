"""Whatever a model would like to write, the answer is JSON that is valid under its schema, or a coded error came first.

The schemas are those of the public JSON Schema Test Suite. `make fuzz` writes 10,000 answers and more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.constraint import driving, suite
from uma_core.errors import UmaError

IS_FULL = os.environ.get("UMA_FUZZ") == "full"
N_EACH = 18 if IS_FULL else 1  # answers per schema, adversary and vocabulary: 187 schemas x 3 x 18 = 10,098


@pytest.mark.parametrize("manner", [driving.even, driving.hasty, driving.contrary], ids=lambda manner: manner.__name__)
@pytest.mark.parametrize("text", [pytest.param("fake", id="bytes"), pytest.param("tiny", marks=pytest.mark.model)])
@pytest.mark.fuzz
def test_every_answer_parses_and_validates(compiler, text, manner, request):
    text = request.getfixturevalue(text)
    weights, ends = manner(text), Counter()
    for case in suite.accepted(compiler, text):
        for seed in range(N_EACH):
            data, end = driving.write(text, compiler.compile(text, driving.schema(case.schema)), weights, seed, 200)
            ends[end] += 1
            if end == "stop":
                suite.check_answer(data.decode(), case)
    assert sum(ends.values()) >= 180 * N_EACH
    assert ends["stop"] > 100 * N_EACH * (manner is not driving.contrary), "most answers come to their end"


def test_what_does_not_validate_cannot_be_written(compiler, fake):
    """The suite's own instances: an invalid one is stopped at some byte, or is incomplete at its end."""
    n_invalid = 0
    for case in suite.accepted(compiler, fake):
        for instance, is_valid in case.instances:
            if is_valid or case.is_beyond_re:
                continue
            n_invalid += 1
            matcher = compiler.compile(fake, driving.schema(case.schema))
            assert not driving.can_write(fake, matcher, driving.dumps(instance)), (
                f"{case.file}: {case.what}: {instance}"
            )
    assert n_invalid > 200


def test_unknown_and_unsupported_keywords_are_refused_by_name(compiler, fake):
    named = Counter()
    for case in suite.cases():
        try:
            compiler.compile(fake, driving.schema(case.schema))
        except UmaError as error:
            named[error.detail.get("keyword", "")] += 1
    for keyword in (
        "not",
        "uniqueItems",
        "contains",
        "if",
        "dependentSchemas",
        "unevaluatedProperties",
        "propertyNames",
        "format",
        "oneOf",
    ):
        assert named[keyword], keyword
