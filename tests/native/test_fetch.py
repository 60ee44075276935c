from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from native import fetch
from native.pin import BuildError, Pin
from native.progress import Progress
from tests.native.conftest import FILES, ROOT, sha, write_tar


@pytest.fixture(autouse=True)
def no_given_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMA_SDIST", raising=False)


def serve(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[int]:
    """Replace the package client by a copy; return a list that grows with each download."""
    calls: list[int] = []

    def download(pin: Pin, folder: Path, progress: Progress) -> Path:
        calls.append(1)
        return Path(shutil.copy(path, folder))

    monkeypatch.setattr(fetch, "download", download)
    return calls


def test_downloads_once_and_then_uses_the_cache(
    tmp_path: Path, sdist: tuple[Path, Pin], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pin = sdist
    calls = serve(monkeypatch, path)
    first, second = (
        fetch.fetch_sdist(pin, tmp_path / "cache", progress),
        fetch.fetch_sdist(pin, tmp_path / "cache", progress),
    )
    assert first == second
    assert len(calls) == 1


def test_a_damaged_cached_file_is_fetched_again(
    tmp_path: Path, sdist: tuple[Path, Pin], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pin = sdist
    calls = serve(monkeypatch, path)
    kept = fetch.fetch_sdist(pin, tmp_path / "cache", progress)
    kept.write_bytes(kept.read_bytes()[:100])
    assert fetch.fetch_sdist(pin, tmp_path / "cache", progress).read_bytes() == path.read_bytes()
    assert len(calls) == 2


def test_a_download_with_another_hash_is_refused_and_not_kept(
    tmp_path: Path, sdist: tuple[Path, Pin], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pin = sdist
    serve(monkeypatch, path)
    with pytest.raises(BuildError, match="is not the pinned file"):
        fetch.fetch_sdist(replace(pin, sha256="1" * 64), tmp_path / "cache", progress)
    assert list((tmp_path / "cache" / "sdist").iterdir()) == []


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_given_file_or_its_folder_is_used_without_download(
    tmp_path: Path, sdist: tuple[Path, Pin], progress: Progress, monkeypatch: pytest.MonkeyPatch, as_folder: bool
) -> None:
    path, pin = sdist
    calls = serve(monkeypatch, path)
    monkeypatch.setenv("UMA_SDIST", str(path.parent if as_folder else path))
    assert fetch.fetch_sdist(pin, tmp_path / "cache", progress) == path
    assert calls == []


def test_without_network_the_message_tells_the_way_out(
    tmp_path: Path, pin: Pin, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(BuildError, match=r"set UMA_SDIST to the file x-1\.0\.tar\.gz"):
        fetch.fetch_sdist(replace(pin, package="x"), tmp_path, progress)


def test_the_package_client_does_not_inherit_an_outer_build() -> None:
    kept = {"PATH": "/bin", "PIP_INDEX_URL": "x", "HOME": "/h"}
    outer = {"_PYPROJECT_HOOKS_BACKEND_PATH": "/tree", "PYTHONPATH": "/overlay", "PIP_BUILD_TRACKER": "/t"}
    assert fetch.client_environment({**kept, **outer}) == kept


def test_extracts_only_what_the_build_reads(tmp_path: Path, sdist: tuple[Path, Pin]) -> None:
    path, pin = sdist
    root = fetch.extract(path, pin, tmp_path / "out")
    found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert found == set(FILES) - {"models/big.gguf"}


def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, pin: Pin) -> None:
    path = tmp_path / "evil.tar.gz"
    write_tar(path, {f"{ROOT}/CMakeLists.txt": b"x", f"{ROOT}/src/../../../../escaped": b"x"})
    with pytest.raises(BuildError, match="unsafe path"):
        fetch.extract(path, pin, tmp_path / "a" / "b" / "out")
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    "change", [{"CMakeLists.txt": b"project(y)\n"}, {"src/more.cpp": b"x"}, {"include/llama.h": None}]
)
def test_a_changed_added_or_missing_file_is_refused(
    tmp_path: Path, sdist: tuple[Path, Pin], change: dict[str, bytes | None]
) -> None:
    path = tmp_path / "other.tar.gz"
    files = {name: data for name, data in {**FILES, **change}.items() if data is not None}
    write_tar(path, {f"{ROOT}/{name}": data for name, data in files.items()})
    with pytest.raises(BuildError, match="does not hold the pinned source"):
        fetch.extract(path, sdist[1], tmp_path / "out")


def test_something_that_is_no_archive_is_refused(tmp_path: Path, pin: Pin) -> None:
    path = tmp_path / "text.tar.gz"
    path.write_text("not an archive")
    with pytest.raises(BuildError, match=r"cannot be unpacked: [^\n]+\Z"):
        fetch.extract(path, pin, tmp_path / "out")


def test_a_damaged_archive_is_refused_in_one_line(tmp_path: Path, pin: Pin) -> None:
    """Whichever bit is wrong."""
    whole = tmp_path / "whole.tar.gz"
    write_tar(whole, {f"{ROOT}/src/{i}.cpp": random.Random(i).randbytes(3000).hex().encode() for i in range(3)})
    data = whole.read_bytes()
    for at in range(0, len(data), 50):
        path = tmp_path / "damaged.tar.gz"
        path.write_bytes(data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :])
        with pytest.raises(BuildError, match=r"\A[^\n]+\Z"):
            fetch.extract(path, pin, tmp_path / str(at))


def test_a_packed_source_is_as_good_as_the_whole(
    tmp_path: Path, sdist: tuple[Path, Pin], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pin = sdist
    small = tmp_path / "small.tar.gz"
    fetch.pack(path, pin, small)
    monkeypatch.setenv("UMA_SDIST", str(small))
    given = fetch.fetch_sdist(pin, tmp_path / "cache", progress)
    whole, packed = fetch.extract(path, pin, tmp_path / "a"), fetch.extract(given, pin, tmp_path / "b")
    assert fetch.tree_digest(whole) == fetch.tree_digest(packed) == pin.source_sha256


def test_installs_verified_headers_and_keeps_their_time(tmp_path: Path, sdist: tuple[Path, Pin]) -> None:
    path, pin = sdist
    source, target = fetch.extract(path, pin, tmp_path / "out"), tmp_path / "headers"
    fetch.install_headers(source, pin, target)
    assert {str(p.relative_to(target)) for p in target.rglob("*.h")} == {"llama.h", "ggml.h", "inner/ggml-impl.h"}
    before = (target / "llama.h").stat().st_mtime_ns
    fetch.install_headers(source, pin, target)
    assert (target / "llama.h").stat().st_mtime_ns == before


def test_a_header_with_another_hash_is_refused(tmp_path: Path, sdist: tuple[Path, Pin]) -> None:
    path, pin = sdist
    source = fetch.extract(path, pin, tmp_path / "out")
    changed = replace(pin, headers={**pin.headers, "include/llama.h": sha(b"other")})
    with pytest.raises(BuildError, match=r"include/llama\.h is not the pinned file"):
        fetch.install_headers(source, changed, tmp_path / "headers")


def test_a_missing_header_is_named(tmp_path: Path, sdist: tuple[Path, Pin]) -> None:
    path, pin = sdist
    source = fetch.extract(path, pin, tmp_path / "out")
    with pytest.raises(BuildError, match=r"lacks include/new\.h"):
        fetch.install_headers(source, replace(pin, headers={"include/new.h": "0"}), tmp_path / "headers")
