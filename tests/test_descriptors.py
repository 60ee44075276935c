"""The limit on open files is raised to what the process needs. Runs in a separate process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, resource, sys
logging.basicConfig(format="%(message)s")
from uma_core.descriptors import make_room
soft, hard, n = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
make_room(n, "1000 connections")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "n", "expected", "is_told"),
    [
        (300, 4096, 276, 300, False),
        (300, 4096, 1381, 1381, False),
        (300, 512, 1381, 512, True),
        (512, 512, 1381, 512, True),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(soft, hard, n, expected, is_told):
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard), str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected
    assert ("1000 connections need" in done.stderr) is is_told
