"""The verbs of `uma-ctl`, one per file; each module has a click command named `command`."""
