"""Start, load, reload, drain and stop."""
