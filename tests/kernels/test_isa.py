"""`UMA_ISA`: our kernels run as on a processor with fewer instructions.

Each case runs in a separate process, because a choice holds for a whole process. One that is refused chooses nothing.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import lru_cache

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from uma_core.config.load import SCHEMA
from uma_core.engine.lib import ffi, lib, text
from uma_core.engine.select.open import open_engine
from uma_core.errors import UmaError

ISAS = SCHEMA.by_key["engine.isa"].choices

PROGRAM = """
import dataclasses, json, sys
from tests.engine.conftest import DRAFT, OPTIONS
from tests.engine.drive import generate, read, tokens_of
from uma_core.engine.select.open import open_engine
engine = open_engine(dataclasses.replace(OPTIONS, engine=sys.argv[1], isa=sys.argv[2]), DRAFT)
out = generate(engine, 0, read(engine, 0, tokens_of(engine, 60)), 12)
print(json.dumps({"kernels": engine.info.kernels, "notes": engine.info.notes, "tokens": out}))
"""


@lru_cache
def runnable() -> tuple[str, ...]:
    """Return the instruction sets that this processor has, best first."""
    found = tuple(isa for isa in ISAS[1:] if lib.uma_accel_use(isa.encode()) == 0)
    lib.uma_accel_use(ffi.NULL)
    return found


def run(engine: str, isa: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, engine, isa], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("engine", ["llama", "graph"])
@pytest.mark.parametrize("isa", ISAS)
def test_the_kernels_are_those_that_were_asked_for(engine: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if isa != "auto" and isa not in runnable():
        monkeypatch.setenv("UMA_ISA", "")  # the engine writes its choice there, and other tests must not find it
        with pytest.raises(UmaError, match=f"engine.isa is {isa}, which this processor does not support"):
            open_engine(dataclasses.replace(OPTIONS, engine=engine, isa=isa), DRAFT)
        return
    done = run(engine, isa)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["kernels"] == ("" if isa == "portable" else runnable()[0] if isa == "auto" else isa)
    notes = [note for note in seen["notes"] if "engine.isa" in note]
    assert len(notes) == (isa != "auto")
    assert len(seen["tokens"]) == 13


def test_the_variable_is_the_options() -> None:
    assert SCHEMA.by_key["engine.isa"].env == "UMA_ISA"


def test_the_best_is_what_auto_takes() -> None:
    assert text(lib.uma_accel_isa()) == runnable()[0]
