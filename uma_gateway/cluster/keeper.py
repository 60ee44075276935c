"""Run a command for as long as standard input is open: `python -m uma_gateway.cluster.keeper COMMAND…`.

Between a node's actor and its daemon: however the actor ends, the pipe closes, and the daemon is told to stop (SIGTERM), and after
`STOP_S` ended. The exit status is the command's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

STOP_S = 10.0


def main(command: list[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for who holds the pipe

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
            return
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
