"""A build for another processor is refused with a code before its libraries are loaded. A portable build has a backend
for each processor.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from native.build import ROOT
from native.instructions import BASE, VARIANTS
from tests.engine.conftest import DRAFT
from tests.tools import need
from uma_core.engine import processor
from uma_core.errors import ErrorCode, UmaError

RECORD = {"variants": [(each.name, each.needs) for each in VARIANTS]}
on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not sys.platform.startswith("linux"), reason="x86-64 Linux alone has variants"
)


@pytest.mark.parametrize("name", [each.name for each in VARIANTS])
def test_each_backend_is_chosen_on_the_processor_that_it_is_for(name: str) -> None:
    has = frozenset(*(each.needs for each in VARIANTS if each.name == name))
    assert processor.best(RECORD, has) == name


@pytest.mark.parametrize(
    ("isa", "name"),
    [
        ("", "sapphirerapids"),
        ("auto", "sapphirerapids"),
        ("avx512vnni", "zen4"),
        ("avx512", "skylakex"),
        ("avxvnni", "alderlake"),
        ("avx2", "haswell"),
        ("portable", ""),
    ],
)
def test_another_instruction_set_gets_the_backend_of_a_processor_that_has_no_better(isa: str, name: str) -> None:
    everything = frozenset(need for each in VARIANTS for need in each.needs)
    assert processor.best(RECORD, processor.limited(everything, isa)) == name


def test_an_old_processor_gets_the_plain_backend() -> None:
    assert processor.best(RECORD, frozenset(BASE.needs)) == ""
    assert processor.best({}, frozenset(BASE.needs)) == ""


def test_what_a_processor_lacks_is_named() -> None:
    with pytest.raises(UmaError, match=r"another machine.*avx2, fma.*UMA_BUILD=portable") as caught:
        processor.check({"needs": ["pni", "avx2", "fma"], "is_native_cpu": True}, frozenset({"pni", "avx"}))
    assert caught.value.error is ErrorCode.WRONG_PROCESSOR
    processor.check({"needs": ["pni"]}, frozenset({"pni", "avx"}))
    processor.check({}, frozenset({"pni"}))
    processor.check({"needs": ["avx2"]}, frozenset())  # a system that does not report its features


@on_x86
def test_the_processor_is_asked_and_runs_this_build() -> None:
    has = processor.features(processor.FOLDER)
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    assert has and has - {"lzcnt"} <= set(flags)
    processor.prepare()


@on_x86
def test_on_a_processor_of_2008() -> None:
    """A build for this machine's processor reports that it does not fit; a portable build serves.

    (numpy's OpenBLAS does not recognize qemu's processor.)
    """
    (qemu,) = need("qemu-x86_64")
    code = (
        "from uma_core.engine.select.open import estimate_engine\n"
        "from uma_core.config.options import EngineOptions\n"
        f"estimate_engine(EngineOptions(engine='llama', n_ctx=256), {DRAFT!r})\n"
        "print('served')\n"
    )
    environ = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [qemu, "-cpu", "Nehalem", sys.executable, "-c", code],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    record = json.loads((processor.FOLDER / processor.RECORD).read_text())
    if record["variants"] or "avx" not in record["needs"]:
        assert (done.returncode, done.stdout) == (0, "served\n"), done
    else:
        assert done.returncode == 1 and "E_CONFIG_004 wrong_processor" in done.stderr, done
