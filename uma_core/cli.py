"""The command line of the daemon. Flags are generated from the options; nothing is decided here.

Rules: errors are one line on stderr and the exit status of their code.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import sys

import click

from uma_core import __version__, openmp
from uma_core.config.flags import CannotWrite, FlagsCommand, OptionFlag, chosen, given_flags, print_values, say
from uma_core.config.load import SCHEMA, Inputs, Sources, load
from uma_core.config.options import OPTIONS, Config
from uma_core.errors import ErrorCode, UmaError
from uma_core.log import Output, fill_standard_descriptors
from uma_core.machine import limit_room, stack_bytes

PROGRAM = "uma-core"
START_BYTES = 56 << 20  # private memory of the interpreter and all imported modules
N_THREADS = 6  # log, compute, two of the intake, loader, cache
N_DESCRIPTORS = 24  # for a start with every option that opens something, and a few connections


class Group(click.Group):
    """Says where the daemon's flags belong if one is given without the command, and how to start the daemon if there
    is no such command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [name for flag in self.commands["daemon"].params for name in (*flag.opts, *flag.secondary_opts)]
            if error.option_name not in flags:
                raise
            text = f"{error.option_name} is an option of the command daemon: {PROGRAM} daemon {error.option_name} ..."
            raise click.UsageError(text, ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            text = f"{error.format_message()} This starts the daemon: {PROGRAM} daemon"
            raise click.UsageError(text, ctx) from None


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """UMA Serve's daemon: one model, shared by all applications of a machine."""


@cli.command(cls=FlagsCommand, params=[OptionFlag(opt) for opt in OPTIONS], context_settings={"allow_extra_args": True})
@click.option(
    "--config", "path", metavar="FILE", default="", envvar="UMA_CONFIG", help="YAML file with options.  [UMA_CONFIG]"
)
@click.option("--check-config", is_flag=True, help="Check the configuration and exit.")
@click.option("--print-config", is_flag=True, help="Print every value with its origin and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --print-config: print JSON.")
@click.option("--estimate", is_flag=True, help="Print the memory that the model needs, as JSON in bytes, and exit.")
@click.pass_context
def daemon(
    ctx: click.Context,
    /,
    path: str,
    check_config: bool,
    print_config: bool,
    as_json: bool,
    estimate: bool,
    **given: str | bool | None,
) -> tuple[Config, Sources] | None:
    """Serve until told to stop. Precedence: flag > variable > file > preset > default."""
    if ctx.args:
        raise click.UsageError(f"{ctx.args[0]!r} is not a flag; a model is given with a flag: --model PATH")
    if as_json and not (print_config or estimate):
        raise click.UsageError("--json goes with --print-config")
    config, sources = load(
        Inputs(
            given_flags(OPTIONS, given),
            {name: text for name, text in os.environ.items() if name.startswith("UMA_")},
            path,
        )
    )
    if print_config:
        print_values(SCHEMA.items(config), sources, as_json)
    elif check_config:
        for warning in sources.warnings:
            click.echo(f"{PROGRAM}: warning: {warning}", err=True)
        click.echo("the configuration is valid")
    elif estimate:
        estimate_with_draft = importlib.import_module("uma_core.engine.draft").estimate_with_draft
        need = estimate_with_draft(config.engine, config.speculation)
        click.echo(json.dumps({**{f"{name}_bytes": n for name, n in need._asdict().items()}, "total_bytes": sum(need)}))
    else:
        return config, sources
    return None


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"{PROGRAM} {__version__}")


def main() -> int:
    """The entry point of the console script: parse, build, run."""
    fill_standard_descriptors()
    try:
        given = chosen(cli, sys.argv[1:] or ["--help"], PROGRAM)  # None: the requested text has been printed
        return _run(*given) if isinstance(given, tuple) else 0
    except UmaError as error:
        return _fail(error)
    except MemoryError:
        return _fail(UmaError(ErrorCode.INSUFFICIENT_MEMORY, "the daemon itself has no memory"))
    except click.UsageError as error:
        return _fail(UmaError(ErrorCode.CONFIG_INVALID, error.format_message()))
    except CannotWrite as error:
        return say(PROGRAM, f"cannot write to standard output: {error}", 1)
    except (click.Abort, KeyboardInterrupt):  # Ctrl-C before the daemon handles it
        return 130


def _check_memory() -> None:
    """Check the process's memory limit at startup, so that the daemon does not fail while it starts its first threads.

    Raises: INSUFFICIENT_MEMORY.
    """
    room, need = limit_room(), START_BYTES + N_THREADS * stack_bytes()
    if room is not None and room < need:
        text = (
            f"the daemon needs {need >> 20} MiB before it loads a model, its limit (ulimit -d or -v) leaves "
            f"{room >> 20}"
        )
        raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, text, need_mb=need >> 20, limit_mb=room >> 20)


def _check_descriptors() -> None:
    """Check the limit on open files at startup, so that the daemon does not fail later, at the first file too many.

    Raises: CONFIG_INVALID.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # the soft limit is raised to it
    if hard != resource.RLIM_INFINITY and hard < N_DESCRIPTORS:
        text = f"the daemon needs {N_DESCRIPTORS} open files, the system allows {hard} (ulimit -Hn, LimitNOFILE)"
        raise UmaError(ErrorCode.CONFIG_INVALID, text)


def _run(config: Config, sources: Sources) -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # unused by numpy here: saves 40 MiB and a thread per core
    _check_memory()
    _check_descriptors()
    output = Output(config.log)
    try:
        for warning in sources.warnings:
            logging.getLogger(__name__).warning(warning)
        # imported here because it loads the compiled bindings, which must not be needed to check a configuration
        with openmp.configured(config.engine.threads):
            daemon = importlib.import_module("uma_core.server.lifecycle.daemon")
        return int(daemon.run(config, sources))
    finally:
        output.close()


def _fail(error: UmaError) -> int:
    return say(PROGRAM, " ".join(str(error).split()), error.error.spec.exit_status)
