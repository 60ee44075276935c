"""The rows of a scored prompt: each is given the token that follows it, and reports in the order of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from uma_core.engine.api import Logprobs
from uma_core.session.scoring import Scoring

TOKENS = np.arange(10, 16, dtype=np.int32)


class Told:
    """A sampler that reports the token which it was given."""

    def __init__(self) -> None:
        self.token = -1
        self.is_closed = False

    def force(self, token: int) -> bool:
        self.token = token
        return True

    def logprobs(self) -> Logprobs:
        return Logprobs(-float(self.token), ())

    def close(self) -> None:
        self.is_closed = True


def scored() -> tuple[Scoring, list[Any]]:
    made: list[Any] = []

    def new() -> Any:
        made.append(Told())
        return made[-1]

    return Scoring(TOKENS, new, 0), made


def taken(scoring: Scoring, n: int) -> list[float]:
    return [scoring.take().logprob for _ in range(n)]


def test_each_row_is_given_the_token_after_it_call_by_call():
    scoring, _ = scored()
    assert len(scoring.rows(0, 2)) == 2 and taken(scoring, 2) == [-11.0, -12.0]
    assert len(scoring.rows(2, 3)) == 3 and taken(scoring, 3) == [-13.0, -14.0, -15.0]


def test_a_call_that_is_made_again_reports_from_its_first_row_again():
    scoring, _ = scored()
    scoring.rows(0, 3)
    taken(scoring, 1)
    scoring.rows(1, 2)
    assert taken(scoring, 2) == [-12.0, -13.0]


def test_samplers_are_used_again_and_closed_once_at_the_end():
    scoring, made = scored()
    scoring.rows(0, 3)
    scoring.rows(3, 1)
    assert len(made) == 3 and not any(sampler.is_closed for sampler in made)
    scoring.close()
    assert all(sampler.is_closed for sampler in made)
