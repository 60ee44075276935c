"""Parameters of llama.cpp's contexts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.conftest import DRAFT, MOE, OPTIONS
from tests.engine.drive import read, step, tokens_of
from tests.engine.graph.models import RECURRENT, write
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.lib import lib
from uma_core.engine.llama import model as model_module
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.params import decode_params
from uma_core.executor.executor import device_view
from uma_core.policy.cost.calibrate import calibration_shapes


@pytest.mark.parametrize(("path", "is_offloaded"), [(MOE, False), (DRAFT, True)])
def test_experts_in_the_machine_s_memory_are_not_copied_to_a_gpu(
    path: str, is_offloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a build for GPUs ended at its start if all or some of a mixture's experts stayed in the machine's
    memory.
    """
    made: list[bool] = []

    class Seeing:
        def __getattr__(self, name: str) -> object:
            return getattr(lib, name)

        def llama_init_from_model(self, model: object, params: object) -> object:
            made.append(params.op_offload)  # type: ignore[attr-defined]
            return lib.llama_init_from_model(model, params)

    monkeypatch.setattr(model_module, "lib", Seeing())
    LlamaEngine(path, OPTIONS).close()
    assert len(made) > 1 and set(made) == {is_offloaded}, "of the decode context, and of every prefill slot"


@pytest.mark.parametrize(
    ("sizes", "n_undo"),
    [({}, 7), ({"n_ubatch": 9}, 7), ({"n_ubatch": 8}, 6), ({"n_batch": 2}, 0), ({"n_ctx": 8}, 6), ({"n_ubatch": 1}, 0)],
)
def test_no_more_is_taken_back_than_a_piece_holds(sizes: dict[str, int], n_undo: int, tmp_path: Path) -> None:
    """Otherwise llama.cpp ends the process at the first batch of a model with recurrent layers."""
    options = replace(OPTIONS, threads=1, takes_back=True, **sizes)  # type: ignore[arg-type]
    assert decode_params(options, 512).n_rs_seq == n_undo
    engine = LlamaEngine(write(RECURRENT["qwen35"], tmp_path / "model.gguf"), options)
    read(engine, 0, tokens_of(engine, 1 if "n_ctx" in sizes else 30))
    step(engine, [(0, 40)])
    engine.close()


@pytest.mark.parametrize("name", ["qwen35", "granitehybrid", "lfm2"])
@pytest.mark.parametrize("sizes", [{}, {"kv_type": "q4_0"}, {"kv_mode": "unified"}, {"flash_attn": "off"}])
def test_positions_take_the_bytes_of_layers_with_attention(name: str, sizes: dict[str, str], tmp_path: Path) -> None:
    """Layer 0 is recurrent: with its heads positions took no bytes, and the calibration ended the daemon's start."""
    options = replace(OPTIONS, threads=1, **sizes)  # type: ignore[arg-type]
    path = write(RECURRENT[name], tmp_path / "model.gguf")
    on_graph = replace(options, flash_attn="auto")
    with closing(LlamaEngine(path, options)) as engine, closing(GraphEngine(path, on_graph)) as graph:
        assert engine.info.kv_bytes_per_cell == graph.info.kv_bytes_per_cell > 0
        assert engine.memory().kv > engine.info.n_ctx * engine.info.kv_bytes_per_cell, "states are memory too"
        assert calibration_shapes(device_view(engine))
