"""Click commands whose flags are generated from option declarations, and how both programs run such commands. Knows no
particular option.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

import click

from uma_core.config.merge import Sources
from uma_core.config.schema import Option, value_text, write_value


def _parameter(opt: Option) -> str:
    return f"{opt.section}__{opt.name}"


def _help(opt: Option) -> str:
    facts = [opt.unit] if opt.unit else []
    if opt.default not in ("", (), {}):
        facts.append(f"default {write_value(opt.default)}")
    return f"{opt.help}{' (' + ', '.join(facts) + ')' if facts else ''}  [{opt.env}]"


class OptionFlag(click.Option):
    """A generated flag: accepts any text, because `merge` checks flags, variables and files alike."""

    def __init__(self, opt: Option) -> None:
        self.opt = opt
        names = [f"{opt.flag}/--no-{opt.flag[2:]}"] if opt.kind is bool else [opt.flag]
        metavar = None if opt.kind is bool else value_text(opt)
        kind = None if opt.kind is bool else str
        is_map = opt.kind is dict
        super().__init__(
            [*names, _parameter(opt)], default=None, metavar=metavar, help=_help(opt), type=kind, multiple=is_map
        )


class FlagsCommand(click.Command):
    """A command that lists its generated flags by section. A wrong flag that has the name of an option in a file is
    answered with the option's flag.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name[2:].replace("-", "_")
            meant = [p.opt.flag for p in self.params if isinstance(p, OptionFlag) and p.opt.name == name]
            if not meant:
                raise
            text = f"No such option {error.option_name!r}. Did you mean {meant[0]!r}?"
            raise click.UsageError(text, ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        plain = [p.get_help_record(ctx) for p in self.get_params(ctx) if not isinstance(p, OptionFlag)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in plain if record])
        flags = [p for p in self.get_params(ctx) if isinstance(p, OptionFlag)]
        for section, group in groupby(flags, key=lambda flag: flag.opt.section):
            with formatter.section(section.upper() if section in ("ipc", "http") else section.capitalize()):
                formatter.write_dl([record for flag in group if (record := flag.get_help_record(ctx))])


def given_flags(options: Iterable[Option], given: Mapping[str, Any]) -> dict[str, str | bool]:
    """Return the flags that were given, by option key."""
    values = ((opt, given[_parameter(opt)]) for opt in options)
    return {
        opt.key: ",".join(value) if isinstance(value, tuple) else value
        for opt, value in values
        if value is not None and value != ()
    }


def print_values(items: Iterable[tuple[Option, Any]], sources: Sources, as_json: bool) -> None:
    """Print every value with its origin, as a configuration file or as JSON."""
    values = list(items)
    if as_json:
        rows = {
            opt.key: {"value": value, "origin": sources.origins[opt.key], "reload": opt.reload} for opt, value in values
        }
        click.echo(json.dumps(rows, indent=1))
        return
    top = [(opt, value) for opt, value in values if "." not in opt.key]
    rest = [(opt, value) for opt, value in values if "." in opt.key]
    for opt, value in top:
        click.echo(f"{opt.key}: {write_value(value)}  # {sources.origins[opt.key]}")
    for section, group in groupby(rest, key=lambda item: item[0].section):
        click.echo(f"{section}:")
        for opt, value in group:
            click.echo(f"  {opt.name}: {write_value(value)}  # {sources.origins[opt.key]}")


class CannotWrite(Exception):
    """Standard output cannot be written, as on a full disk."""


def chosen(command: click.Command, arguments: list[str], program: str) -> Any:
    """Return what a command returns, once its output has been written. Raises: UmaError, UsageError, CannotWrite."""
    try:
        found = command.main(arguments, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return found
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's last flush succeeds
        raise CannotWrite(error.strerror) from None


def say(program: str, text: str, exit_status: int) -> int:
    """Print one line on standard error, and return the exit status."""
    with suppress(OSError):  # standard error is closed or full
        print(f"{program}: {text}".encode(errors="backslashreplace").decode(), file=sys.stderr)
    return exit_status
