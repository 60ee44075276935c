"""A draft model that does not fit the options is refused, and the error names the model and what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.engine.graph.conftest import SMALL
from tests.engine.graph.models import MODELS, RECURRENT, Model, write
from uma_core.config.options import SpeculationOptions
from uma_core.engine.draft import check_draft, estimate_with_draft, open_draft
from uma_core.errors import ErrorCode, UmaError

WAYS: list[Callable[..., object]] = [
    check_draft,
    open_draft,
    lambda engine, path: estimate_with_draft(engine, SpeculationOptions(draft_model=path)),
]


def both(folder: Path) -> tuple[str, str]:
    """One model whose heads have a length that every type of KV supports, and one whose heads do not."""
    narrow: Model = replace(MODELS["llama"], dim=48)
    return write(MODELS["llama"], folder / "served.gguf"), write(narrow, folder / "narrow.gguf")


@pytest.mark.parametrize("way", WAYS)
def test_kv_that_the_draft_models_heads_do_not_take(way: Callable[..., object], tmp_path: Path) -> None:
    served, narrow = both(tmp_path)
    with pytest.raises(UmaError) as refused:
        way(replace(SMALL, model=served, kv_type="q8_0"), narrow)
    assert refused.value.error is ErrorCode.CONFIG_INVALID
    assert refused.value.detail["option"] == "speculation.draft_model"
    assert "narrow.gguf cannot draft" in refused.value.message and "heads of length 48" in refused.value.message
    assert "f16 or bf16" in refused.value.message, "both take any length"


def test_the_same_heads_with_kv_that_they_take(tmp_path: Path) -> None:
    served, narrow = both(tmp_path)
    open_draft(replace(SMALL, model=served, kv_type="bf16"), narrow).close()


@pytest.mark.parametrize(
    ("options", "n_each"),
    [
        ({"n_ctx": 1 << 20}, 128),
        ({"n_ctx": 0}, 128),
        ({"n_ctx": 256, "n_seq": 4}, 64),
        ({"n_ctx": 256, "n_seq": 4, "kv_mode": "unified"}, 128),
    ],
)
def test_its_context_is_that_of_a_served_sequence(options: dict[str, Any], n_each: int, tmp_path: Path) -> None:
    served, path = (write(MODELS["llama"], tmp_path / f"{name}.gguf") for name in ("served", "draft"))
    reader = gguf.GGUFReader(served, "r+")  # trained with a shorter context than the draft model
    reader.fields["llama.context_length"].parts[-1][0] = 128
    reader.data.flush()
    engine = open_draft(replace(SMALL, model=served, **options), path)
    n_ctx_seq = engine.info.n_ctx_seq
    engine.close()
    assert n_ctx_seq == n_each


@pytest.mark.parametrize("name", ["qwen35", "granitehybrid", "lfm2"])
def test_recurrent_layers_are_seen_in_the_header(name: str, tmp_path: Path) -> None:
    """They are found before anything is loaded."""
    served, _ = both(tmp_path)
    path = write(RECURRENT[name], tmp_path / "recurrent.gguf")
    with pytest.raises(UmaError, match="cannot drop rejected draft tokens"):
        check_draft(replace(SMALL, model=served), path)


def test_a_draft_model_has_its_own_number_of_experts(tmp_path: Path) -> None:
    """`moe_top_k` is the served model's, which may have more experts than the draft model."""
    served = write(MODELS["llama"], tmp_path / "served.gguf")
    draft = write(MODELS["qwen3moe"], tmp_path / "draft.gguf")
    check_draft(replace(SMALL, model=served, moe_top_k=64), draft)
