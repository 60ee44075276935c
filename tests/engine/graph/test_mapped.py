"""Weights in the file's layout: what is missing in a file is told, and progress is that of the whole model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uma_core.engine.graph.mapped import _memory_of, _share_of, check_whole, report
from uma_core.errors import ErrorCode, UmaError


def header(*places: tuple[int, int, int], paths: list[str]) -> Any:
    """Return a header with tensors at (file, offset, bytes)."""
    tensors = {str(i): SimpleNamespace(file=f, offset=at, n_bytes=n) for i, (f, at, n) in enumerate(places)}
    return SimpleNamespace(path=paths[0], paths=paths, tensors=tensors)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(100))
    return [str(tmp_path / name) for name in "ab"]


def test_a_tensor_may_end_with_its_file_and_not_beyond(paths: list[str]) -> None:
    check_whole(header((0, 0, 100), (1, 60, 40), paths=paths))
    with pytest.raises(UmaError, match="b: the file is cut short") as caught:
        check_whole(header((0, 0, 100), (1, 60, 41), paths=paths))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED and caught.value.detail["path"] == paths[0]


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_file_is_in_memory_as_it_is(is_mapped: bool, tmp_path: Path) -> None:
    path, shares = tmp_path / "weights", []
    path.write_bytes(bytes(range(250)))

    def progress(share: float) -> bool:
        shares.append(share)
        return True

    memory = _memory_of(str(path), 250, is_mapped, progress)
    assert memory[:] == bytes(range(250)) and shares == [1.0]
    memory.close()


def test_a_file_that_gets_shorter_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(250))
    with pytest.raises(UmaError, match="the file got shorter") as caught:
        _memory_of(str(path), 251, False, None)
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_progress_of_several_files_is_that_of_the_whole() -> None:
    seen: list[float] = []
    for number in range(4):
        progress = _share_of(lambda share: bool(seen.append(share)), number, 4)
        assert progress is not None and not progress(1.0)
    assert seen == [0.25, 0.5, 0.75, 1.0] and _share_of(None, 0, 4) is None


def test_whoever_gives_up_ends_the_load() -> None:
    report("m.gguf", None, 0.5)
    report("m.gguf", lambda share: True, 0.5)
    with pytest.raises(UmaError, match="loading was cancelled"):
        report("m.gguf", lambda share: False, 0.5)
