"""The deployment files name what exists."""

from __future__ import annotations

import plistlib
import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from uma_core.config import OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
UNITS = sorted((DOCS / "deploy").glob("uma-core.*"))


def read_unit(path: Path) -> ConfigParser:
    parser = ConfigParser(strict=True, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def test_both_units_are_there_and_parse():
    assert [path.name for path in UNITS] == ["uma-core.service", "uma-core.socket"]
    service, socket = map(read_unit, UNITS)
    assert service["Service"]["NotifyAccess"] == "main"
    assert service["Unit"]["Requires"] == "uma-core.socket"
    assert socket["Socket"]["SocketMode"] == "0600"


def test_the_watchdog_waits_longer_than_the_hang_detection():
    hang_ms = next(opt.default for opt in OPTIONS if opt.key == "engine.hang_timeout_ms")
    assert int(read_unit(UNITS[0])["Service"]["WatchdogSec"]) * 1000 > hang_ms


def test_stopping_waits_longer_than_a_drain():
    drain_ms = next(opt.default for opt in OPTIONS if opt.key == "drain.deadline_ms")
    plist = plistlib.loads((DOCS / "deploy" / "com.uma-serve.plist").read_bytes())
    assert int(read_unit(UNITS[0])["Service"]["TimeoutStopSec"]) * 1000 > drain_ms
    assert plist["ExitTimeOut"] * 1000 > drain_ms
    assert plist["ProgramArguments"][1] == "daemon"


@pytest.mark.parametrize("path", [DOCS / "DEPLOY.md", *UNITS], ids=lambda path: path.name)
def test_options_that_are_named_exist(path):
    flags = {opt.flag for opt in OPTIONS} | {"--config"}
    keys = {opt.key for opt in OPTIONS}
    sections = {key.split(".")[0] for key in keys}
    text = path.read_text()
    for line in re.findall(r"uma-core daemon ([^\n`]*)", text):
        assert set(re.findall(r"--[a-z-]+", line)) <= flags
    named = {f"{section}.{name}" for section, name in re.findall(r"`([a-z]+)\.([a-z_]+)(?::[^`]*)?`", text) if section in sections}
    assert named <= keys | {"engine.llama_cpp", "reload.last", "reload.error"}
