"""Commands whose flags are generated from declarations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from uma_core.config.flags import FlagsCommand, OptionFlag, given_flags, print_values
from uma_core.config.schema import option, options_of


@dataclass(frozen=True)
class Part:
    n_things: int = option(4, "Things.", flag="--things", unit="items")
    is_on: bool = option(False, "A switch.")
    names: dict[str, str] = option({}, "Names.")  # noqa: RUF009 - a map gets a factory
    top: str = option("a: b", "At the top.", yaml="top")


OPTIONS = list(options_of("part", Part))


def called(*arguments: str) -> tuple[Result, dict[str, Any]]:
    seen: dict[str, Any] = {}
    params = [OptionFlag(opt) for opt in OPTIONS]
    command = FlagsCommand("run", params=params, callback=lambda **given: seen.update(given_flags(OPTIONS, given)))
    return CliRunner().invoke(command, arguments), seen


def test_only_what_was_given_is_returned_and_as_text() -> None:
    assert called()[1] == {}
    found = called("--things", "x", "--no-is-on", "--names", "a=b", "--names", "c=d", "--top", "")[1]
    assert found == {"part.n_things": "x", "part.is_on": False, "part.names": "a=b,c=d", "top": ""}


@pytest.mark.parametrize(
    ("flag", "said"), [("--n-things", "Did you mean '--things'?"), ("--nothing-alike", "No such option")]
)
def test_the_name_in_a_file_is_answered_with_the_flag(flag: str, said: str) -> None:
    result, _ = called(flag, "1")
    assert result.exit_code == 2 and said in result.output


def test_help_is_by_section_with_unit_default_and_variable() -> None:
    text = " ".join(called("--help")[0].output.split())
    assert "Part: --things INT Things. (items, default 4) [UMA_THINGS]" in text
    assert "--is-on / --no-is-on A switch. (default false) [UMA_IS_ON]" in text
    assert text.index("Options:") < text.index("--help") < text.index("Part:")


def test_values_are_printed_as_a_file_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    sources: Any = SimpleNamespace(origins={opt.key: "default" for opt in OPTIONS} | {"part.is_on": "flag --is-on"})
    items = [(opt, True if opt.name == "is_on" else opt.default) for opt in OPTIONS]
    print_values(items, sources, False)
    assert capsys.readouterr().out.splitlines() == [
        'top: "a: b"  # default',
        "part:",
        "  n_things: 4  # default",
        "  is_on: true  # flag --is-on",
        "  names: {}  # default",
    ]
    print_values(items, sources, True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["part.is_on"] == {"value": True, "origin": "flag --is-on", "reload": "restart"}
    assert list(shown) == [opt.key for opt in OPTIONS]
