"""`uma-ctl`: the command group, and the mapping of every outcome to an exit status (`errors.py`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

import click

from uma_core._version import __version__
from uma_ctl import output, render
from uma_ctl.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE, EXIT_USAGE, CtlError, ServerError, StreamFailed
from uma_ctl.options import Target, json_option, socket_option

COMMANDS = {  # verb -> its line in --help; commands/<verb>.py is imported only when it is used
    "status": "What the daemon is doing; --watch, --wait ready.",
    "socket": "Where the daemon listens, for other programs.",
    "health": "Tell by exit code whether requests would be accepted now.",
    "generate": "Generate text from a prompt.",
    "chat": "Talk with the model.",
    "tokenize": "Show the tokens of a text, or count them.",
    "detokenize": "Show the text of tokens.",
    "embed": "Compute embeddings of texts.",
    "rerank": "Order documents by how well they answer a query.",
    "sessions": "List the requests in flight, and what they wait for.",
    "cancel": "End a request.",
    "metrics": "Show all metrics; --prometheus for scrapers.",
    "top": "Live dashboard in the terminal.",
    "drain": "Refuse new work; with --then exit, stop when streams have ended.",
    "undrain": "Accept new work again.",
    "reload": "Read the configuration again, or load another model.",
    "cache": "Show or change the prefix cache.",
    "trace": "Record ticks for Perfetto or chrome://tracing.",
}
ELSEWHERE = {  # verb of other programs -> what to type here
    **dict.fromkeys(("stop", "shutdown", "exit", "quit", "kill"), "drain --then exit"),
    "ps": "sessions",
    "load": "reload --model PATH",
    "run": "chat",
}


class LazyGroup(click.Group):
    """Imports only the command that is run, so `uma-ctl status` does not pay for the dashboard."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"uma_ctl.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises: UsageError, which suggests the nearest verb."""
        verb = args[0]
        if verb not in COMMANDS and not verb.startswith("-"):
            near = [ELSEWHERE[verb]] if verb in ELSEWHERE else get_close_matches(verb[:64], COMMANDS, 1)
            if near:
                raise click.UsageError(f"No such command {verb!r}. Did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@socket_option
@json_option
@click.version_option(__version__)
@click.pass_context
def group(ctx: click.Context, socket_path: str | None, as_json: bool) -> None:
    """Control a UMA Serve daemon and talk to it.

    Exit codes: 0 success, 1 cannot connect or wrong usage, 2 the server refused or failed, 3 broken protocol.
    """
    ctx.obj = Target(socket_path, as_json)


def run(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a click command and return its exit status, whatever happens."""
    listed = list(sys.argv[1:] if arguments is None else arguments)
    output.fill_standard_streams()
    output.tolerate_any_text()
    try:
        return _status(command, name, listed)
    except CtlError as error:
        _show(error, name, "--json" in listed)
        if isinstance(error, StreamFailed):
            output.forget_stdout()
        return error.exit_status


def _status(command: click.Command, name: str, listed: list[str]) -> int:
    """Run the command and return its status. Raises: CtlError."""
    try:
        status = command.main(listed, prog_name=name, standalone_mode=False)
        output.emit("")
        return status if isinstance(status, int) else EXIT_OK
    except click.ClickException as error:
        with suppress(OSError):  # standard error accepts no more
            error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except output.ReaderGone:
        output.forget_stdout()
        return EXIT_PIPE
    except OSError as error:  # from a standard stream or click's help; commands handle those of files and peers
        raise StreamFailed(f"standard input or output failed: {error.strerror}") from None


def _show(error: CtlError, name: str, as_json: bool) -> None:
    if as_json:
        output.note(render.as_json({"error": error.to_dict()}))
    else:
        output.note(f"{name}: {render.error_line(error.event) if isinstance(error, ServerError) else error}")


def main() -> int:
    return run(group, "uma-ctl")


if __name__ == "__main__":
    sys.exit(main())
