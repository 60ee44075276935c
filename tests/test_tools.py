"""Tests never install the tools that they need: they ask for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tools

ROOT = Path(__file__).resolve().parents[1]
SKIPPING = """
import pytest
def test_that_passes(): pass
def test_that_is_skipped(): pytest.skip("for a reason")
"""


def test_a_missing_program_is_a_skip_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: None)
    with pytest.raises(pytest.skip.Exception) as skipped:
        tools.need("nc", "qemu-aarch64")
    assert "nc and qemu-aarch64" in str(skipped.value)
    assert "make test-deps" in str(skipped.value) and "apt-get install netcat-openbsd qemu-user" in str(skipped.value)


def test_what_is_there_is_given(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: f"/bin/{program}")
    assert tools.need("nc", "qemu-aarch64") == ["/bin/nc", "/bin/qemu-aarch64"]


def test_a_program_that_was_only_unpacked_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "UNPACKED", tmp_path)
    assert tools.find("uma-no-such-program") is None
    program = tmp_path / "usr" / "bin" / "uma-no-such-program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert tools.find("uma-no-such-program") == str(program)


def test_no_test_runs_a_package_manager():
    words = ("apt-" + "get", "dpkg" + "-deb", "pip" + " install", "npm" + " install")
    callers = [
        path for path in (ROOT / "tests").rglob("*.py") if any(f'"{word}"' in path.read_text() for word in words)
    ]
    assert callers == [ROOT / "tests" / "tools.py"]


@pytest.mark.parametrize(("no_skips", "status"), [("", 0), ("1", 1)])
def test_a_skip_fails_a_run_that_allows_none(tmp_path, no_skips, status):
    (tmp_path / "test_a.py").write_text(SKIPPING)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"UMA_NO_SKIPS": no_skips, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stdout
    assert "1 passed, 1 skipped" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("tool", tools.TOOLS, ids=lambda tool: tool.program)
def test_every_tool_is_asked_for_by_some_test(tool):
    users = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if f'"{tool.program}"' in path.read_text() and path != Path(__file__)
    ]
    users += [path for path in (ROOT / "tests").rglob("build.py") if f'"{tool.program}"' in path.read_text()]
    assert users
