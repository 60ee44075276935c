"""Every kernel table of this processor, and the NEON tables under emulation, are checked against f64 arithmetic: odd
sizes, exact buffers, sanitizers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernels import build

NEON = ["neon-i8mm", "neon-dotprod", "neon"]
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1"}
# Sanitizers and emulation make each case ten times as slow, so only one case in this many runs.
IS_FULL = os.environ.get("UMA_FUZZ") == "full"
ONE_IN = 1 if IS_FULL else 6
# Without unrolled loops, which compute the same, the largest NEON file compiles in 17 s instead of 56.
NEON_FLAGS = ["-O2"] if IS_FULL else ["-O2", "-DV_UNROLL="]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("kernels")
    shipped = build.shipped_check_program(folder / "shipped")
    sanitized = build.check_program(build.host(), build.SANITIZERS, tables(shipped), folder / "sanitized")
    return {"sanitized": sanitized, "shipped": shipped}


def check_all(command: list[str], parts: Collection[str], one_in: int) -> None:
    """Run as many checks at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda part: check(command, part, one_in), parts))


def check(command: list[str], part: str, one_in: int) -> None:
    arguments = [*part.split(), str(one_in)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    assert done.returncode == 0 and " 0 bad" in done.stdout, f"{part}: {done.stdout}\n{done.stderr[-4000:]}"


def listed(command: list[str]) -> list[str]:
    """Return what the program can check here: `mm TABLE` for every table, and `attention TABLE` for each different
    one.
    """
    return subprocess.run(
        [*command, "--list"], capture_output=True, text=True, check=True, env=ENVIRONMENT
    ).stdout.splitlines()


def tables(command: list[str]) -> list[str]:
    return [name for part, name in (line.split() for line in listed(command)) if part == "mm"]


@pytest.mark.fuzz
@pytest.mark.parametrize(("build_name", "one_in"), [("sanitized", ONE_IN), ("shipped", 1)])
def test_every_table_of_this_processor_computes_what_the_formats_say(programs, build_name, one_in):
    found = listed(programs[build_name])
    assert found[-2:] == ["mm portable", "attention portable"]
    check_all(programs[build_name], found, one_in)


def test_an_unknown_table_is_refused(programs):
    done = subprocess.run([*programs["shipped"], "mm", "sse9"], capture_output=True, text=True)
    assert done.returncode == 2 and "sse9" in done.stderr


@pytest.mark.fuzz
def test_neon_tables_compute_what_the_formats_say(tmp_path: Path):
    command = build.check_program(build.arm(), NEON_FLAGS, NEON, tmp_path / "check")
    assert tables(command) == [*NEON, "portable"] or not build.arm().run
    check_all(command, [part for part in listed(command) if "neon" in part], ONE_IN)


def test_a_processor_without_the_extensions_gets_plain_neon(tmp_path: Path):
    compilers = build.arm()
    if not compilers.run:
        assert "neon" in tables(build.check_program(compilers, NEON_FLAGS, NEON, tmp_path / "check"))
        return
    program = build.check_program(compilers, NEON_FLAGS, NEON, tmp_path / "check")[-1]
    assert tables([compilers.run[0], "-cpu", "cortex-a72", program]) == ["neon", "portable"]
