"""`python -m uma_core.trace`: replays recordings and shows their ticks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from uma_core.trace.lines import recorded
from uma_core.trace.replay import NO_TICKS, differences, shown

PIPE_CLOSED = 141  # 128 + SIGPIPE, like a program that the signal ended
USAGE = """usage: python -m uma_core.trace replay FILE
       python -m uma_core.trace show FILE [TICK] [SETTING=VALUE ...]"""
HELP = f"""{USAGE}

FILE is a recording: written by `uma-ctl trace --jsonl --out FILE` or by the daemon's option log.trace.

replay  Plan every recorded state again. Exit status: 0 if every plan is the same, 1 if one differs, 2 if FILE is not a
        recording.
show    Print the sessions and the plan of each tick, or of TICK alone. With settings, such as starvation_ticks=16 or
        aging_ns=5000000000, the plan is made with these: fields of SchedulerConfig (uma_core/policy/config.py), times
        in ns. All else stays as it was recorded, such as the credit and the error that earlier ticks left. Exit
        status: 0; 1 if FILE does not have TICK; 2 if FILE is not a recording or an argument is invalid."""


def main(argv: list[str]) -> int:
    if any(text in ("-h", "--help") for text in argv):
        print(HELP)
        return 0
    command, path, *more = (*argv, "", "")
    if command not in ("replay", "show") or not path or (command == "replay" and any(more)):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            status = _replay(file, path) if command == "replay" else _show(file, path, [text for text in more if text])
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe; buffered text has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return 2
    except (ValueError, KeyError, TypeError) as error:
        print(f"{path} is not a recording of this version, or a setting is wrong: {error}", file=sys.stderr)
        return 2


def _replay(file: TextIO, path: str) -> int:
    found = list(differences(file))
    for text in found:
        print(text)
    print(f"{path}: {'plans differ: ' + str(len(found)) if found else 'every plan is the same'}")
    return 1 if found else 0


def _show(file: TextIO, path: str, more: list[str]) -> int:
    """Show ticks. Returns 1 if the recording does not have the tick. Raises: ValueError."""
    ticks = [_tick(text) for text in more if "=" not in text]
    if len(ticks) > 1:
        raise ValueError("only one TICK can be shown")
    n = 0
    for text in shown(file, ticks[0] if ticks else None, _settings(text for text in more if "=" in text)):
        print(text)
        n += 1
    if not n:
        file.seek(0)
        numbers = [state.tick for _, _, state in recorded(file)]
        if not numbers:
            raise ValueError(NO_TICKS)
        has = f"ticks {numbers[0]} to {numbers[-1]}, without those that repeated a plan"
        print(f"{path} has {has}", file=sys.stderr)
    return 0 if n else 1


def _tick(text: str) -> int:
    """Read a tick number. Raises: ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"TICK is a number, not {text!r}") from None


def _settings(texts: Iterable[str]) -> dict[str, Any]:
    """Read settings. Raises: ValueError."""
    pairs = (text.partition("=") for text in texts)
    try:
        return {name: json.loads(value) for name, _, value in pairs}
    except ValueError as error:
        raise ValueError(f"a setting's value is JSON: {error}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
