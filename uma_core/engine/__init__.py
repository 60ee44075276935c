"""Engines: what computes. `api` is the contract; `llama`, `fake` and (later) `graph` fulfil it."""
