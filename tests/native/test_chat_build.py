from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from native import build, chat_build
from native.pin import load_pin
from native.progress import Progress

OWN = build.ROOT / "native"


def exported(path: str) -> set[str]:
    command = ["nm", "-gU", path] if sys.platform == "darwin" else ["nm", "-D", "--defined-only", path]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {
        line.split()[-1].removeprefix("_" if sys.platform == "darwin" else "")
        for line in output.splitlines()
        if line.strip()
    }


def test_the_library_shows_nothing_but_its_own_interface() -> None:
    assert shutil.which("nm"), "binutils has nm"
    names = exported(str(build.CHAT_LIB_DIR / chat_build.LIBRARY))
    assert "uma_chat_apply" in names
    assert {name for name in names if not name.startswith("uma_chat_")} == set()


def test_the_library_needs_no_library_of_llama_cpp() -> None:
    command = ["otool", "-L"] if sys.platform == "darwin" else ["ldd"]
    needed = subprocess.run(
        [*command, str(build.CHAT_LIB_DIR / chat_build.LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    assert "libllama" not in needed and "libggml" not in needed


def test_a_warm_cache_builds_the_library_without_compiling(
    progress: Progress, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    chat_build.build_chat_library(load_pin(), progress, tmp_path / "first")

    def forbidden(*_: object) -> None:
        raise AssertionError("a warm build ran the compiler")

    monkeypatch.setattr(chat_build, "_run", forbidden)
    path = chat_build.build_chat_library(load_pin(), progress, tmp_path / "second")
    assert path.read_bytes() == (tmp_path / "first" / chat_build.LIBRARY).read_bytes()


def test_two_trees_share_what_they_compile(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    here = chat_build._portable(chat_build._link_command(["c++"], [], tmp_path / "x"))
    monkeypatch.setattr(chat_build, "OWN_DIR", tmp_path / "chat")
    assert chat_build._portable(chat_build._link_command(["c++"], [], tmp_path / "x")) == here


def test_the_licences_name_who_wrote_what_is_compiled_in(progress: Progress) -> None:
    """They are installed with the libraries, as these licences ask."""
    source, licences = chat_build.chat_source(load_pin(), progress), (OWN / "LICENSES.txt").read_text()
    licence = (source / "LICENSE").read_text()
    (author,) = re.findall(r"^Copyright .*", licence, re.MULTILINE)
    assert author in licences and licences.endswith(licence[licence.index("Permission") :])
    header = (source / "vendor" / "nlohmann" / "json.hpp").read_text()
    # neither is compiled in: Hedley asks for no notice, and Abseil's part is for C++11
    names = set(re.findall(r"Text: [0-9 -]+ (\w+ \w+)", header)) - {"Evan Nemerson", "The Abseil"}
    assert len(names) == 3 and all(name.replace("ö", "oe") in licences for name in names)


def test_the_bundled_templates_come_with_the_source(progress: Progress) -> None:
    templates = list((chat_build.chat_source(load_pin(), progress) / "models" / "templates").glob("*.jinja"))
    assert len(templates) >= 70
