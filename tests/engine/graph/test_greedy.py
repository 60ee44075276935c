"""Greedy continuations on the trained models. Where they part from llama.cpp's, llama.cpp's own modes could have parted
too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perf.greedy import LONGEST, OURS, OWN_MODES, SHORTEST, compare, noise, prompts_of
from tests.engine.conftest import DRAFT, MOE, TARGET

TEXT = Path(__file__).parents[2] / "data" / "prose.md"  # a fixed copy: another text has other near-ties
N_PROMPTS, N_NEW = 12, 12


@pytest.mark.parametrize("path", [TARGET, DRAFT, MOE])
def test_partings_are_within_the_kernels_noise(path: str) -> None:
    found = compare(path, TEXT.read_text(encoding="utf-8"), (N_PROMPTS, N_NEW), 2)
    bound = noise(found)
    least = min(found[mode.name].n_same for mode in OWN_MODES)
    for mode in OURS:
        tally = found[mode.name]
        assert all(gap < bound for gap in tally.partings)
        assert tally.n_same + len(tally.partings) == N_PROMPTS
        assert tally.n_same >= least - N_PROMPTS // 4


def test_prompts_come_from_all_of_the_text_in_all_lengths() -> None:
    text = np.arange(5000, dtype=np.int32)
    prompts = prompts_of(text, 200)
    lengths = [len(prompt) for prompt in prompts]
    assert min(lengths) >= SHORTEST and max(lengths) <= LONGEST
    assert max(lengths) > LONGEST / 2 and sum(n < 2 * SHORTEST for n in lengths) > 10
    assert prompts[0][0] == 0 and prompts[-1][0] == 5000 - LONGEST
    assert all((np.diff(prompt) == 1).all() for prompt in prompts)
