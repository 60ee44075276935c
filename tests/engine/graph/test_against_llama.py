"""The trained models give the same greedy text as llama.cpp, or tokens that are nearly equal in probability where the
texts part.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, MOE, OPTIONS, TARGET
from tests.engine.drive import read, step
from tests.engine.graph.conftest import Pair

PROMPTS = [
    "The Debian project is an association of individuals who have made common cause to",
    "To install a package, run",
    "static int read_header(FILE * file) {\n",
    "Error: cannot open display. This means that",
]
N_GENERATED = 24
# in standard deviations of the logits, as test_llama.py measures between llama.cpp's kernels and ours
AS_GOOD_AS_EQUAL = 0.05


@pytest.mark.parametrize("path", [TARGET, DRAFT, MOE])
@pytest.mark.parametrize("n_repeat", [1, 20])
def test_greedy_text(path: str, n_repeat: int, pair: Pair) -> None:
    graph, llama = pair(path, OPTIONS)
    n_same = 0
    for prompt in PROMPTS if n_repeat == 1 else PROMPTS[:1]:
        tokens = np.array(graph.tokenize(prompt * n_repeat, True, False), np.int32)
        for engine in (graph, llama):
            engine.kv_truncate(0, 0)
        n_same += _same(graph, llama, read(graph, 0, tokens), read(llama, 0, tokens))
    assert n_same >= (len(PROMPTS) - 1 if n_repeat == 1 else 0)


def _same(graph, llama, ours: int, theirs: int) -> bool:  # type: ignore[no-untyped-def]
    """Whether all tokens are equal. Where they part, both engines must rate them nearly equal."""
    for _ in range(N_GENERATED):
        if ours != theirs:
            logits = graph.logits(0) if graph.kv_len(0) else None
            assert logits is not None and abs(logits[ours] - logits[theirs]) < AS_GOOD_AS_EQUAL * logits.std()
            return False
        ours, theirs = (step(engine, [(0, ours)])[0] for engine in (graph, llama))
    return True
