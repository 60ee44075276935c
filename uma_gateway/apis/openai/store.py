"""Responses and conversations that can be continued by their id: in memory, for a limited time, within a budget."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

Item = dict[str, Any]


def size_of(*parts: Any) -> int:
    return sum(len(orjson.dumps(part)) for part in parts)


@dataclass(frozen=True)
class Stored:
    """A stored object of one account. `items`: the conversation up to and including the answer. `response`: the object
    as clients see it, a response or a conversation.
    """

    account: str
    response: dict[str, Any]
    input_items: list[Item]  # items of this request alone
    items: list[Item]
    n_bytes: int
    t_end: float

    def places(self) -> Iterator[tuple[tuple[str, str], Item]]:
        """Yield the items that can be referred to, each with its account and id."""
        for item in (*self.items, *self.input_items):
            if isinstance(item.get("id"), str):
                yield (self.account, item["id"]), item


class Store:
    """Stored objects. The oldest are dropped when the budget is used up. A response that continues another one keeps a
    copy of the conversation before it. An item is kept as long as any object that has it.
    """

    def __init__(self, kept_s: float, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s = kept_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._by_id: OrderedDict[str, Stored] = OrderedDict()
        # by account and id, then by the id of each response or conversation that has the item
        self._items: dict[tuple[str, str], dict[str, Item]] = {}
        self.n_bytes = 0

    def put(self, account: str, response: dict[str, Any], input_items: list[Item], items: list[Item]) -> None:
        """Store an object. It replaces one with the same id. One that is larger than the budget is not stored: it would
        evict all others, and then itself.
        """
        if not self._kept_s or not self._max_bytes:
            return
        earlier = self._by_id.get(response["id"])
        t_end = self._clock() + self._kept_s
        if earlier is not None and not input_items and items[: len(earlier.items)] == earlier.items:
            # read only the new items: reading all 100,000 of a long conversation would stall all streams for seconds
            more = Stored(account, response, [], items[len(earlier.items) :], 0, t_end)
            n_bytes = earlier.n_bytes + size_of(more.items, response) - size_of([], earlier.response)
        else:
            more = Stored(account, response, input_items, items, 0, t_end)
            n_bytes = size_of(items, response, input_items)
            if earlier is not None:
                self._drop(response["id"])
                earlier = None
        if n_bytes > self._max_bytes:
            if earlier is not None:
                self._drop(response["id"])
            return
        if earlier is not None:
            self.n_bytes -= earlier.n_bytes
            self._by_id.move_to_end(response["id"])
        self._by_id[response["id"]] = replace(more, items=items, n_bytes=n_bytes)
        for place, item in more.places():
            self._items.setdefault(place, {})[response["id"]] = item
        self.n_bytes += n_bytes
        self._tidy()

    def can_hold(self, n_bytes: int) -> bool:
        """Whether an object of this size would be stored."""
        return n_bytes <= self._max_bytes

    def get(self, account: str, response_id: str) -> Stored | None:
        """Return a stored object. None: it was never stored, belongs to another account, or was dropped."""
        self._tidy()
        stored = self._by_id.get(response_id)
        return stored if stored is not None and stored.account == account else None

    def item(self, account: str, item_id: str) -> Item | None:
        """Return an item of a stored conversation. None: as in `get`."""
        self._tidy()
        return next(reversed(self._items.get((account, item_id), {}).values()), None)

    def has_item(self, account: str, response_id: str, item_id: str) -> bool:
        """Whether a stored object has an item of this id."""
        return response_id in self._items.get((account, item_id), ())

    def delete(self, account: str, response_id: str) -> bool:
        if self.get(account, response_id) is None:
            return False
        self._drop(response_id)
        return True

    def _drop(self, response_id: str) -> None:
        stored = self._by_id.pop(response_id)
        self.n_bytes -= stored.n_bytes
        for place, _ in stored.places():  # a response may have an item twice
            holders = self._items.get(place, {})
            holders.pop(response_id, None)
            if not holders:
                self._items.pop(place, None)

    def _tidy(self) -> None:
        now = self._clock()
        while self._by_id:
            response_id, oldest = next(iter(self._by_id.items()))
            if oldest.t_end > now and self.n_bytes <= self._max_bytes:
                return
            self._drop(response_id)
