"""Programs that some tests run but neither the build nor the product needs: the purpose of each, and the Debian
packages that contain it.

A test asks for programs with `need`, and is skipped if one is absent. No test installs anything; `make test-deps` does
that (`python -m tests.tools install`). Packages whose installation would start a service are only unpacked, into the
virtual environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

UNPACKED = Path(sys.prefix) / "tools"


class Tool(NamedTuple):
    program: str
    packages: tuple[str, ...]  # names of Debian packages
    purpose: str
    is_service: bool = False  # its installation starts a service


TOOLS = (
    Tool("nc", ("netcat-openbsd",), "prompts as lines of text, as people type them"),
    Tool("aarch64-linux-gnu-gcc", ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"), "the NEON kernels"),
    Tool("qemu-aarch64", ("qemu-user",), "the NEON kernels"),
    Tool("qemu-x86_64", ("qemu-user",), "an older processor"),
    Tool("openssl", ("openssl",), "a certificate for HTTPS"),
    Tool("curl", ("curl",), "the examples, as people type them"),
    Tool("chromium", ("chromium",), "the web pages, in a browser"),
    Tool("systemd-analyze", ("systemd",), "the service units"),
    Tool("prometheus", ("prometheus",), "the metrics, as Prometheus reads them", is_service=True),
    Tool("promtool", ("prometheus",), "the metrics' text, by Prometheus' own rules", is_service=True),
)
BY_NAME = {tool.program: tool for tool in TOOLS}


def find(program: str) -> str | None:
    """Return the program's path; None if it is absent."""
    return shutil.which(program) or shutil.which(program, path=str(UNPACKED / "usr" / "bin"))


def need(*programs: str) -> list[str]:
    """Return the programs' paths. If one is absent, skip the test and say what to install."""
    missing = [BY_NAME[program] for program in programs if find(program) is None]
    if missing:
        names = " and ".join(tool.program for tool in missing)
        pytest.skip(f"needs {names}: `make test-deps` (Debian: apt-get install {' '.join(packages_of(missing))})")
    return [path for program in programs if (path := find(program)) is not None]


def packages_of(tools: Iterable[Tool]) -> list[str]:
    return sorted({package for tool in tools for package in tool.packages})


def install() -> int:
    """Install the missing programs. Exit status: 1 if this user or this system cannot install them."""
    missing = [tool for tool in TOOLS if find(tool.program) is None]
    to_install, to_unpack = (
        packages_of(tool for tool in missing if tool.is_service is wanted) for wanted in (False, True)
    )
    if not missing:
        return 0
    if shutil.which("apt-get") is None:
        print(f"no apt-get here; the tests use: {' '.join(tool.program for tool in missing)}", file=sys.stderr)
        return 1
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        _run([*as_root, "apt-get", "update", "-q"], environment)
        if to_install:
            _run([*as_root, "apt-get", "install", "-q", "-y", "--no-install-recommends", *to_install], environment)
        for package in to_unpack:
            _unpack(package, environment)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{error}\nas root: apt-get install {' '.join(packages_of(missing))}", file=sys.stderr)
        return 1
    return 0


def _unpack(package: str, environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", package], environment, folder)
        for archive in Path(folder).glob("*.deb"):
            _run(["dpkg-deb", "-x", str(archive), str(UNPACKED)], environment)


def _run(command: list[str], environment: dict[str, str], folder: str | None = None) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, check=True)


def main(arguments: list[str]) -> int:
    if arguments == ["install"]:
        return install()
    for tool in TOOLS:
        print(
            f"{'present' if find(tool.program) else 'absent':8} {tool.program:26} {' '.join(tool.packages):48} "
            f"{tool.purpose}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
