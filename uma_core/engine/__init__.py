"""Engines compute models. `api` is the contract; `llama`, `fake` and `graph` implement it."""
