"""Finding the best token on the device: what a session's sampler says about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from tests.engine.drive import generate, read, tokens_of
from uma_core.engine.api import Batch
from uma_core.engine.graph.engine import GraphEngine
from uma_core.types import SamplingParams

N = 60


@pytest.fixture(scope="module")
def stock() -> Iterator[GraphEngine]:
    with closing(GraphEngine(DRAFT, OPTIONS, is_stock=True)) as engine:
        yield engine


def test_the_best_token_is_taken_unless_its_sampler_bans_it(
    stock: GraphEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    banned = Counter(generate(stock, 0, read(stock, 0, tokens_of(stock, 40)), 40)).most_common(1)[0][0]
    stock.kv_truncate(0, 0)
    assert stock._loaded is not None
    monkeypatch.setattr(stock._loaded.vocab, "eog", frozenset({banned}))
    sampler = stock.sampler(SamplingParams(temperature=0.0, ban_eog=True), 1)
    batch, n_banned, n_fetched = Batch(2), 0, 0
    tokens = [read(stock, seq, tokens_of(stock, 40, seq)) for seq in (0, 1)]
    for _ in range(N):
        batch.clear()
        for seq, token in enumerate(tokens):
            batch.add(token, stock.kv_len(seq), seq, True)
        tokens = list(stock.decode(batch, [sampler, None]).tokens)
        assert stock.decoder is not None and stock.decoder._last is not None
        n_fetched += stock.decoder._last.native.has_logits
        logits = stock.logits(0).copy()
        n_banned += int(logits.argmax()) == banned
        logits[banned] = -np.inf
        assert tokens == [logits.argmax(), stock.logits(1).argmax()]
    sampler.close()
    assert 0 < n_banned < N, "both happened"
    assert n_fetched == n_banned, "all logits are fetched only where the best token is banned"


@pytest.mark.parametrize(
    ("params", "is_greedy"),
    [
        (SamplingParams(temperature=0.0), True),
        (SamplingParams(temperature=0.5), False),
        (SamplingParams(temperature=0.0, repeat_penalty=1.1), False),
    ],
)
def test_a_penalty_or_a_draw_wants_all_logits(stock: GraphEngine, params: SamplingParams, is_greedy: bool) -> None:
    sampler = stock.sampler(params, 1)
    token, n = read(stock, 2, tokens_of(stock, 20)), stock.kv_len(2)
    batch = Batch(1)
    batch.add(token, n, 2, True)
    stock.decode(batch, [sampler])
    assert stock.decoder is not None and stock.decoder._last is not None
    assert bool(stock.decoder._last.native.has_logits) is not is_greedy
    stock.kv_truncate(2, 0)
    sampler.close()
