"""`uma-cli --prompt …`: `uma-ctl generate` on its own."""

from __future__ import annotations

import sys
from typing import Any

import click

from uma_core._version import __version__
from uma_ctl.commands.generate import generate
from uma_ctl.constraint import constraint_options
from uma_ctl.main import run
from uma_ctl.options import Target, generation_options, json_option, prompt_options, socket_option


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@socket_option
@json_option
@prompt_options
@generation_options
@constraint_options
@click.version_option(__version__)
def command(socket_path: str | None, as_json: bool, prompt: str | None, **options: Any) -> int:
    """Generate text from a prompt.

    Exit codes: 0 success, 1 cannot connect or wrong usage, 2 the server refused or failed, 3 broken protocol.
    """
    return generate(Target(socket_path, as_json), prompt, options)


def main() -> int:
    return run(command, "uma-cli")


if __name__ == "__main__":
    sys.exit(main())
