"""Promises that need control inside the process: runs and counts the tests of tests/daemon that check them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perf.reliability.daemon import ROOT

FAULTS = ("test_faults.py", "test_hang.py", "test_pressure.py", "test_clients.py")
SUPERVISION = ("test_supervisor.py", "test_lifecycle.py", "test_restart.py", "test_access.py")

Say = Callable[[str], None]


def run(files: Sequence[str], say: Say) -> dict[str, Any]:
    """Run these files of tests/daemon. A skipped test proves nothing, so it is counted separately."""
    say(f"tests: {', '.join(files)}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        paths = [str(ROOT / "tests" / "daemon" / name) for name in files]
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *paths]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            return {
                "n_tests": 0,
                "n_skipped": 0,
                "seconds": 0.0,
                "names": [],
                "n_violations": 1,
                "violations": [done.stdout[-1000:]],
            }
        return outcome(report.read_text(encoding="utf-8"))


def outcome(junit_xml: str) -> dict[str, Any]:
    """Count the cases of a JUnit report."""
    cases = list(ET.fromstring(junit_xml).iter("testcase"))
    failed = [_sentence(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "n_tests": len(cases) - len(skipped),
        "n_skipped": len(skipped),
        "seconds": round(sum(float(case.get("time", 0)) for case in cases), 1),
        "names": sorted({_sentence(case).partition(" [")[0] for case in cases if case not in skipped}),
        "n_violations": len(failed),
        "violations": failed,
    }


def _sentence(case: ET.Element) -> str:
    """`test_a_storm_costs_nobody[x]` reads "a storm costs nobody [x]"."""
    name, bracket, which = case.get("name", "").partition("[")
    return name.removeprefix("test_").replace("_", " ") + (f" [{which}" if bracket else "")
