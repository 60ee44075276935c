"""`uma-gateway`: the command line. Flags are generated from the options; nothing is decided here.

Rules: errors are one line on stderr and the exit status of their code.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from uma_core._version import __version__
from uma_core.config.flags import CannotWrite, FlagsCommand, OptionFlag, chosen, given_flags, print_values, say
from uma_core.config.merge import Inputs, merge
from uma_core.errors import ErrorCode, UmaError
from uma_core.log import Output, fill_standard_descriptors
from uma_gateway.config import CONFIG_VARIABLE, OPTIONS, PREFIX, SCHEMA, Config

PROGRAM = "uma-gateway"
Work = Callable[[], int]  # runs a command whose options have been read, and returns its exit status


class Group(click.Group):
    """Without a command, `uma-gateway` serves; `uma-gateway key NAME` and others are commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help", "--version")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


class HelpfulGroup(click.Group):
    """Shows its help if no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """HTTP for a UMA Serve daemon: the APIs that existing programs use.

    `uma-gateway [FLAGS]` is `uma-gateway serve [FLAGS]`.
    """


@cli.command(cls=FlagsCommand, params=[OptionFlag(opt) for opt in OPTIONS])
@click.option(
    "--config",
    "path",
    metavar="FILE",
    default="",
    envvar=CONFIG_VARIABLE,
    help=f"YAML file with options.  [{CONFIG_VARIABLE}]",
)
@click.option("--check-config", is_flag=True, help="Check the configuration and exit.")
@click.option("--print-config", is_flag=True, help="Print every value with its origin and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --print-config: print JSON.")
def serve(path: str, check_config: bool, print_config: bool, as_json: bool, **given: str | bool | None) -> Work | None:
    """Answer HTTP until told to stop. Precedence: flag > variable > file > default."""
    if as_json and not print_config:
        raise click.UsageError("--json goes with --print-config")
    environ = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
    config, sources = merge(SCHEMA, Inputs(given_flags(OPTIONS, given), environ, path))
    if print_config:
        shown = (
            (opt, "(set)" if opt.key == "access.api_key" and value else value) for opt, value in SCHEMA.items(config)
        )
        print_values(shown, sources, as_json)
        return None
    keys = importlib.import_module("uma_gateway.keys").Keys(config.access.api_key_file, config.access.api_key)
    if check_config:
        for warning in sources.warnings:
            click.echo(f"{PROGRAM}: warning: {warning}", err=True)
        click.echo("the configuration is valid")
        return None
    return partial(_run, config, sources.warnings, keys)


@cli.command()
@click.argument("name")
def key(name: str) -> None:
    """Make an API key, and print it with its entry for the key file.

    The key is shown once and stored nowhere; the file holds its hash.
    """
    keys = importlib.import_module("uma_gateway.keys")
    made = keys.new_key()
    entry = keys.entry(name, made)
    click.echo(f"# the key, for its user: {made}", err=True)
    click.echo(entry, nl=False)


@cli.group(cls=HelpfulGroup, short_help="Several machines behind one address, on Ray Serve.")
def cluster() -> None:
    """Several machines behind one address, on Ray Serve (docs/CLUSTER.md)."""


@cluster.command(short_help="Start a cluster, or change the settings of a running one.")
@click.option(
    "--config", "path", metavar="FILE", default="", help="YAML file with the cluster's settings (docs/CLUSTER.md)."
)
@click.option("--nodes", type=int, help="Machines that get daemons; 0: all; default: the file's, else all.")
@click.option(
    "--address",
    help="Address of the Ray cluster, as host:port; default: this machine's, started if necessary without --detach.",
)
@click.option("--host", help="Address to listen on; default: the file's, else 127.0.0.1.")
@click.option("--port", type=int, help="Port to listen on; default: the file's, else 8080.")
@click.option("--detach", is_flag=True, help="Return once the cluster runs; it runs until `cluster down`.")
@click.option("--check-config", is_flag=True, help="Check the settings and the gateway's key file and exit.")
def up(path: str, detach: bool, check_config: bool, **given: str | int | None) -> Work | None:
    """Start a cluster, or change the settings and machines of a running one; stop it when told to."""
    module = importlib.import_module("uma_gateway.cluster.settings")
    settings = module.load(path, **given)
    if check_config:
        access = module.gateway_config(settings).access
        importlib.import_module("uma_gateway.keys").Keys(access.api_key_file, access.api_key)
        click.echo("the settings are valid")
        return None
    return partial(_cluster().up, settings, not detach, click.echo)


@cluster.command(name="status")
@click.option("--address", default="", help="Address of the Ray cluster, as host:port; default: this machine's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster_status(address: str, as_json: bool) -> None:
    """Show nodes and models."""
    command = _cluster()
    rows = command.status(address)
    click.echo(command.as_json(rows) if as_json else command.table(rows))


@cluster.command()
@click.option("--address", default="", help="Address of the Ray cluster, as host:port; default: this machine's.")
def down(address: str) -> None:
    """Stop the cluster; running answers may finish."""
    _cluster().down(address)


def _cluster() -> Any:
    """Import the cluster's commands. Raises: CONFIG_INVALID without the extra."""
    importlib.import_module("uma_gateway.cluster.token").use(os.environ, Path.home())
    return _of_extra("cluster", "uma_gateway.cluster.command")


def _of_extra(extra: str, module: str) -> Any:
    """Import a module that needs an optional extra; checking a configuration must not need it. Raises:
    CONFIG_INVALID.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("uma_"):
            raise
        message = f"{error.name} is not installed: pip install '.[{extra}]' in the source tree"
        raise UmaError(ErrorCode.CONFIG_INVALID, message) from None


def _run(config: Config, warnings: tuple[str, ...], keys: object) -> int:
    output = Output(config.log, root="uma_gateway")
    logging.getLogger("uvicorn").addHandler(output)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        for warning in warnings:
            logging.getLogger(__name__).warning(warning)
        return int(_of_extra("http", "uma_gateway.server").serve(config, keys))
    finally:
        output.close()


def main() -> int:
    """Parse the command line and run the command: the console script's entry point."""
    fill_standard_descriptors()
    try:
        work = chosen(cli, sys.argv[1:], PROGRAM)  # None: the command has already run
        return int(work()) if callable(work) else 0
    except UmaError as error:
        return _fail(error)
    except click.UsageError as error:
        return _fail(UmaError(ErrorCode.CONFIG_INVALID, error.format_message()))
    except CannotWrite as error:
        return say(PROGRAM, f"cannot write to standard output: {error}", 1)
    except click.Abort:
        return 130


def _fail(error: UmaError) -> int:
    return say(PROGRAM, " ".join(str(error).split()), error.error.spec.exit_status)


if __name__ == "__main__":
    sys.exit(main())
