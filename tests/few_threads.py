"""`uma-core` where the system starts only some threads: `python -m tests.few_threads NAME N daemon …`.

Imitates `ulimit -u`, which does not hold for root. N threads can be started whose names begin with NAME.
"""

from __future__ import annotations

import sys
import threading

from uma_core.cli import main

start = threading.Thread.start
name, n_left = sys.argv.pop(1), int(sys.argv.pop(1))


def start_few(thread: threading.Thread) -> None:
    global n_left
    if thread.name.startswith(name):
        if n_left == 0:
            raise RuntimeError("can't start new thread")
        n_left -= 1
    start(thread)


if __name__ == "__main__":
    threading.Thread.start = start_few  # type: ignore[method-assign]
    sys.exit(main())
