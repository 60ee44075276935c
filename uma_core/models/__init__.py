"""The embedded default model: what the daemon serves when `--model` is not given.

docs/recipe says what it was trained on, how, and how well.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from uma_core.errors import ErrorCode, UmaError

DEFAULT_MODEL_FILE = "uma-work-q8_0.gguf"

DEMO_NOTICE = (
    "This is a demonstration model: 26 million parameters, trained to edit short texts, call tools and write JSON. "
    "It shows how the daemon serves; it knows nothing, and its answers are too often wrong to be used. "
    "Give --model PATH.gguf (or UMA_MODEL) for real work."
)


def default_model_path() -> Path:
    """Return the path of the embedded GGUF.

    Raises: MODEL_LOAD_FAILED where the package was installed without it.
    """
    path = Path(str(files(__name__).joinpath(DEFAULT_MODEL_FILE)))
    if not path.is_file():
        raise UmaError(
            ErrorCode.MODEL_LOAD_FAILED, f"the embedded model {DEFAULT_MODEL_FILE} is not installed; give --model PATH"
        )
    return path


def is_default_model(path: str | Path) -> bool:
    """True where `path` is the embedded GGUF, however it is spelled."""
    try:
        return Path(path).samefile(default_model_path())
    except (OSError, UmaError):
        return False
