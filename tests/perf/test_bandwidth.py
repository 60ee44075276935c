"""What `perf bandwidth` prints."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from perf import bandwidth
from perf.cli import main
from perf.stats import spread
from tests.trained import MOE


@pytest.mark.parametrize(("given", "shown"), [("0.5b-q8_0", "0.5b-q8_0"), ("models/any.q4.gguf", "any.q4")])
def test_a_model_is_named_whole(monkeypatch: pytest.MonkeyPatch, given: str, shown: str) -> None:
    same = spread([1.0, 1.0])
    reached = bandwidth.Reached(isa="avx2", n_bytes=10**9, step=same, read=same, share=same)
    monkeypatch.setattr(bandwidth, "measure", lambda *_: reached)
    lines = CliRunner().invoke(main, ["bandwidth", given]).output.splitlines()
    assert lines[-1].startswith(f"| {shown} | avx2 | 1.000 |")


@pytest.mark.model
def test_of_a_mixture_of_experts_a_step_does_not_read_all() -> None:
    """Its speed would be that of a memory twice as fast."""
    done = CliRunner().invoke(main, ["bandwidth", str(MOE), "--rounds", "1"])
    assert done.exit_code == 1 and "only some of the experts" in done.output
