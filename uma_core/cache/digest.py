"""Describes the cache's content without its text: a chain of keyed hashes, one per 64 tokens of each prefix.

    hash(i) = BLAKE2b-64(key, hash(i - 1) + tokens 64·i … 64·i + 63 as little-endian int32);  hash(-1) = 8 zero bytes

A hash covers its page and all pages before it: a client that finds the hash of a prompt's page i in a digest knows that
pages 0 to i are cached. The key is the client's secret, one per cluster. Without it, a hash can be compared neither
with guessed text nor with another cluster's hashes.

Rules: `held` reads the trees on the compute thread and copies no tokens. Hashing happens elsewhere, and only for new
nodes.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from uma_core.cache.manager import PrefixCache
from uma_core.cache.radix import Node

PAGE = 64  # tokens
HASH_BYTES = 8  # with 10^9 pages a collision has a chance of 3 %, and it only sends a request to a colder node
LOG = 64  # generations whose differences are kept: with 4 requests a second, at least the last 15 s
DIGESTERS = 8  # how many digesters are kept: one per user, key and requested size
START = bytes(HASH_BYTES)


def page_hashes(tokens: Sequence[int] | np.ndarray, key: bytes) -> list[str]:
    """Return one hash, as 16 hexadecimal digits, per whole page of the tokens."""
    return [link.hex() for link in _links(np.asarray(tokens, "<i4").tobytes(), START, key)]


def _links(data: bytes, link: bytes, key: bytes) -> list[bytes]:
    """Continue a chain over the whole pages of `data`."""
    found = []
    for at in range(0, len(data) - PAGE * 4 + 1, PAGE * 4):
        link = hashlib.blake2b(link + data[at : at + PAGE * 4], digest_size=HASH_BYTES, key=key).digest()
        found.append(link)
    return found


class Part(NamedTuple):
    """A node of the tree whose tokens can be restored. Lower ranks come first."""

    node_id: int
    parent: int  # index of the parent's part; -1: prompts begin here
    start: int
    tokens: np.ndarray  # never changed in place: nodes replace their arrays
    rank: tuple[int, int]


def held(cache: PrefixCache, uid: int) -> list[Part]:
    """Return the prefixes available to requests of this user that do not choose LoRA adapters, parents first.

    Runs on the compute thread.
    """
    tree = cache.tree_of_user(uid)
    parts: list[Part] = []
    stack: list[tuple[Node, int]] = [(child, -1) for child in tree.root.children.values()] if tree is not None else []
    while stack:
        node, parent = stack.pop()
        seg = node.seg
        if not node.holders and (seg is None or (seg.blob is None and not seg.file)):
            continue  # a part after a gap cannot be restored
        tier = 0 if node.holders else 1 if seg is not None and seg.blob is not None else 2
        used = max((cache.residents[seq_id].t_used for seq_id in node.holders), default=0)
        parts.append(Part(node.id, parent, node.start, node.tokens, (tier, -used)))
        stack += [(child, len(parts) - 1) for child in node.children.values()]
    return parts


class _Hashed(NamedTuple):
    start: int
    n: int
    pages: list[str]  # pages that end in this node
    link: bytes  # hash of the last whole page up to its end
    tail: bytes  # tokens after that page


class Digester:
    """Hashes for one client, and their changes since its last request. Has its own lock; for any thread."""

    def __init__(self, key: bytes, n_most: int, generation: int) -> None:
        """`generation`: the number of the empty digest. No other digester may have begun with it, or the differences
        would refer to that one's digest.
        """
        self._key = key
        self._n_most = n_most
        self._generation = generation
        self._pages: frozenset[str] = frozenset()
        self._known: dict[int, _Hashed] = {}
        self._log: deque[tuple[int, frozenset[str], frozenset[str]]] = deque(maxlen=LOG)  # generation, added, removed
        self._lock = threading.Lock()

    def tell(self, parts: list[Part], since: int | None) -> dict[str, Any]:
        """Return the digest of these parts: whole, or as the changes since generation `since` if that is known."""
        with self._lock:
            self._take(parts)
            reply: dict[str, Any] = {"generation": self._generation}
            changes = self._changes(since)
            if changes is None:
                return reply | {"is_whole": True, "added": sorted(self._pages), "removed": []}
            added, removed = changes
            return reply | {"is_whole": False, "added": sorted(added), "removed": sorted(removed)}

    def _take(self, parts: list[Part]) -> None:
        hashed = self._hash(parts)
        pages: dict[str, None] = {}
        for i in sorted(range(len(parts)), key=lambda i: (parts[i].rank, parts[i].start)):
            if len(pages) >= self._n_most:
                break
            pages |= dict.fromkeys(hashed[i].pages[: self._n_most - len(pages)])
        now = frozenset(pages)
        if now != self._pages:
            self._generation += 1
            self._log.append((self._generation, now - self._pages, self._pages - now))
            self._pages = now

    def _hash(self, parts: list[Part]) -> list[_Hashed]:
        known, self._known = self._known, {}
        found: list[_Hashed] = []
        for part in parts:
            hashed = known.get(part.node_id)
            if hashed is None or (hashed.start, hashed.n) != (part.start, len(part.tokens)):
                link, tail = (found[part.parent].link, found[part.parent].tail) if part.parent >= 0 else (START, b"")
                data = tail + part.tokens.astype("<i4", copy=False).tobytes()
                links = _links(data, link, self._key)
                rest = data[len(links) * PAGE * 4 :]
                hashed = _Hashed(
                    part.start, len(part.tokens), [each.hex() for each in links], links[-1] if links else link, rest
                )
            self._known[part.node_id] = hashed
            found.append(hashed)
        return found

    def _changes(self, since: int | None) -> tuple[frozenset[str], frozenset[str]] | None:
        """Return the pages added and removed since then; None: that is too long ago, or was never our generation."""
        if since == self._generation:
            return frozenset(), frozenset()
        later = [entry for entry in self._log if since is not None and entry[0] > since]
        if not later or later[0][0] != since + 1:  # type: ignore[operator] # with None there are none
            return None
        before = self._pages
        for _, added, removed in reversed(later):
            before = (before - added) | removed
        return self._pages - before, before - self._pages


class Digesters:
    """The daemon's digesters, by client. The least recently used one is dropped."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        """`now_ms` gives a digester's first generation. A digest changes less than a thousand times a second, so no
        number is used twice.
        """
        self._now_ms = now_ms
        self._all: OrderedDict[tuple[int, bytes, int], Digester] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, uid: int, key: bytes, n_most: int) -> Digester:
        """Return the digester of a client. For any thread."""
        who = uid, key, n_most
        with self._lock:
            digester = self._all.get(who)
            if digester is None:
                digester = self._all[who] = Digester(key, n_most, self._now_ms())
                while len(self._all) > DIGESTERS:
                    self._all.popitem(last=False)
            self._all.move_to_end(who)
            return digester
