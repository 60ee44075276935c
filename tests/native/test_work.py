"""What a graph's custom operations compute is read as C allows it: see check_work.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

from native.build import LIB_DIR, ROOT
from native.probe import library_paths
from tests.kernels import build

SOURCES = [ROOT / "native" / "graph" / "recurrent.c", Path(__file__).parent / "check_work.c"]
SANITIZE = "-fsanitize=undefined"


def test_the_work_of_custom_operations_is_read_under_sanitizers(tmp_path: Path) -> None:
    made = build.objects(SOURCES, build.host(), ["-O1", "-g1", SANITIZE, "-fno-sanitize-recover=all"])
    libraries = [*map(str, library_paths(LIB_DIR)), f"-Wl,-rpath,{LIB_DIR}"]
    program = build.link(
        [*build.host().cxx, SANITIZE, *map(str, made), *libraries, "-pthread"], tmp_path / "check_work"
    )
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
