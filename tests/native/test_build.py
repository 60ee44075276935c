from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from native import build
from native.pin import BuildError, load_pin
from native.probe import library_paths, probe


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_a_tree_that_cannot_be_written_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path != build.LIB_DIR.parent)
    monkeypatch.setattr(build, "load_pin", lambda: pytest.fail("it goes on"))
    with pytest.raises(
        BuildError, match=r"uma_core is not writable, but libraries are built into it: build in a writable copy\Z"
    ):
        build.prepare()


def test_mirror_makes_the_target_equal_and_removes_what_is_old(tmp_path: Path) -> None:
    source = fill(tmp_path / "source", {"a": "1", "inner/b": "2"})
    target = fill(tmp_path / "target", {"a": "old", "stale": "x", "build.json": "{}"})
    build.mirror(source, target, keep=("build.json",))
    assert names(target) == {"a", "inner/b", "build.json"}
    assert (target / "a").read_text() == "1"


def test_mirror_does_not_touch_equal_files(tmp_path: Path) -> None:
    source = fill(tmp_path / "source", {"a": "1"})
    build.mirror(source, tmp_path / "target")
    before = (tmp_path / "target" / "a").stat().st_mtime_ns
    build.mirror(source, tmp_path / "target")
    assert (tmp_path / "target" / "a").stat().st_mtime_ns == before


def test_mirror_replaces_a_file_without_changing_its_open_copy(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", {"a": "new"}), fill(tmp_path / "target", {"a": "old"})
    with (target / "a").open() as held:
        build.mirror(source, target)
        assert held.read() == "old"
    assert (target / "a").read_text() == "new"


def test_the_libraries_in_the_package_are_the_pinned_ones() -> None:
    pin, record = load_pin(), json.loads((build.LIB_DIR / build.BUILD_RECORD).read_text())
    assert record["llama_version"] == pin.llama_version
    if not record["is_external"]:
        facts = probe(library_paths(build.LIB_DIR), ["llama_decode", "no_such_function"])
        assert (facts.llama_version, facts.ggml_commit) == (pin.llama_version, pin.short_commit)
        assert facts.missing == ("no_such_function",)


def test_a_library_of_another_version_is_not_published() -> None:
    with pytest.raises(BuildError, match="native/PIN says"):
        build._check_against_pin(Path(build.prepare().lib_dir), replace(load_pin(), llama_version="9.9.9"))


def test_a_warm_cache_needs_neither_network_nor_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.prepare()

    def forbidden(*_: object) -> None:
        raise AssertionError("a warm build fetched or compiled")

    monkeypatch.setattr(build.fetch, "fetch_sdist", forbidden)
    monkeypatch.setattr(build.cmake_build, "build", forbidden)
    assert build.prepare() == first
