"""`python -m perf`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from perf import cli


@pytest.mark.parametrize("arguments", [["run", "strom"], ["accept", "--only", "solo", "--only", "strom"]])
def test_a_scenario_that_does_not_exist_is_said_before_anything_starts(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert "no scenario strom" in result.output and "storm" in result.output
