"""Options that several commands share."""

from __future__ import annotations

import io
from typing import Any

import click
import pytest
from click.testing import CliRunner

from uma_ctl.options import Target, adapter, read_prompt, with_target


@pytest.mark.parametrize(
    ("text", "expected"), [("tone", ("tone", 1.0)), ("tone=0.5", ("tone", 0.5)), ("1=0", ("1", 0.0)), ("a=", ("a", 1))]
)
def test_an_adapter_has_a_scale(text: str, expected: tuple[str, float]) -> None:
    assert adapter(text) == {"id": expected[0], "scale": expected[1]}


@pytest.mark.parametrize("text", ["tone=x", "tone=nan", "tone=1=2"])
def test_an_adapter_whose_scale_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither ID nor ID=SCALE"):
        adapter(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("/group", False)),
        (["--socket", "/own"], ("/own", False)),
        (["--json"], ("/group", True)),
    ],
)
def test_options_after_the_verb_go_before_those_of_the_group(words: list[str], expected: tuple[str, bool]) -> None:
    seen: list[Any] = []

    @click.command()
    @with_target
    def command(target: Target) -> None:
        seen.append((target.socket_path, target.as_json))

    CliRunner().invoke(command, words, obj=Target("/group", False), catch_exceptions=False)
    assert seen == [expected]


def test_a_prompt_is_given_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("piped\n"))
    assert read_prompt("given") == "given"
    assert read_prompt(None) == "piped\n"
    for empty in ("", None):  # standard input has been read to its end
        with pytest.raises(click.UsageError, match="the prompt is empty"):
            read_prompt(empty)
