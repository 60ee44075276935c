"""Options that are made from the protocol's declarations."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from uma_core.protocol.fields import Field, Kind
from uma_ctl.declared import declared_options, given

FIELDS = (
    Field("top_n", Kind.INTEGER, "how many `results` come", None, 1, 10),
    Field("min_p", Kind.NUMBER, "least share", None, 0, 1, is_open_low=True),
    Field("is_raw", Kind.BOOLEAN, "as it is"),
    Field("mode", Kind.STRING, "which one", choices=("a", "b")),
    Field("note", Kind.STRING, "any text"),
)


def called(*arguments: str) -> tuple[Result, dict[str, Any]]:
    seen: dict[str, Any] = {}

    @click.command()
    @declared_options(FIELDS, "note", "top_n", "min_p", "is_raw", "mode")
    def command(**options: Any) -> None:
        seen.update(given(options))

    return CliRunner().invoke(command, arguments), seen


def test_what_is_not_given_is_left_to_the_daemon() -> None:
    assert called()[1] == {}
    assert called("--no-is-raw", "--top-n", "1")[1] == {"is_raw": False, "top_n": 1}


def test_values_have_the_declared_types() -> None:
    words = ("--note", "5", "--top-n", "10", "--min-p", "1", "--is-raw", "--mode", "b")
    assert called(*words)[1] == {"note": "5", "top_n": 10, "min_p": 1.0, "is_raw": True, "mode": "b"}


@pytest.mark.parametrize(
    "words", [("--top-n", "0"), ("--top-n", "11"), ("--top-n", "1.5"), ("--min-p", "0"), ("--mode", "c")]
)
def test_what_the_daemon_would_refuse_is_wrong_usage(words: tuple[str, str]) -> None:
    result, seen = called(*words)
    assert result.exit_code == 2 and not seen and words[0] in result.output


def test_help_is_in_the_order_that_was_asked_for_and_without_markup() -> None:
    text = called("--help")[0].output
    assert "How many results come." in text and "`" not in text
    flags = ["--note", "--top-n", "--min-p", "--is-raw / --no-is-raw", "--mode [a|b]"]
    assert sorted(flags, key=text.index) == flags
