"""What `perf bandwidth` prints."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from perf import bandwidth
from perf.cli import main
from perf.stats import spread


@pytest.mark.parametrize(("given", "shown"), [("0.5b-q8_0", "0.5b-q8_0"), ("models/any.q4.gguf", "any.q4")])
def test_a_model_is_named_whole(monkeypatch: pytest.MonkeyPatch, given: str, shown: str) -> None:
    same = spread([1.0, 1.0])
    reached = bandwidth.Reached(isa="avx2", n_bytes=10**9, step=same, read=same, share=same)
    monkeypatch.setattr(bandwidth, "measure", lambda *_: reached)
    lines = CliRunner().invoke(main, ["bandwidth", given]).output.splitlines()
    assert lines[-1].startswith(f"| {shown} | avx2 | 1.000 |")
