"""SIGQUIT while other threads run Python: their stacks change while they are read without the interpreter's lock."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.daemon.support import ROOT
from uma_core.server.lifecycle.signals import QUIT_STATUS

N_PROCESSES = 10
SCRIPT = """
import threading
from types import SimpleNamespace
from uma_core.server.lifecycle import signals
from uma_core.server.io.loop import Loop

def deep(n):
    return n and deep(n - 1)

def run():
    while True:
        deep(900)

loop = Loop()
signals.install(loop, SimpleNamespace(stop=None), None)
for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
print("ready", flush=True)
while True:
    loop.turn(0.001)
"""


def test_a_dump_beside_busy_threads_ends_with_its_own_status() -> None:
    for _ in range(N_PROCESSES):
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGQUIT)
            _, stacks = process.communicate(timeout=60)
            assert process.returncode == QUIT_STATUS, stacks[-2000:]
            assert stacks.count("hread 0x") >= 5
