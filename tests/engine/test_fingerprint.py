"""A model file's identity changes with its content, and with that of a split model's further files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from uma_core.engine.fingerprint import N_SAMPLES, SAMPLE_BYTES, fingerprint

SIZE = (N_SAMPLES + 40) * SAMPLE_BYTES


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(1 << 16) * (SIZE >> 16)


def of(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return fingerprint(str(path))


def test_it_goes_by_content_and_not_by_name(content: bytes, tmp_path: Path) -> None:
    one, other = of(tmp_path / "a.gguf", content), of(tmp_path / "b.gguf", content)
    assert one == other and len(one) == 32 and int(one, 16) >= 0


@pytest.mark.parametrize("at", [0, (1 << 20) - 1, SIZE - 1])
def test_header_and_end_are_read_whole(at: int, content: bytes, tmp_path: Path) -> None:
    changed = bytearray(content)
    changed[at] ^= 1
    assert of(tmp_path / "m.gguf", bytes(changed)) != of(tmp_path / "m.gguf", content)


def test_a_file_cut_short_is_another(content: bytes, tmp_path: Path) -> None:
    assert of(tmp_path / "m.gguf", content[:-1]) != of(tmp_path / "m.gguf", content)


@pytest.mark.parametrize("n", [0, 1, SAMPLE_BYTES])
def test_small_files_have_one_too(n: int, tmp_path: Path) -> None:
    assert of(tmp_path / "m.gguf", b"x" * n) != of(tmp_path / "m.gguf", b"x" * n + b"y")


def test_a_split_models_other_files_count_where_they_are(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00003.gguf"
    alone = of(first, b"first")
    (tmp_path / "m-00003-of-00003.gguf").write_bytes(b"third")
    with_third = fingerprint(str(first))
    (tmp_path / "m-00002-of-00003.gguf").write_bytes(b"second")
    assert len({alone, with_third, fingerprint(str(first))}) == 3
    assert of(tmp_path / "m.gguf", b"first") == alone, "the name is not of a split model"


def test_a_file_that_is_not_there_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fingerprint(str(tmp_path / "none"))
