"""`make demo` works unattended: real daemon, embedded model, three clients, clean stop."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.daemon, pytest.mark.model]


def demonstrate(environment):
    return subprocess.run(
        [sys.executable, "-m", "uma_ctl.demo"], env=environment, capture_output=True, text=True, timeout=360
    )


def test_the_demonstration_runs_and_its_streams_interleave(environment):
    done = demonstrate(environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout, "colours are for terminals"
    speakers = re.findall(r"^(ann|bob|cat) \|", done.stdout, re.MULTILINE)
    assert set(speakers) == {"ann", "bob", "cat"}
    assert int(re.findall(r"the speaker changed (\d+) times", done.stdout)[0]) > 10, (
        "one after the other is not interleaving"
    )
    assert re.search(r"^200 \| \w", done.stdout, re.MULTILINE), "a chat over HTTP was answered"
    assert re.search(r"^state +ready$", done.stdout, re.MULTILINE)
    assert "demonstration model" in done.stdout
    assert done.stdout.rstrip().endswith("stopped cleanly")


def test_a_daemon_that_cannot_start_is_shown_with_its_log(environment):
    done = demonstrate({**environment, "UMA_N_CTX": "many"})
    assert done.returncode == 1
    assert "E_CONFIG_001" in done.stderr
    assert "Traceback" not in done.stderr
