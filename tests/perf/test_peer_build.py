"""How the server that we are measured against is built."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from native import cmake_build
from native.pin import BuildError, load_pin
from perf import peer_build
from perf.peer_build import peer_dir, peer_flags


def test_peer_dir_must_hold_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_PEER_DIR", str(tmp_path))
    with pytest.raises(BuildError, match="llama-server"):
        peer_dir()


def test_peer_has_our_flags_and_its_programs() -> None:
    pin = load_pin()
    ours, peer = cmake_build.cmake_flags(pin, "cpu"), peer_flags(pin, "cpu")
    differing = {name for name in peer if peer[name] != ours.get(name)}
    assert differing == {"LLAMA_BUILD_COMMON", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_UI"}


def test_packed_source_has_the_programs_below_the_same_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = load_pin()
    root = f"{pin.package}-{pin.version}/{pin.source_root}"
    tree = tmp_path / "in"
    for name in ("common/a.cpp", "tools/server/b.cpp", "docs/c.md"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    with tarfile.open(tmp_path / "sdist.tar.gz", "w:gz") as archive:
        archive.add(tree, arcname=root)
    monkeypatch.setattr(
        peer_build, "extract", lambda sdist, pin, folder: folder.mkdir(exist_ok=True)
    )  # its own tests verify it
    peer_build.pack(tmp_path / "sdist.tar.gz", pin, tmp_path / "packed.tar.gz")
    with tarfile.open(tmp_path / "packed.tar.gz") as archive:
        names = {m.name for m in archive if m.isfile()}
    assert names == {f"{root}/common/a.cpp", f"{root}/tools/server/b.cpp"}
