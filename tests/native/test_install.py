"""`pip install .` into an empty environment, and a demonstration with the installed package.

It uses the running Python. With `UMA_PYTHONS=all`, as in .ci/run, it uses every supported Python on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native.build import ROOT

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", "_llama*.so", "lib", "out", ".*_cache", ".hypothesis"
)
# The same with less text and without a comparison of the engines: neither depends on the Python.
SHORT_DEMO = "import sys; from uma_ctl import demo; demo.SAMPLING['max_tokens'] = 96; sys.exit(demo.main())"


def pythons() -> list[str]:
    """Return the Pythons to try. A name on PATH that cannot run, or cannot make environments, does not count."""
    if os.environ.get("UMA_PYTHONS") != "all":
        return [sys.executable]
    probe = [f"python{version}" for version in SUPPORTED]
    probe += [
        str(path)
        for version in SUPPORTED
        for path in (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    ]
    found: dict[str, str] = {}
    for program in probe:
        if shutil.which(program):
            command = [
                program,
                "-c",
                "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2], sys.executable)",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                version, path = done.stdout.split(maxsplit=1)
                found.setdefault(version, path.strip())
    return list(found.values())


@pytest.mark.model
@pytest.mark.daemon
@pytest.mark.parametrize("python", pythons())
def test_a_plain_installation_serves(python: str, tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "venv"
    shutil.copytree(ROOT, source, ignore=NOT_SOURCE)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    # 0, as pip reads this variable, is --no-compile: Python compiles a module when it is first imported
    environment["PIP_NO_COMPILE"] = "0"
    # to deflate the model files of a wheel that is unpacked at once would take 4 s of a core
    stored = tmp_path / "stored.cfg"
    stored.write_text("[bdist_wheel]\ncompression = stored\n[build]\nbuild_lib = former\n")
    environment["DIST_EXTRA_CONFIG"] = str(stored)
    removed = Path("uma_core", "removed.py")  # a module of the release that was installed from this tree before
    (source / "former" / removed).parent.mkdir(parents=True)
    (source / "former" / removed).touch()

    def run(*command: str, timeout_s: float) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    # this Python's pip installs into it: to install a pip there would take 7 s of a core
    run(python, "-m", "venv", "--without-pip", str(home), timeout_s=120)
    pip = (sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"))
    run(*pip, "install", "--quiet", "--disable-pip-version-check", str(source), timeout_s=1800)
    assert run(str(home / "bin" / "uma-core"), "version", timeout_s=60).startswith("uma-core ")
    where = run(str(home / "bin" / "python"), "-c", "import uma_core; print(uma_core.__file__)", timeout_s=60)
    assert where.startswith(str(home)), "not what was installed"
    licences = {path.name for path in home.glob("lib/python*/site-packages/uma_serve-*.dist-info/licenses/**/*.*")}
    assert "LICENSES.txt" in licences, "the libraries' licences are not installed"
    assert not (Path(where).parents[1] / removed).exists(), "a file of a former build was installed"
    if python == pythons()[0]:
        run(str(home / "bin" / "python"), "-m", "uma_ctl.demo", timeout_s=600)
    else:
        environment |= {"UMA_ENGINE": "graph", "UMA_CALIBRATE": "off"}
        run(str(home / "bin" / "python"), "-c", SHORT_DEMO, timeout_s=600)
