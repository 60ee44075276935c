"""Options of any program: what is derived from a declaration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from uma_core.config.schema import (
    BadValue,
    Option,
    option,
    options_of,
    parse_native,
    parse_text,
    range_text,
    value_text,
    write_value,
)


@dataclass(frozen=True)
class Section:
    RELOAD = "live"
    n_things: int = option(4, "things", min=1, max=8, words={"auto": -1})
    share: float = option(0.5, "a share", min=0)
    is_on: bool = option(False, "a switch", flag="--lit", reload="engine")
    mode: str = option("off", "a mode", choices=("off", "on"), env="MODE", yaml="mode")
    file: str = option("", "a file", is_path=True)
    ids: tuple[int, ...] = option((), "ids", of=int)
    scales: dict[str, float] = option({}, "scales", values=float)  # noqa: RUF009 - a map gets a factory
    other: int = 3


OPTIONS = {opt.name: opt for opt in options_of("part", Section, "X_")}


def test_names_are_derived_unless_they_are_declared() -> None:
    def names(opt: Option) -> tuple[str, ...]:
        return opt.key, opt.flag, opt.env, opt.reload

    assert names(OPTIONS["n_things"]) == ("part.n_things", "--n-things", "X_N_THINGS", "live")
    assert names(OPTIONS["is_on"]) == ("part.is_on", "--lit", "X_LIT", "engine")
    assert names(OPTIONS["mode"]) == ("mode", "--mode", "MODE", "live")
    assert "other" not in OPTIONS, "a field that is not declared as an option"
    assert Section().scales is not Section().scales


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n_things", " 8 ", 8),
        ("n_things", "AUTO", -1),
        ("share", "2", 2.0),
        ("is_on", "Yes", True),
        ("is_on", "", False),
        ("mode", "ON", "on"),
        ("file", " a ", " a "),
        ("ids", "1, 2,", (1, 2)),
        ("ids", "", ()),
        ("scales", "a=1,b = .5", {"a": 1.0, "b": 0.5}),
    ],
)
def test_text_becomes_a_value(name: str, text: str, value: Any) -> None:
    found = parse_text(OPTIONS[name], text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n_things", "9", "must be 1 to 8, not 9"),
        ("n_things", "x", "must be a whole number, 1 to 8 or auto, not 'x'"),
        ("share", "nan", "must be at least 0, not nan"),
        ("share", "-1", "must be at least 0"),
        ("is_on", "maybe", "must be true or false"),
        ("mode", "onn", "must be one of off, on, not 'onn'"),
        ("file", "~/a", "must be a path without ~"),
        ("file", "a\0", "must not contain NUL"),
        ("ids", "1,x", "must be a whole number"),
        ("scales", "a", "must be a list of key=value"),
        ("scales", "a=1,a=2", "has the key 'a' twice"),
    ],
)
def test_wrong_text_is_refused_with_what_is_right(name: str, value: str, said: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_text(OPTIONS[name], value)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("n_things", "auto", -1),
        ("share", 1, 1.0),
        ("mode", True, "on"),
        ("ids", "1,2", (1, 2)),
        ("ids", [1, 2], (1, 2)),
        ("scales", {"a": 2}, {"a": 2.0}),
    ],
)
def test_yaml_becomes_a_value(name: str, value: Any, parsed: Any) -> None:
    assert parse_native(OPTIONS[name], value) == parsed


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_things", True), ("n_things", 2.0), ("n_things", "2"), ("is_on", 1), ("file", 5), ("ids", 1), ("mode", None)],
)
def test_yaml_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadValue):
        parse_native(OPTIONS[name], value)


def test_help_shows_what_a_value_looks_like() -> None:
    shown = {name: value_text(opt) for name, opt in OPTIONS.items()}
    assert shown == {
        "n_things": "INT",
        "share": "NUMBER",
        "is_on": "true|false",
        "mode": "off|on",
        "file": "PATH",
        "ids": "INT,...",
        "scales": "ID=NUMBER,...",
    }
    assert [range_text(OPTIONS[name]) for name in ("n_things", "share", "file")] == ["1 to 8", "at least 0", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2"), (0.5, "0.5"), (True, "true"), ((1, 2), "[1, 2]"), ({"a": 1.0}, '{"a": 1}'), ("\x7f", '"\\x7f"')],
)
def test_values_are_written_as_yaml(value: Any, text: str) -> None:
    assert write_value(value) == text
