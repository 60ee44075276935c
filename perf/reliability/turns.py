"""Turns on a shared machine: work waits for its turn, and long work is cut into segments with pauses."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class Turns:
    """How to share the machine with others."""

    # a command that runs the command appended to it when its turn has come, such as `flock FILE`; empty: at once
    gate: str = ""
    segment_s: float = 0.0  # longest turn of work that can be cut; 0: no cuts
    pause_s: float = 0.0  # between two segments

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and keep it until the block ends (or this process does)."""
        if not self.gate:
            yield
            return
        with subprocess.Popen(
            [*shlex.split(self.gate), "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        ) as holder:
            assert holder.stdin is not None and holder.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # the command has ended already: the next line shows how
                holder.stdin.write(b"\n")
            if holder.stdout.readline() != b"\n":
                raise click.ClickException(f"--gate {self.gate}: it did not run the command that was appended to it")
            try:
                yield
            finally:
                holder.stdin.close()  # the end of its input ends `cat`, and with it the turn
