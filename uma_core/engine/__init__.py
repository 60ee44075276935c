"""Engines: what computes. `api` is the contract; `llama`, `fake` and `graph` fulfil it."""
