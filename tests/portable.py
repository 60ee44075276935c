"""`make portable`: build one wheel with UMA_BUILD=portable and run it on emulated processors of four generations. All
must give the same text.

This is not a test of the suite, because the first build takes a quarter of an hour on two cores. Needs qemu-x86_64
(`make test-deps`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.tools import find
from tests.trained import DRAFT

ROOT = Path(__file__).resolve().parents[1]
CPUS = {
    "Nehalem": "base",
    "SandyBridge": "sandybridge",
    "Haswell": "haswell",
}  # qemu's processors, and the CPU backend that each must get
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from uma_core.config.options import EngineOptions
from uma_core.engine import lib
from uma_core.engine.api import Batch
from uma_core.engine.select.open import open_engine
for name in ("llama", "graph"):
    engine = open_engine(EngineOptions(engine=name, n_ctx=512, n_seq=1, threads=1, calibrate="off"), sys.argv[2])
    prompt, batch, text = engine.tokenize("The shell is a program that", True, False), Batch(512), b""
    batch.extend(np.array(prompt, np.int32), 0, 0, True)
    for n in range(len(prompt), len(prompt) + 6):
        (token,) = engine.decode(batch, [None]).tokens
        text += engine.piece(token)
        batch.clear()
        batch.add(token, n, 0, True)
    engine.close()
    print(lib.CPU_BACKEND or "base", text.decode())
"""


def say(command: list[str], site: Path) -> list[str]:
    """Return the text of both engines, each after the name of its CPU backend. numpy's OpenBLAS does not recognize
    qemu's processor, so it is told.
    """
    environ = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, str(site), str(DRAFT)],
        env=environ,
        cwd=site,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command) or 'this processor'}: {done.stderr[-3000:]}")
    return done.stdout.splitlines()


def main() -> int:
    qemu = find("qemu-x86_64")
    if qemu is None:
        sys.exit("qemu-x86_64 is needed: make test-deps")
    with tempfile.TemporaryDirectory(prefix="uma-portable-") as folder:
        build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", folder]
        subprocess.run(build, env={**os.environ, "UMA_BUILD": "portable"}, check=True)
        site = Path(folder) / "site"
        zipfile.ZipFile(next(Path(folder).glob("*.whl"))).extractall(site)
        texts = {line.partition(" ")[2] for line in say([], site)}
        for cpu, backend in CPUS.items():
            lines = say([qemu, "-cpu", cpu], site)
            print(f"{cpu}: {lines}")
            if [line.partition(" ")[0] for line in lines] != [backend] * 2:
                sys.exit(f"{cpu} got another CPU backend than {backend}")
            texts |= {line.partition(" ")[2] for line in lines}
    print(f"all say {texts}")
    return 0 if len(texts) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
