"""What every test run needs, whatever else the machine is doing."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A busy machine makes tests slow, not wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# OpenMP threads that spin at barriers make every step ten times slower beside other work; daemons that tests start inherit this.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# A shell's background jobs ignore Ctrl-C and pass that on to their children; here commands are asked what they do at one.
signal.signal(signal.SIGINT, signal.default_int_handler)
