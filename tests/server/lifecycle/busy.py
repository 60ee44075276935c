"""The program of test_signals.py: the daemon's signals, beside threads whose stacks change all the time."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from uma_core.server.io.loop import Loop
from uma_core.server.lifecycle import signals


def deep(n: int) -> int:
    return n and deep(n - 1)


def run() -> None:
    while True:
        deep(900)


if __name__ == "__main__":
    loop = Loop()
    signals.install(loop, SimpleNamespace(stop=None), None)
    for _ in range(4):
        threading.Thread(target=run, daemon=True).start()
    print("ready", flush=True)
    while True:
        loop.turn(0.001)
