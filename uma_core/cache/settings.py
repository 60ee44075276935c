"""The configuration of the cache, in bytes and ns. Replaced whole on reload."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheSettings:
    is_on: bool = False  # prompts may reuse KV
    ram_bytes: int = 512 << 20  # for snapshots and parked sessions
    disk_dir: str = ""  # "": no disk tier
    disk_bytes: int = 4096 << 20
    is_shared: bool = False  # one user's prompts may reuse another user's KV
    park_idle_ns: int = 60_000_000_000  # a sequence unused for this long is saved and emptied
