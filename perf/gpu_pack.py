"""Packs what a machine without a network needs besides this tree: llama.cpp's source, and Python wheels.

`python -m perf.gpu_pack [FOLDER]` (default perf/out/gpu, which git ignores). perf/gpu.sh uses it on that machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from native.cache import cache_root
from native.fetch import fetch_sdist
from native.pin import load_pin
from native.progress import Progress
from perf.peer_build import pack
from perf.results import commit_id

SOURCE = "llama.cpp.tar.xz"
# packages that are not part of a usual scientific Python
_PACKAGES = ("gguf", "cffi", "pycparser", "pcpp", "llguidance>=1.9,<1.10")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_31_x86_64")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("perf/out/gpu"))
    parser.add_argument("--python", default="3.12", help="Python version of that machine")
    parser.add_argument(
        "--platform", action="append", default=[], help=f"platform of its wheels; repeatable (default: {PLATFORMS})"
    )
    parser.add_argument("--package", action="append", default=[], help="an additional package; repeatable")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    pin = load_pin()
    pack(fetch_sdist(pin, cache_root(), Progress()), pin, folder / SOURCE)
    (folder / "COMMIT").write_text(commit_id() + "\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder / "wheels"),
    ]
    command += ["--python-version", arguments.python, "--implementation", "cp"]
    for platform in arguments.platform or PLATFORMS:
        command += ["--platform", platform]
    status = subprocess.run([*command, *_PACKAGES, *arguments.package]).returncode
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {total / 2**20:.1f} MiB")
    return status


if __name__ == "__main__":
    sys.exit(main())
