"""Models in several files load like the single file that they were. They are refused if a file is missing or has
another model's name.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from perf.gguf_file import save
from tests.engine.drive import read, step, tokens_of
from tests.engine.graph.conftest import SMALL, Pair
from tests.engine.graph.models import MODELS, write
from uma_core.engine.fingerprint import fingerprint
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.estimate import estimate
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.errors import ErrorCode, UmaError

N_FILES = 3


def split(path: str, folder: Path, n_first: int) -> str:
    """Deal the model's tensors out to three files, `n_first` of them to the first file. Return its path."""
    whole = gguf.GGUFReader(path)
    tensors = whole.tensors
    ends = [n_first, (n_first + len(tensors)) // 2, len(tensors)]
    for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        writer = gguf.GGUFWriter(folder / f"m-{i + 1:05}-of-{N_FILES:05}.gguf", "llama")
        if i == 0:
            for field in whole.fields.values():
                if not field.name.startswith(("GGUF.", "general.architecture")):
                    sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(field.name, field.contents(), field.types[0], sub)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", N_FILES)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[begin:end]:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        save(writer)
    return str(folder / f"m-00001-of-{N_FILES:05}.gguf")


@pytest.fixture(params=[5, 0], ids=["even", "metadata-apart"])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The whole file, and the first of the split files."""
    whole = write(MODELS["llama"], tmp_path / "whole.gguf")
    return whole, split(whole, tmp_path, request.param)


@pytest.mark.parametrize("load_mode", ["auto", "mmap", "none"])
def test_the_same_bits_as_of_one_file(paths: tuple[str, str], load_mode: str, is_stock: bool) -> None:
    logits = []
    for path in paths:
        shares: list[float] = []

        def progress(share: float, shares: list[float] = shares) -> bool:
            shares.append(share)
            return True

        with closing(GraphEngine(path, replace(SMALL, load_mode=load_mode), progress, is_stock)) as engine:
            read(engine, 0, tokens_of(engine, 70))
            step(engine, [(0, 40)])
            logits.append(engine.logits(0).copy())
        assert shares == sorted(shares) and shares[-1] == 1.0
    assert np.array_equal(*logits)
    assert estimate(paths[1], SMALL, is_stock).weights == estimate(paths[0], SMALL, is_stock).weights


def test_llama_cpp_reads_them_too(paths: tuple[str, str], pair: Pair) -> None:
    graph, llama = pair(paths[1], SMALL)
    for engine in (graph, llama):
        read(engine, 0, tokens_of(engine, 70))
        step(engine, [(0, 40)])
    assert np.abs(graph.logits(0) - llama.logits(0)).max() < 0.02 * llama.logits(0).std()


def test_a_model_is_known_by_all_its_files(paths: tuple[str, str], tmp_path: Path) -> None:
    before = fingerprint(paths[1])
    last = tmp_path / f"m-{N_FILES:05}-of-{N_FILES:05}.gguf"
    data = bytearray(last.read_bytes())
    data[-100] ^= 1
    last.write_bytes(data)
    assert fingerprint(paths[1]) != before != fingerprint(paths[0])


def test_what_is_no_whole_model_is_refused(paths: tuple[str, str], tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    renamed = str(other / "renamed.gguf")
    shutil.copy(paths[1], renamed)
    alone = str(other / os.path.basename(paths[1]))
    shutil.copy(paths[1], alone)
    second = paths[1].replace("-00001-", "-00002-")
    for path, words in (
        (renamed, "does not end in -00001-of-00003"),
        (alone, "-00002-of-00003.gguf: No such file"),
        (second, "not the first file"),
    ):
        with pytest.raises(UmaError, match=words) as caught:
            GraphEngine(path, SMALL)
        assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize("kind", [GraphEngine, LlamaEngine])
def test_the_experts_in_all_files_count(kind: type[GraphEngine] | type[LlamaEngine], tmp_path: Path) -> None:
    whole = write(MODELS["mixtral"], tmp_path / "whole.gguf")
    found = []
    for path in (whole, split(whole, tmp_path, 5)):
        with closing(kind(path, SMALL)) as engine:
            found.append(engine.info.expert_bytes)
    assert found[0] == found[1] > 0
