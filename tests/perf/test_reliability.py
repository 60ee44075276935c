"""The reliability runs' own parts: turns on a shared machine, counted tests, and the page."""

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
    """With `flock FILE` as the gate, the lock is held in the block and free after it."""
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


def test_broken_promises_are_all_counted_and_the_first_kept():
    tally = Tally()
    for n in range(MAX_KEPT + 5):
        tally.violate(f"{n}")
    assert tally.n_violations == MAX_KEPT + 5
    assert tally.violations == [f"{n}" for n in range(MAX_KEPT)]
