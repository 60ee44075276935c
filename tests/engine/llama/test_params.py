"""Parameters of llama.cpp's contexts."""

from __future__ import annotations

import pytest

from tests.engine.conftest import DRAFT, MOE, OPTIONS
from uma_core.engine.lib import lib
from uma_core.engine.llama import model as model_module
from uma_core.engine.llama.engine import LlamaEngine


@pytest.mark.parametrize(("path", "is_offloaded"), [(MOE, False), (DRAFT, True)])
def test_experts_in_the_machine_s_memory_are_not_copied_to_a_gpu(
    path: str, is_offloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build for GPUs ended at its start with a mixture whose experts, all or some, stay in the machine's memory."""
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
