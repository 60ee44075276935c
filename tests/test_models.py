"""The embedded model is the one that its recipe describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from uma_core import models
from uma_core.errors import ErrorCode, UmaError

ROOT = Path(__file__).resolve().parents[1]


def test_the_embedded_model_is_the_one_that_the_recipe_describes():
    path = models.default_model_path()
    readme = (ROOT / "docs" / "recipe" / "work" / "README.md").read_text()
    (n_bytes,) = re.findall(rf"\| `{re.escape(path.name)}` \|.*?\| ([\d,]+) \|", readme)[-1:]
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"
    assert path.stat().st_size == int(n_bytes.replace(",", ""))


def test_the_default_is_recognised_however_it_is_spelled(tmp_path):
    path = models.default_model_path()
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    assert models.is_default_model(path)
    assert models.is_default_model(f"{path.parent}/../models/{path.name}")
    assert models.is_default_model(link)
    assert not models.is_default_model(tmp_path / "other.gguf")


def test_an_install_without_it_says_so(monkeypatch):
    monkeypatch.setattr(models, "DEFAULT_MODEL_FILE", "absent.gguf")
    with pytest.raises(UmaError) as caught:
        models.default_model_path()
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED
    assert not models.is_default_model("absent.gguf")


def test_the_notice_says_plainly_what_it_is():
    assert "demonstration model" in models.DEMO_NOTICE
    assert "--model" in models.DEMO_NOTICE
