"""The process in which a daemon reads large requests is forked, too: its own start would take 0.4 s of a core."""

from __future__ import annotations

import os
import sys

from tests.forks import Forked, Forks
from uma_core.server.operations import helper, helper_child


def install(forks: Forks) -> None:
    """Called in a daemon's process, before the daemon's code runs."""

    def spawn(*fds: int) -> Forked:
        environ = {**os.environ, **helper.NO_GPU}
        return forks.start("tests.daemon.helper", (), stderr=2, environ=environ, start_new_session=True, pass_fds=fds)

    helper.spawn = spawn  # type: ignore[assignment]


if __name__ == "__main__":
    helper_child.main(*map(int, sys.argv[1:]))
