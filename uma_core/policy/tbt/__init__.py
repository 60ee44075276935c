"""The time between tokens (TBT) of interactive streams: limits -> controller, then the stage that shares the room out.

limits: what each stream was promised. controller: how much room the next gap has. `stages/latency_guard.py`: who gets
it.
"""
