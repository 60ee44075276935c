"""The control client: `uma-ctl` and `uma-cli`. Imports neither the bindings nor the server."""
