"""What a request is told about the progress of its prompt."""

from __future__ import annotations

import itertools

import pytest

from tests.executor.rig import Rig
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel
from uma_core.session.events import Final, Progress, Token

LONG = "a long prompt. " * 120


def news(rig: Rig, request_id: str) -> list[Progress]:
    return [e for e in rig.seen if isinstance(e, Progress) and e.request_id == request_id]


@pytest.mark.parametrize("n_prefill_slots", [0, 2])
def test_a_prompt_is_told_of_to_its_end_before_the_first_token(n_prefill_slots):
    rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots))
    rig.submit("a", LONG, max_tokens=3, prompt_progress=True)
    rig.run()
    told = news(rig, "a")
    assert told[-1].n_read == told[-1].n_prompt == len(rig.engine.tokenize(LONG, True, False))
    assert all(before.n_read < after.n_read for before, after in itertools.pairwise(told))
    kinds = [type(event) for event in rig.seen]
    assert len(kinds) - kinds[::-1].index(Progress) <= kinds.index(Token)


def test_what_was_restored_counts_as_read():
    rig = Rig()
    rig.executor.set_cache(CacheSettings(is_on=True))
    for name in "ab":
        rig.submit(name, LONG, max_tokens=3, prompt_progress=True)
        rig.run()
    (first, *_), (again, *_) = news(rig, "a"), news(rig, "b")
    assert first.n_cached == 0 and first.n_read < first.n_prompt
    assert 0 < again.n_cached <= again.n_read


def test_a_busy_daemon_does_not_tell_of_every_piece():
    """Beside a chat, a prompt is read in hundreds of pieces."""
    rig = Rig()
    rig.submit("chat", max_tokens=2000)
    rig.tick()
    rig.submit("a", LONG * 2, max_tokens=3, prompt_progress=True)
    rig.run()
    times = [event.read_ns for event in news(rig, "a")]
    assert all(after - before >= 100_000_000 for before, after in itertools.pairwise(times[:-1]))


def test_nobody_else_is_told():
    rig = Rig()
    rig.submit("a", LONG, max_tokens=3)
    rig.run()
    assert not news(rig, "a") and isinstance(rig.seen[-1], Final)


def test_answers_that_share_a_prompt_are_told_once():
    rig = Rig()
    rig.submit("a", LONG, max_tokens=3, n=3, prompt_progress=True)
    rig.run()
    assert [event.n_read for event in news(rig, "a")].count(news(rig, "a")[0].n_prompt) == 1
