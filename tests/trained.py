"""The trained models that come with the tests. The one that comes with the product is `default_model_path()`."""

from __future__ import annotations

from pathlib import Path

_MODELS = Path(__file__).parent / "data" / "models"
TINY = _MODELS / "uma-tiny-q8_0.gguf"
MOE = _MODELS / "uma-moe-q8_0.gguf"
DRAFT = _MODELS / "uma-draft-q8_0.gguf"
