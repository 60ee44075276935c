"""Responses that can be continued by their id: in memory, for a while, within a budget."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

Item = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """`items`: the conversation up to and with the answer. Belongs to one account."""

    account: str
    response: dict[str, Any]
    input_items: list[Item]  # of this request alone
    items: list[Item]
    n_bytes: int
    t_end: float


class Store:
    """The oldest go first when the budget is used up. A continued response keeps its own copy of what came before."""

    def __init__(self, kept_s: float, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s = kept_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._by_id: OrderedDict[str, Stored] = OrderedDict()
        self.n_bytes = 0

    def put(self, account: str, response: dict[str, Any], input_items: list[Item], items: list[Item]) -> None:
        if not self._kept_s or not self._max_bytes:
            return
        n_bytes = sum(len(orjson.dumps(part)) for part in (items, response, input_items))
        stored = Stored(account, response, input_items, items, n_bytes, self._clock() + self._kept_s)
        self._by_id[response["id"]] = stored
        self.n_bytes += n_bytes
        self._tidy()

    def get(self, account: str, response_id: str) -> Stored | None:
        """None: never kept, another account's, or gone."""
        self._tidy()
        stored = self._by_id.get(response_id)
        return stored if stored is not None and stored.account == account else None

    def delete(self, account: str, response_id: str) -> bool:
        if self.get(account, response_id) is None:
            return False
        self.n_bytes -= self._by_id.pop(response_id).n_bytes
        return True

    def _tidy(self) -> None:
        now = self._clock()
        while self._by_id:
            oldest = next(iter(self._by_id.values()))
            if oldest.t_end > now and self.n_bytes <= self._max_bytes:
                return
            self._by_id.popitem(last=False)
            self.n_bytes -= oldest.n_bytes
