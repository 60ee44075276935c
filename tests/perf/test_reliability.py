"""The parts of the reliability runs: turns on a shared machine, counted tests, and the page."""

from __future__ import annotations

import fcntl
from types import SimpleNamespace

import click
import pytest

from perf.reliability import promises, report, short
from perf.reliability.tally import MAX_KEPT, Tally
from perf.reliability.turns import Turns
from tests.perf.fake_server import frame, uds_server

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
THOUSANDS = {
    "n": 1000,
    "rss_mb": [100.0, 101.0, 101.0],
    "descriptors": [17, 17],
    "kv_reserved": 0,
    "n_violations": 0,
    "violations": [],
}
STATUS = {"status_ms": {"p50": 10.0, "p99": 20.0, "max": 25.0}, "longest_call_ms": 2000.0}
TRIED = {"reloads": RELOADS, "drains": DRAINS, "thousands": THOUSANDS, "status_latency": STATUS}


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
        ("thousands", {}, True),
        ("thousands", {"descriptors": [17, 16]}, True),  # the first count met a connection that was closing
        ("thousands", {"descriptors": [17, 18]}, False),
        ("status_latency", {}, True),
        ("status_latency", {"longest_call_ms": 40.0}, False),  # no call was long
    ],
)
def test_what_nobody_tried_is_not_kept(trial, seen, is_kept):
    results = {
        "machine": machine(),
        trial: {**TRIED[trial], **seen},
    }
    assert report.is_kept(results) is is_kept
    assert ("**no**" in report.page(results)) is not is_kept


def test_the_page_says_which_trials_are_of_another_commit():
    ran = {"date": "2026-01-01", "commit": "abc"}
    results = {"machine": machine(), "drains": DRAINS | ran, "status_latency": STATUS | ran}
    assert "earlier runs" not in report.page(results)
    results["drains"] |= {"date": "2025-12-24", "commit": "old"}
    assert "Kept from earlier runs: drains (2025-12-24, commit old)." in report.page(results)


@pytest.mark.parametrize(("reason", "n_violations"), [("length", 0), ("draining", 1)])
def test_a_request_that_is_not_answered_counts(socket_path, reason, n_violations):
    def script(request):
        usage = {"completion_tokens": 0}
        return [frame({"id": request["id"], "event": "eos", "reason": reason, "text": "", "usage": usage})]

    with uds_server(socket_path, script):
        assert len(short._requests(SimpleNamespace(path=str(socket_path)), 1)) == n_violations


def test_broken_promises_are_all_counted_and_the_first_kept():
    tally = Tally()
    for n in range(MAX_KEPT + 5):
        tally.violate(f"{n}")
    assert tally.n_violations == MAX_KEPT + 5
    assert tally.violations == [f"{n}" for n in range(MAX_KEPT)]
