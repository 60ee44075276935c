from __future__ import annotations

import shutil

import pytest

from native import backend


@pytest.mark.parametrize("hook", [backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable])
@pytest.mark.parametrize(("present", "asked"), [({"cmake", "ninja"}, []), ({"cmake"}, ["ninja"])])
def test_only_missing_tools_are_asked_for(monkeypatch: pytest.MonkeyPatch, hook, present, asked) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name in present else None)
    assert hook() == asked
