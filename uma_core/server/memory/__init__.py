"""How much memory there is, and how the daemon reacts when it runs short."""
