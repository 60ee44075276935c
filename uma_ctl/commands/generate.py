"""`uma-ctl generate`: a prompt in, text out as it is generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from uma_ctl import generation, output, render
from uma_ctl.constraint import constraint_options
from uma_ctl.options import Target, generation_options, prompt_options, read_prompt, with_target


@click.command()
@with_target
@click.argument("text", required=False)
@prompt_options
@generation_options
@constraint_options
def command(target: Target, text: str | None, prompt: str | None, **options: Any) -> int:
    """Generate what follows TEXT, or --prompt, or standard input.

    Text goes to standard output as it is generated; --json prints every event as a line. Ctrl-C cancels the request.
    """
    if text is not None and prompt is not None:
        raise click.UsageError("two prompts: give TEXT or --prompt")
    return generate(target, prompt if text is None else text, options)


def generate(target: Target, prompt: str | None, options: Mapping[str, Any]) -> int:
    """Run one request and return the exit status."""
    request = {"prompt": read_prompt(prompt), **generation.build_request(options)}
    answer = generation.show(target, request)
    if answer.exit_status and not target.as_json:
        output.note(f"the answer is not complete: {render.summary(answer.usage, answer.timing, answer.reason)}")
    return answer.exit_status
