"""The build backend: setuptools, plus CMake and ninja from the package index only if this machine has none.

setuptools would run setup.py to ask it for further requirements. It has none.
"""

from __future__ import annotations

import shutil
from typing import Any

from setuptools.build_meta import (  # noqa: F401 - the hooks that stay as they are
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def _missing_tools() -> list[str]:
    return [name for name in ("cmake", "ninja") if not shutil.which(name)]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _missing_tools()


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _missing_tools()
