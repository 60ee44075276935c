"""The parts of the reliability runs: turns on a shared machine, counted tests, and the page."""

from __future__ import annotations

import fcntl

import click
import pytest

from perf.reliability import promises, report
from perf.reliability.tally import MAX_KEPT, Tally
from perf.reliability.turns import Turns

JUNIT = """<testsuites><testsuite>
<testcase name="test_a_storm_costs_nobody[x]" time="1.5"/>
<testcase name="test_a_storm_costs_nobody[y]" time="0.5"><failure message="it did"/></testcase>
<testcase name="test_nothing_is_lost" time="1"/>
<testcase name="test_elsewhere" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_turn_is_kept_until_its_end(tmp_path):
    """With `flock FILE` as the gate, the lock is held within the block and free after it."""
    path = tmp_path / "lock"
    with open(path, "w") as file:
        with Turns(f"flock {path}").turn(), pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX)


def test_a_gate_that_runs_nothing_is_an_error_not_a_turn():
    with pytest.raises(click.ClickException, match="did not run"), Turns("true").turn():
        raise AssertionError("there was no turn")


def test_without_a_gate_work_begins_at_once():
    with Turns().turn():
        pass


def test_tests_are_counted_and_named():
    found = promises.outcome(JUNIT)
    assert (found["n_tests"], found["n_skipped"], found["seconds"]) == (3, 1, 3.0)
    assert found["names"] == ["a storm costs nobody", "nothing is lost"]
    assert found["violations"] == ["a storm costs nobody [y]"]


def machine():
    return {"n_cores": 2, "cpu": "some CPU", "date": "2026-01-01", "commit": "abc"}


@pytest.mark.parametrize("is_good", [True, False])
def test_the_page_says_which_promises_were_kept(is_good):
    junit = JUNIT.replace('<failure message="it did"/>', "") if is_good else JUNIT
    results = {"machine": machine(), "faults": promises.outcome(junit)}
    page = report.page(results)
    assert report.is_kept(results) is is_good
    assert ("**no**" in page) is not is_good
    assert "- a storm costs nobody\n" in page


def test_tests_that_did_not_run_keep_no_promise():
    results = {"machine": machine(), "supervision": promises.outcome("<testsuites/>")}
    assert not report.is_kept(results)


RELOADS = {
    "n_reloads": 100,
    "n_streams": 90,
    "n_across": 80,
    "finals": {"length": 90},
    "n_wrong_model": 0,
    "n_unjudged": 2,
    "rss_mb": [98.0, 100.0, 101.0],
    "n_warm_up": 20,
    "descriptors": [12, 12],
    "reload_ms": {"p50": 100.0, "max": 500.0},
    "n_violations": 0,
    "violations": [],
}
DRAINS = {
    "took_ms": {"p50": 2000.0, "max": 2100.0},
    "late_ms_max": 100.0,
    "deadline_ms": 2000.0,
    "n_accepted": 40,
    "n_ended": 40,
    "n_violations": 0,
    "violations": [],
}


@pytest.mark.parametrize(
    ("trial", "seen", "is_kept"),
    [
        ("reloads", {}, True),
        ("reloads", {"n_across": 0}, False),  # no stream met a reload
        ("reloads", {"n_unjudged": 90}, False),  # no stream was judged
        ("reloads", {"finals": {"length": 89, "error": 1}}, False),
        ("drains", {}, True),
        ("drains", {"n_accepted": 0, "n_ended": 0}, False),
        ("drains", {"n_ended": 39}, False),
    ],
)
def test_what_nobody_tried_is_not_kept(trial, seen, is_kept):
    results = {"machine": machine(), trial: {**{"reloads": RELOADS, "drains": DRAINS}[trial], **seen}}
    assert report.is_kept(results) is is_kept
    assert ("**no**" in report.page(results)) is not is_kept


def test_broken_promises_are_all_counted_and_the_first_kept():
    tally = Tally()
    for n in range(MAX_KEPT + 5):
        tally.violate(f"{n}")
    assert tally.n_violations == MAX_KEPT + 5
    assert tally.violations == [f"{n}" for n in range(MAX_KEPT)]
