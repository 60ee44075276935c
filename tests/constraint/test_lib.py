"""llguidance's C interface: any other library or version is refused with a code."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from uma_core.constraint import lib as module
from uma_core.constraint.lib import is_installed, load
from uma_core.errors import ErrorCode, UmaError


@pytest.fixture(autouse=True)
def unloaded() -> Any:
    """Each test opens the library anew, and the next ones find the one that the process has open."""
    kept = load()
    load.cache_clear()
    yield kept
    load.cache_clear()


def refused() -> str:
    with pytest.raises(UmaError) as caught:
        load()
    assert caught.value.error is ErrorCode.CONSTRAINTS_UNAVAILABLE
    return str(caught.value)


def test_it_is_opened_once() -> None:
    assert is_installed() and load() is load()


def test_without_the_package_there_are_no_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert "cannot be imported" in refused()


def test_another_library_in_its_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found, inner = ModuleType("llguidance"), ModuleType("llguidance._lib")
    found._lib, inner.__file__ = inner, sys.executable  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llguidance", found)
    monkeypatch.setitem(sys.modules, "llguidance._lib", inner)
    assert "no C interface" in refused()


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structs may differ."""
    monkeypatch.setattr(module, "VERSION", b"llguidance@0.7.")
    assert "is installed, llguidance@0.7.x is needed" in refused()
