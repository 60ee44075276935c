"""Everything that the deployment files name exists."""

from __future__ import annotations

import plistlib
import re
import subprocess
import sys
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.tools import need
from uma_core.config.options import OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
UNITS = sorted((DOCS / "deploy").glob("uma-core.*"))
SYSTEM_UNITS = sorted((DOCS / "deploy" / "system").glob("uma-core.*"))
CONTAINERFILES = sorted((DOCS / "deploy").glob("Containerfile.*"))


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


@pytest.mark.parametrize("service", [UNITS[0], SYSTEM_UNITS[0]], ids=["user", "system"])
def test_the_watchdog_waits_longer_than_the_hang_detection(service):
    hang_ms = next(opt.default for opt in OPTIONS if opt.key == "engine.hang_timeout_ms")
    assert int(read_unit(service)["Service"]["WatchdogSec"]) * 1000 > hang_ms


def test_the_system_service_owns_its_socket():
    service, socket = map(read_unit, SYSTEM_UNITS)
    assert service["Service"]["User"] == socket["Socket"]["SocketUser"] == "uma"
    assert socket["Socket"]["ListenStream"] in (DOCS / "DEPLOY.md").read_text()


@pytest.mark.parametrize(("manager", "units"), [("--user", UNITS), ("--system", SYSTEM_UNITS)])
def test_systemd_takes_the_units(manager, units, tmp_path):
    (analyze,) = need("systemd-analyze")
    program = Path(sys.executable).parent / "uma-core"
    for unit in units:
        text = re.sub(r"^ExecStart=\S+/uma-core ", f"ExecStart={program} ", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    command = [analyze, "verify", manager, "--man=no", *(str(tmp_path / unit.name) for unit in units)]
    done = subprocess.run(
        command,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [
        line for line in done.stderr.splitlines() if str(tmp_path) in line and "MemoryPressureWatch" not in line
    ]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_containerfiles_build_from_the_tree_and_start_the_daemon(path):
    text = path.read_text()
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(stages) == 2 and "COPY --from=build /opt/uma-serve /opt/uma-serve" in text
    assert "UMA_BUILD=portable" in text and 'ENTRYPOINT ["uma-core", "daemon"]' in text
    assert f"-f docs/deploy/{path.name} " in text and f"docs/deploy/{path.name}" in (DOCS / "DEPLOY.md").read_text()
    assert re.search(r"^USER uma$", text, re.MULTILINE)


def test_there_is_one_containerfile_for_each_kind_of_machine():
    assert [path.name for path in CONTAINERFILES] == ["Containerfile.cpu", "Containerfile.cuda"]


def test_containers_are_built_without_what_builds_made_in_the_tree():
    """`make build` leaves gigabytes in .venv, and libraries for one processor."""
    ignored = (DOCS.parent / ".gitignore").read_text().split()
    left_out = (DOCS.parent / ".dockerignore").read_text().splitlines()
    for name in (each.rstrip("/") for each in ignored if each != "*.py[cod]"):
        assert any(fnmatch(name, pattern.removeprefix("**/")) for pattern in left_out), name


def test_stopping_waits_longer_than_a_drain():
    drain_ms = next(opt.default for opt in OPTIONS if opt.key == "drain.deadline_ms")
    plist = plistlib.loads((DOCS / "deploy" / "com.uma-serve.plist").read_bytes())
    assert all(
        int(read_unit(unit)["Service"]["TimeoutStopSec"]) * 1000 > drain_ms for unit in (UNITS[0], SYSTEM_UNITS[0])
    )
    assert plist["ExitTimeOut"] * 1000 > drain_ms
    assert plist["ProgramArguments"][1] == "daemon"


@pytest.mark.parametrize(
    "path",
    [DOCS / "DEPLOY.md", *UNITS, *SYSTEM_UNITS, *CONTAINERFILES],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_options_that_are_named_exist(path):
    flags = {opt.flag for opt in OPTIONS} | {"--config"}
    keys = {opt.key for opt in OPTIONS}
    sections = {key.split(".")[0] for key in keys}
    text = path.read_text()
    for line in re.findall(r"uma-core daemon ([^\n`]*)", text):
        assert set(re.findall(r"--[a-z-]+", line)) <= flags
    named = {
        f"{section}.{name}"
        for section, name in re.findall(r"`([a-z]+)\.([a-z_]+)(?::[^`]*)?`", text)
        if section in sections
    }
    assert named <= keys | {"engine.llama_cpp", "reload.last", "reload.error"}
