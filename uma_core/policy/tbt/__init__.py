"""The time between tokens (TBT) of interactive streams: limits -> controller, then the stage that shares the room out.

limits: the longest gaps of each stream. controller: how much room the next gap has. `stages/latency_guard.py`: which
work gets this room.
"""
