"""In a terminal of 80 columns, no line of a command list is cut off."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from perf.cli import main as perf
from uma_core.cli import cli as core
from uma_ctl.main import group as ctl
from uma_gateway.cli import cli as gateway


@pytest.mark.parametrize(
    ("command", "args"),
    [(core, []), (ctl, []), (perf, []), (gateway, []), (gateway, ["cluster"])],
    ids=["uma-core", "uma-ctl", "perf", "uma-gateway", "uma-gateway cluster"],
)
def test_no_summary_of_a_command_is_cut_or_broken(command: click.Group, args: list[str]) -> None:
    shown = CliRunner().invoke(command, [*args, "--help"], terminal_width=80).output
    _, _, listed = shown.partition("Commands:\n")
    assert listed and "..." not in listed
    assert [line for line in listed.splitlines() if line.startswith("   ")] == [], "a line that goes on in a second one"
