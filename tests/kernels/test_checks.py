"""Every kernel table of this processor, and the NEON ones under emulation, against f64 arithmetic: odd sizes, exact
buffers, sanitizers.
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


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("kernels")
    host = build.host()
    return {
        "sanitized": build.check_program(host, build.SANITIZERS, folder / "sanitized"),
        "optimised": build.check_program(host, ["-O3"], folder / "optimised"),
    }


def check_all(command: list[str], names: Collection[str]) -> None:
    """As many at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = dict(zip(names, pool.map(lambda table: check(command, table), names), strict=True))
    assert {table for table, report in reports.items() if report.count(" 0 bad") != 2} == set(), reports


def check(command: list[str], table: str) -> str:
    done = subprocess.run([*command, table], capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


def tables(command: list[str]) -> list[str]:
    return subprocess.run(
        [*command, "--list"], capture_output=True, text=True, check=True, env=ENVIRONMENT
    ).stdout.split()


@pytest.mark.parametrize("build_name", ["sanitized", "optimised"])
def test_every_table_of_this_processor_computes_what_the_formats_say(programs, build_name):
    found = tables(programs[build_name])
    assert found[-1] == "portable"
    check_all(programs[build_name], found)


def test_an_unknown_table_is_refused(programs):
    done = subprocess.run([*programs["optimised"], "sse9"], capture_output=True, text=True)
    assert done.returncode == 2 and "sse9" in done.stderr


def test_neon_tables_compute_what_the_formats_say(tmp_path: Path):
    command = build.check_program(build.arm(), ["-O2"], tmp_path / "check")
    assert tables(command) == [*NEON, "portable"] or not build.arm().run
    check_all(command, set(NEON) & set(tables(command)))


def test_a_processor_without_the_extensions_gets_plain_neon(tmp_path: Path):
    compilers = build.arm()
    if not compilers.run:
        assert "neon" in tables(build.check_program(compilers, ["-O2"], tmp_path / "check"))
        return
    program = build.check_program(compilers, ["-O2"], tmp_path / "check")[-1]
    assert tables([compilers.run[0], "-cpu", "cortex-a72", program]) == ["neon", "portable"]
