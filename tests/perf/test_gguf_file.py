"""The random-weight models: their sizes, their tokenizer, and the tokens that must be unreachable."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from perf.blocks import BlockPool
from perf.gguf_file import EOS_ID, byte_symbols, dead_tokens, ensure, vocabulary
from perf.shapes import SHAPES, TensorSpec, find, tensors

TINY = ["tiny-q8_0", "tiny-q4_0", "tiny-q4_k_m", "tiny-moe-q8_0", "tiny-hybrid-q8_0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", TINY)
def test_file_holds_every_tensor_in_its_shape(name: str, folder: Path) -> None:
    shape = find(name)
    reader = gguf.GGUFReader(ensure(name, folder))
    found = {t.name: t for t in reader.tensors}
    assert list(found) == [spec.name for spec in tensors(shape)]
    for spec in tensors(shape):
        assert tuple(found[spec.name].shape) == spec.dims[::-1]
        assert found[spec.name].tensor_type.name.lower() == spec.kind


@pytest.mark.parametrize("name", TINY)
def test_weights_are_finite_and_of_the_wanted_spread(name: str, folder: Path) -> None:
    reader = gguf.GGUFReader(ensure(name, folder))
    specs = {spec.name: spec for spec in tensors(find(name))}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all()
        spec = specs[tensor.name]
        if spec.std and not spec.is_vocab and values.size > 4096:
            assert values.std() == pytest.approx(spec.std, rel=0.1)


def test_rows_of_dead_tokens_are_zero_and_no_others(folder: Path) -> None:
    reader = gguf.GGUFReader(ensure("tiny-q8_0", folder))
    head = next(t for t in reader.tensors if t.name == "token_embd.weight")
    rows = gguf.quants.dequantize(head.data, head.tensor_type)
    assert set(np.flatnonzero(~rows.any(axis=1))) == set(dead_tokens())
    assert EOS_ID in dead_tokens()


def test_every_byte_is_a_token_and_words_are_printable() -> None:
    tokens, types = vocabulary(512)
    assert tokens[:256] == byte_symbols()
    assert len(set(tokens)) == len(tokens) == len(types) == 512
    assert tokens[ord("a")] == "a" and tokens[ord(" ")] == "Ġ"
    assert all(t.isascii() and t.isprintable() for t in tokens[257:])
    assert [i for i, t in enumerate(types) if t == gguf.TokenType.CONTROL] == [EOS_ID]


def test_second_ensure_keeps_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    first = ensure("tiny-q8_0", tmp_path)
    stamp = first.stat().st_mtime_ns
    assert ensure("tiny-q8_0", tmp_path).stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [first]


def test_same_seed_same_bytes_and_rows_differ() -> None:
    spec = TensorSpec("x", (70_000, 64), "q8_0", 0.02)
    one, two = (BlockPool(seed=3).make(spec, dead_tokens()) for _ in range(2))
    assert np.array_equal(one, two)
    assert len(np.unique(one[:, :34], axis=0)) == 70_000


@pytest.mark.parametrize(
    ("name", "billions"),
    [("0.5b-q8_0", 0.494), ("1b-q8_0", 1.236), ("1b-moe-q8_0", 1.33), ("8b-q8_0", 8.03), ("0.8b-hybrid-q8_0", 0.752)],
)
def test_parameter_counts_are_those_of_the_real_models(name: str, billions: float) -> None:
    n = sum(int(np.prod(spec.dims)) for spec in tensors(SHAPES[name]))
    assert n / 1e9 == pytest.approx(billions, rel=0.01)


def test_unknown_shape_lists_the_known() -> None:
    with pytest.raises(KeyError, match="8b-q8_0"):
        find("9b")
