"""A forked gateway of a daemon: its arguments, then the number that the socket to the daemon has here."""

from __future__ import annotations

import os
import sys

from uma_core.server.lifecycle.gateway import LIFELINE
from uma_gateway.cli import main

if __name__ == "__main__":
    os.environ[LIFELINE] = sys.argv.pop()
    sys.exit(main())
