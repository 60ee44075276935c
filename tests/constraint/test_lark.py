"""Grammars that would compile for minutes or take gigabytes are told apart from those that programs send."""

from __future__ import annotations

import json

import pytest

from uma_core.constraint.lark import N_DEFINITIONS_MOST, TooLarge, check, n_repeats


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: /" + "a*" * 9_000 + "/", "repetitions"),
        ("start: T\nT: /" + "[a-z]?" * 9_000 + "/", "repetitions"),
        ("start: T\nA: /a*/\nT: " + "A " * 9_000, "repetitions"),
        ("start: T\nT: " + '"a"? ' * 9_000, "repetitions"),
        ("start: T20\nT0: /a*/\n" + "\n".join(f"T{i + 1}: T{i} T{i}" for i in range(20)), "repetitions"),
        ("start: " + " | ".join(f"/x{i}{'a*' * 3_000}/" for i in range(8)), "repetitions"),
        ("start: %json " + json.dumps({"anyOf": [{"pattern": "a*" * 2_000 + str(i)} for i in range(20)]}), "repetit"),
        ("start: %json " + json.dumps({"pattern": "a" * 5_000}), "pattern"),
        ("start: %json " + json.dumps({"properties": {str(i): {} for i in range(1_001)}}), "properties"),
        ("start: %json " + json.dumps({"patternProperties": {str(i): {} for i in range(101)}}), "patternProperties"),
        ("start: %json " + json.dumps({"allOf": [{"$ref": "#"}] * 201}), "references"),
        ("start: " + " ".join(f'"w{i}"' for i in range(12_001)), "12001"),
        ("start: " + " ".join(["<|a:b|>"] * 16_001), "16001"),
        ("start: a\n" + "\n".join(f'a{i}[lazy, stop="]: "]: "x"' for i in range(N_DEFINITIONS_MOST)), "definitions"),
    ],
)
def test_what_takes_minutes_or_gigabytes_is_refused(grammar: str, reason: str) -> None:
    with pytest.raises(TooLarge, match=reason):
        check(grammar)


@pytest.mark.parametrize("mark", ['"', "/"])
def test_what_has_no_end_is_refused_without_looking_for_one_again_and_again(mark: str) -> None:
    """Each later mark could begin another search to the end: 256 KiB took minutes, in which all streams stood still."""
    for text in (mark + f"\\{mark}" * 130_000, mark + "a\\"):
        with pytest.raises(TooLarge, match="no end"):
            check("start: " + text)


@pytest.mark.parametrize("part", ["[", r"\u{", r"[\]"])
def test_an_expression_whose_classes_have_no_end_is_read_once(part: str) -> None:
    assert n_repeats("a*" + part * 80_000) == 1


def test_names_that_occur_often_are_looked_at_once() -> None:
    names = [f"B{i}" for i in range(900)]
    check("start: A\nA: " + "B0 " * 80_000 + " ".join(names) + "\n" + "\n".join(f'{name}: "x"' for name in names))


@pytest.mark.parametrize(
    "grammar",
    [
        "start: /" + "a" * 200_000 + "/",
        "start: /(" + "|".join(f"w{i}" for i in range(20_000)) + ")/",
        "start: " + " | ".join(f'"b{i}: c: d*"' for i in range(5_000)),
        "start: %json " + json.dumps({"properties": {"a": {"description": "e.g.: this: that: *?*? " * 5_000}}}),
        "start: a // b: c\n# d: e\na: /\\/[*?+]{3}\\u{2f}/ | <|f:g|>",
        "start: T0\n" + "\n".join(f"T{i}: T{i + 1}" for i in range(900)),
        "start: A\nA: B\nB: A",
        "start: %json {broken",
        "start: %json " + "[" * 50_000,
        "a[" * 50_000,
        "",
    ],
)
def test_what_compiles_soon_or_is_no_grammar_passes(grammar: str) -> None:
    check(grammar)


def test_repetitions_are_told_from_classes_groups_and_escapes() -> None:
    assert n_repeats(r"(?s:a)*b+(?:c)?d{2}[*?+{]\*\?\u{a}\p{L}") == 4
