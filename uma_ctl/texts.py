"""Input texts from the command line, from files, or from standard input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

import click

from uma_ctl.options import read_stdin


def _text(file: TextIO) -> str:
    """Read the whole file. Raises: UsageError if it cannot be read or is not text."""
    try:
        return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file.name}: {error}") from None


def inputs_of(texts: Iterable[str], files: Iterable[TextIO], by_lines: bool) -> list[str]:
    """Return all inputs, in the given order. Raises: UsageError if there are none, or one is empty."""
    chosen = [*texts]
    read = [_text(file) for file in files]
    if not chosen and not read:
        text = read_stdin("no texts: give them or --file, or pipe them in")
        read = [text] if text else []
    for text in read:
        # not splitlines, which also breaks a line at such as a form feed or U+2028
        chosen += [line for line in text.split("\n") if line.strip()] if by_lines else [text]
    if not chosen or not all(chosen):
        raise click.UsageError("an input is empty" if chosen else "there is no input")
    return chosen
