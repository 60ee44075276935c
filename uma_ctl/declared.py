"""Command-line options for protocol fields, with the name, kind, range and help that each field declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from uma_core.protocol.fields import Field, Kind
from uma_ctl.ranges import FiniteRange

F = TypeVar("F", bound=Callable[..., Any])


def declared_options(fields: Iterable[Field], *names: str) -> Callable[[F], F]:
    """Make options for these fields, in this order. An option that is not given is None, and the daemon decides."""
    by_name = {field.name: field for field in fields}
    return all_of([_option(by_name[name]) for name in names])


def all_of(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    """Make one decorator of several options; a command's help lists them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _option(field: Field) -> Callable[[F], F]:
    flag = "--" + field.name.replace("_", "-")
    if field.kind is Kind.BOOLEAN:
        return click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None, help=help_of(field))
    return click.option(flag, field.name, type=type_of(field), default=None, help=help_of(field))


def help_of(field: Field) -> str:
    text = field.help.replace("`", "")
    return f"{text[0].upper()}{text[1:]}."


def type_of(field: Field) -> Any:
    if field.choices:
        return click.Choice(field.choices)
    if field.kind is Kind.INTEGER:
        return click.IntRange(field.low, field.high)  # type: ignore[arg-type] # bounds of integers are integers
    if field.kind is Kind.NUMBER:
        return FiniteRange(field.low, field.high, min_open=field.is_open_low)
    return str


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
