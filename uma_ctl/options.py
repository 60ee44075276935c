"""Options that several commands share, each declared once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from uma_core.endpoint import FALLBACK, GIVEN
from uma_core.protocol.fields import Field, Kind
from uma_core.protocol.ops import DEFAULT_OP, OPS
from uma_core.types import PRIORITIES
from uma_ctl.client import DEFAULT_TIMEOUT_S, Client
from uma_ctl.declared import all_of, help_of, type_of
from uma_ctl.ranges import FiniteRange, seconds

F = TypeVar("F", bound=Callable[..., Any])

THOUGHT = ("<think>", "</think>")  # the tags of most templates

socket_option = click.option(
    "--socket", "socket_path", envvar=GIVEN, show_envvar=True, metavar="PATH",
    help=f"The daemon's socket; default: $XDG_RUNTIME_DIR/uma.sock, then {FALLBACK}.",
)  # fmt: skip
JSON_HELP = "JSON for machines instead of text for people."
json_option = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)


def adapter(text: str) -> dict[str, Any]:
    """Read `ID` or `ID=SCALE`. Raises: BadParameter."""
    name, _, scale = text.partition("=")
    try:
        return {"id": name, "scale": FiniteRange().convert(scale or 1, None, None)}
    except click.BadParameter:
        raise click.BadParameter(f"{text!r} is neither ID nor ID=SCALE") from None


def _field(path: str) -> Field:
    """Return the declaration of generate's field of that name."""
    first, *rest = path.split(".")
    field = next(field for field in OPS[DEFAULT_OP].fields if field.name == first)
    for name in rest:
        field = next(inner for inner in field.fields if inner.name == name)
    return field


def _field_option(name: str, path: str) -> Callable[[F], F]:
    field = _field(path)
    if field.kind is Kind.BOOLEAN:
        return click.option(name, is_flag=True, default=None, help=help_of(field))
    return click.option(name, type=type_of(field), help=help_of(field))


def _refuse_image(context: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.BadParameter("images are not supported: the daemon reads only text", context, param)


_GENERATION = (
    _field_option("--max-tokens", "max_tokens"),
    _field_option("--min-tokens", "min_tokens"),
    _field_option("--ignore-eos", "ignore_eos"),
    click.option(
        "--temp",
        "--temperature",
        "temperature",
        type=type_of(_field("temperature")),
        help=help_of(_field("temperature")),
    ),
    _field_option("--top-p", "top_p"),
    _field_option("--top-k", "top_k"),
    _field_option("--min-p", "min_p"),
    _field_option("--repeat-penalty", "repeat_penalty"),
    _field_option("--seed", "seed"),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. May be repeated."),
    click.option(
        "--lora",
        multiple=True,
        metavar="ID[=SCALE]",
        callback=lambda _, __, given: [adapter(text) for text in given],
        help="Use this LoRA adapter. May be repeated; a single ID=0 means no adapters.",
    ),
    click.option(
        "--banned", multiple=True, metavar="TEXT", help="A text that the answer never contains. May be repeated."
    ),
    _field_option("--n", "n"),
    _field_option("--logprobs", "logprobs"),
    click.option(
        "--think",
        nargs=2,
        metavar="START END",
        help=f"Texts that begin and end a thought; default: {' '.join(THOUGHT)}.",
    ),
    _field_option("--reasoning-budget", "reasoning.budget_tokens"),
    click.option(
        "--image",
        expose_value=False,
        callback=_refuse_image,
        metavar="FILE",
        help="Not supported: the daemon reads only text.",
    ),
    click.option("--priority", type=click.Choice(PRIORITIES), help="Priority of the request; default: inferred."),
    click.option("--timeout", type=seconds(0, is_open=True), metavar="SECONDS", help="End the answer after this long."),
)

_PROMPT = (
    click.option("--prompt", "-p", metavar="TEXT", help="The prompt; default: standard input."),
    click.option("--no-stream", is_flag=True, help="Print the whole answer at its end."),
)


generation_options = all_of(_GENERATION)  # sampling, limits and priority of a request
prompt_options = all_of(_PROMPT)


class Target:
    """The daemon that a command talks to, and the form of the command's output."""

    def __init__(self, socket_path: str | None, as_json: bool) -> None:
        self.socket_path = socket_path or None  # empty means the same as absent: search the default paths
        self.as_json = as_json

    def connect(self, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> Client:
        return Client(self.socket_path, timeout_s)


_own_socket = click.option("--socket", "own_socket", metavar="PATH", help="The daemon's socket.")
_own_json = click.option("--json", "own_json", is_flag=True, help=JSON_HELP)


def with_target(command: F) -> F:
    """Give a command its Target, and let `--socket` and `--json` follow the command as well as the group."""

    def run(target: Target, /, own_socket: str | None, own_json: bool, **options: Any) -> Any:
        return command(Target(own_socket or target.socket_path, own_json or target.as_json), **options)

    functools.update_wrapper(run, command)  # also copies the options that click has attached so far
    return cast(F, _own_socket(_own_json(click.pass_obj(run))))


def read_prompt(given: str | None) -> str:
    """Return the given prompt, or else all of standard input. Raises: UsageError if there is none, or it is empty."""
    text = read_stdin("no prompt: give TEXT or --prompt, or pipe it in") if given is None else given
    if not text:
        raise click.UsageError("the prompt is empty")
    return text


def read_stdin(absent: str) -> str:
    """Read all of standard input. Raises: UsageError with the text `absent` if it is a terminal, instead of waiting."""
    if sys.stdin.isatty():
        raise click.UsageError(absent)
    return sys.stdin.read()
