"""Policy: pure functions from a SchedulerState to a Plan. No I/O, clock, randomness, numpy or cffi in here."""
