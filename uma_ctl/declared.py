"""Command-line options for fields that the protocol declares: name, kind, range and help are the field's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from uma_core.protocol.fields import Field, Kind
from uma_ctl.ranges import FiniteRange

F = TypeVar("F", bound=Callable[..., Any])


def declared_options(fields: Iterable[Field], *names: str) -> Callable[[F], F]:
    """Make options for these fields, in this order. An option that is not given is None, and the daemon decides."""
    by_name = {field.name: field for field in fields}

    def decorate(command: F) -> F:
        for name in reversed(names):
            command = _option(by_name[name])(command)
        return command

    return decorate


def _option(field: Field) -> Callable[[F], F]:
    flag = "--" + field.name.replace("_", "-")
    help = field.help[:1].upper() + field.help[1:] + "."
    if field.kind is Kind.BOOLEAN:
        return click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None, help=help)
    return click.option(flag, field.name, type=_type(field), default=None, help=help)


def _type(field: Field) -> Any:
    if field.choices:
        return click.Choice(field.choices)
    if field.kind is Kind.INTEGER:
        return click.IntRange(field.low, field.high)  # type: ignore[arg-type] # bounds of integers are integers
    if field.kind is Kind.NUMBER:
        return FiniteRange(field.low, field.high)
    return str


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
