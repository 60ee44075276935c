"""Objects that later requests of an account find again: responses, conversations and their items."""

from __future__ import annotations

import re
from collections.abc import Callable

from uma_gateway.apis.openai import items
from uma_gateway.apis.openai.items import Item
from uma_gateway.apis.openai.store import Store, Stored
from uma_gateway.errors import GatewayError, Kind, invalid
from uma_gateway.exchange import Exchange

MOST_LISTED = 100


def store_of(exchange: Exchange) -> Store:
    state, answers = exchange.gateway.state, exchange.gateway.config.answers
    if "responses" not in state:
        state["responses"] = Store(answers.responses_kept_s, int(answers.responses_kept_mb * (1 << 20)))
    store: Store = state["responses"]
    return store


def not_kept(exchange: Exchange, kind: str, given_id: str, more: str = "") -> str:
    kept_s = exchange.gateway.config.answers.responses_kept_s
    return f"there is no {kind} {given_id[:100]!r}: {kind}s are kept for {kept_s:g} s, in memory{more}"


def find(exchange: Exchange, kind: str, given_id: str) -> Stored | None:
    """Find a stored object of this kind. `kind`: the value of its field `object`."""
    stored = store_of(exchange).get(exchange.caller.account, given_id)
    return stored if stored is not None and stored.response["object"] == kind else None


def found(exchange: Exchange, kind: str, given_id: str, param: str | None = None) -> Stored:
    """Return a stored object. Raises: GatewayError (404)."""
    stored = find(exchange, kind, given_id)
    if stored is None:
        raise GatewayError(Kind.NOT_FOUND, not_kept(exchange, kind, given_id), param, "not_found")
    return stored


def referred(exchange: Exchange, item: Item, path: str) -> Item:
    """Return the item that a reference names; other items unchanged. The AI SDK sends ids for items that it got from
    here.

    Raises: GatewayError.
    """
    item_id = items.reference(item, path)
    if item_id is None:
        return item
    kept = store_of(exchange).item(exchange.caller.account, item_id)
    if kept is None:
        raise GatewayError(Kind.NOT_FOUND, not_kept(exchange, "item", item_id, "; send it whole"), path, "not_found")
    return kept


def has_item(exchange: Exchange, kept_id: str) -> Callable[[str], bool]:
    """Return a function that tells whether the stored object `kept_id` has an item with a given id. A `kept_id` of ""
    stands for no object, which has no items.
    """
    store, account = store_of(exchange), exchange.caller.account
    return lambda item_id: store.has_item(account, kept_id, item_id)


async def send_page(exchange: Exchange, listed: list[Item]) -> None:
    """Send the items that the query's `order`, `limit` and `after` choose, the newest first unless `order` is asc.

    Raises: GatewayError.
    """
    query = exchange.query
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("`order` must be asc or desc", "order")
    data, has_more = _page(listed if order == "asc" else listed[::-1], query)
    await exchange.send_json(list_object(data, has_more))


def list_object(data: list[Item], has_more: bool = False) -> Item:
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": has_more}


def _page(listed: list[Item], query: dict[str, str]) -> tuple[list[Item], bool]:
    """Return the items that `after` and `limit` choose, and whether more follow. Raises: GatewayError."""
    limit, after = query.get("limit", "20"), query.get("after")
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= MOST_LISTED:
        raise invalid(f"`limit` must be from 1 to {MOST_LISTED}", "limit")
    begin = 0
    if after is not None:
        begin = next((i for i, item in enumerate(listed, 1) if item["id"] == after), -1)
    if begin < 0:
        raise invalid(f"`after`: there is no item {str(after)[:100]!r}", "after")
    end = begin + int(limit)
    return listed[begin:end], len(listed) > end
