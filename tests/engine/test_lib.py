"""What the libraries are told before they are loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = "import os; os.environ['OMP_DISPLAY_ENV'] = 'verbose'; import uma_core.engine.lib"


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, str(1_000 * len(os.sched_getaffinity(0)))),
        ({"GOMP_SPINCOUNT": "777"}, "777"),
        ({"OMP_WAIT_POLICY": "active"}, "30000000000"),
    ],
)
def test_threads_that_wait_for_each_other_spin_for_a_moment_only_unless_told(given, spins):
    """Two that share a processor with nobody, beside another program, hold each other up by what they spin."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    shown = subprocess.run([sys.executable, "-c", SHOW], env=kept | given, capture_output=True, text=True, check=True)
    if "OPENMP DISPLAY ENVIRONMENT" not in shown.stderr or "GOMP_SPINCOUNT" not in shown.stderr:
        pytest.skip("this build has no libgomp")
    assert f"GOMP_SPINCOUNT = '{spins}'" in shown.stderr
