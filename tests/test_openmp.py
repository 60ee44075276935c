"""Where compute threads run, and how long they spin."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from uma_core import openmp
from uma_core.machine import N_PROCESSORS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp is configured on Linux only")
# libgomp prints its configuration when it is loaded
SHOW = """
import os, sys
from uma_core import openmp
with openmp.configured(int(sys.argv[1])):
    os.environ["OMP_DISPLAY_ENV"] = "verbose"
    import uma_core.engine.lib
print(len(os.sched_getaffinity(0)), *(name for name in openmp.USER_VARIABLES if name in os.environ))
"""


def shown(n_threads: int, **given: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", SHOW, str(n_threads)]
    run = subprocess.run(command, env=kept | given, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in run.stderr:
        pytest.skip("this build has no libgomp")
    assert run.stdout.split() == [str(N_PROCESSORS), *given], "neither this thread nor a child of it is bound"
    return run.stderr


@pytest.mark.parametrize("n_threads", [N_PROCESSORS, N_PROCESSORS + 1])
def test_as_many_threads_as_processors_get_one_each(n_threads: int) -> None:
    """With two threads on one processor, and another program alone on the next, a token took 600 times as long."""
    printed = shown(n_threads)
    assert "OMP_PROC_BIND = 'TRUE'" in printed
    assert f"GOMP_SPINCOUNT = '{openmp.SPIN_COUNT}'" in printed, "two computing processes would starve each other"


@pytest.mark.parametrize(("n_chosen", "is_bound"), [(N_PROCESSORS, True), (N_PROCESSORS - 1, False)])
def test_default_threads_are_bound_where_each_has_a_processor(
    monkeypatch: pytest.MonkeyPatch, n_chosen: int, is_bound: bool
) -> None:
    monkeypatch.setattr(openmp, "n_compute_threads", lambda: n_chosen)
    assert ("OMP_PROC_BIND" in openmp.variables(0, {})) == is_bound


@pytest.mark.skipif(N_PROCESSORS < 2, reason="one thread needs no place")
def test_fewer_threads_are_free_to_go_where_nobody_computes_and_spin_briefly() -> None:
    printed = shown(N_PROCESSORS - 1)
    assert "OMP_PROC_BIND = 'TRUE'" not in printed
    assert f"GOMP_SPINCOUNT = '{openmp.SPIN_COUNT}'" in printed


@pytest.mark.parametrize("name", openmp.USER_VARIABLES)
def test_what_the_user_has_set_stays(name: str) -> None:
    assert openmp.variables(0, {name: "1"}) == {}
