"""What sampling parameters and requests say about themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uma_core.types import (
    COLDEST,
    EXTRA_SHARE,
    PRIORITIES,
    Peer,
    Priority,
    Request,
    SamplingParams,
    n_extra,
    thought_mark,
)

PENALTY = {"repeat_penalty": 1.1}
DRY = {"dry_multiplier": 0.8}


@pytest.mark.parametrize(
    ("fields", "is_greedy", "needs_sampler"),
    [
        ({}, True, False),
        ({"temperature": COLDEST / 2}, True, False),
        ({"temperature": COLDEST}, False, True),
        ({"dynatemp_range": 0.5}, False, True),
        ({"logprobs": 0}, True, True),
        ({"ban_eog": True}, False, True),
        ({"min_tokens": 1}, False, True),
        ({"logit_bias": ((5, -1.0),)}, False, True),
        (PENALTY, False, True),
        ({"frequency_penalty": 0.1}, False, True),
        ({"presence_penalty": -0.1}, False, True),
        ({**PENALTY, "repeat_last_n": 0}, True, False),
        ({**PENALTY, "samplers": ("top_k",)}, True, False),
        (DRY, False, True),
        ({**DRY, "dry_penalty_last_n": 0}, True, False),
        ({**DRY, "dry_base": 0.5}, True, False),
        ({"top_k": 3, "top_p": 0.5}, True, False),
    ],
)
def test_only_what_changes_the_likeliest_token_needs_a_sampler(fields, is_greedy, needs_sampler):
    params = SamplingParams(**fields)
    assert (params.is_greedy, params.needs_sampler) == (is_greedy, needs_sampler)


@pytest.mark.parametrize(
    ("fields", "n"),
    [
        ({}, 0),
        (PENALTY, 64),
        ({**PENALTY, "repeat_last_n": -1}, 512),
        ({**PENALTY, "repeat_last_n": 9999}, 512),
        ({**PENALTY, "repeat_last_n": 7, **DRY}, 64),
        ({"repeat_last_n": 200, **DRY, "dry_penalty_last_n": 5}, 5),
    ],
)
def test_the_longest_window_in_use_says_how_many_tokens_matter(fields, n):
    assert SamplingParams(**fields).n_recent(512) == n


def test_mirostat_replaces_every_other_sampler():
    params = SamplingParams(**PENALTY, **DRY, temperature=0.8, mirostat=2)
    assert not (params.has_penalties or params.has_dry or params.has("top_k"))
    assert replace(params, mirostat=0).has_penalties


def test_the_best_of_more_answers_are_generated_than_returned():
    assert [Request("a", n=n, best_of=best).n_answers for n, best in ((1, 0), (3, 0), (2, 5))] == [1, 3, 5]


def test_a_peer_is_the_same_whatever_groups_it_is_told_with():
    assert Peer(1, 2, 3, (4, 5)) == Peer(1, 2, 3) != Peer(1, 2, 4)


@pytest.mark.parametrize(("mark", "text"), [(" <think>\n", "<think>"), ("\n\n", "\n\n"), ("", "")])
def test_blanks_around_a_thoughts_mark_do_not_count_unless_there_is_nothing_else(mark, text):
    assert thought_mark(mark) == text


def test_there_is_always_a_place_for_whoever_holds_none():
    assert [n_extra(n) for n in (1, EXTRA_SHARE, 4 * EXTRA_SHARE)] == [1, 1, 4]
    assert PRIORITIES == ("interactive", "background") and Priority.INTERACTIVE < Priority.BACKGROUND
