"""The command line before anything is served."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from uma_core.errors import UmaError
from uma_gateway import cli as module
from uma_gateway.cli import cli


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["serve", "--help"]])
def test_help_needs_no_daemon(args: list[str]) -> None:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0 and done.output.startswith("Usage: ")


def test_flags_without_a_command_are_those_of_serve() -> None:
    named, unnamed = (CliRunner().invoke(cli, [*args, "--port", "x"]) for args in (["serve"], []))
    assert named.exit_code == unnamed.exit_code != 0 and named.output == unnamed.output


def test_an_extra_that_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name="uvicorn")

    monkeypatch.setattr(module.importlib, "import_module", absent)
    with pytest.raises(UmaError, match=r"uvicorn is not installed: pip install '\.\[http\]'"):
        module._of_extra("http", "uma_gateway.server")


def test_a_missing_module_of_ours_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name="uma_gateway.nothing")

    monkeypatch.setattr(module.importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError):
        module._of_extra("http", "uma_gateway.server")
