"""Python that our programs start imports what they import, and nothing from the working directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from uma_core.own_python import python_command


def test_its_import_path_is_ours_and_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('another user's file')")
    monkeypatch.setattr(sys, "path", [*sys.path, "/a folder/with 'quotes' and \udcff"])
    command = python_command("import json; sys.stdout.write(json.dumps([sys.path, sys.argv[1:]]))")
    done = subprocess.run([*command, "a", "b"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == [sys.path, ["a", "b"]], done.stderr
