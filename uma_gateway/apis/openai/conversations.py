"""`/v1/conversations`: items that several responses share. Conversations are kept like responses; each change restarts
their time.
"""

from __future__ import annotations

import time
from typing import Any

from uma_gateway.apis.openai import items
from uma_gateway.apis.openai.items import Item
from uma_gateway.apis.openai.kept import find, found, has_item, list_object, not_kept, referred, send_page, store_of
from uma_gateway.apis.openai.store import Stored, size_of
from uma_gateway.body import array, table
from uma_gateway.errors import GatewayError, Kind, invalid, unsupported
from uma_gateway.exchange import Exchange

KIND = "conversation"


async def on_create(exchange: Exchange) -> None:
    body = await exchange.json()
    answers = exchange.gateway.config.answers
    if not answers.responses_kept_s or not answers.responses_kept_mb:
        message = "conversations are not kept here: `answers.responses_kept_s` or `responses_kept_mb` is 0"
        raise unsupported(message, None)
    conversation_id = items.new_id("conv")
    facts = {"created_at": int(time.time()), "metadata": table(body, "metadata")}
    conversation = {"id": conversation_id, "object": KIND, **facts}
    listed = _given(exchange, body, conversation_id)
    _check_size(exchange, size_of(conversation, listed))
    await _put(exchange, conversation, listed)


async def on_get(exchange: Exchange) -> None:
    await exchange.send_json(_asked(exchange).response)


async def on_update(exchange: Exchange) -> None:
    """Change the metadata, the only part that may change."""
    body = await exchange.json()
    stored, metadata = _asked(exchange), table(body, "metadata")
    _check_size(exchange, stored.n_bytes + size_of(metadata))
    await _put(exchange, {**stored.response, "metadata": metadata}, stored.items)


async def on_delete(exchange: Exchange) -> None:
    conversation_id = _asked(exchange).response["id"]
    store_of(exchange).delete(exchange.caller.account, conversation_id)
    await exchange.send_json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


async def on_add_items(exchange: Exchange) -> None:
    body = await exchange.json()
    stored = _asked(exchange)
    added = _given(exchange, body, stored.response["id"])
    if not added:
        raise invalid("`items` is required: an array of items", "items")
    _check_size(exchange, stored.n_bytes + size_of(added))
    append(exchange, stored.response["id"], added)
    await exchange.send_json(list_object(added))


async def on_items(exchange: Exchange) -> None:
    await send_page(exchange, _asked(exchange).items)


async def on_item(exchange: Exchange) -> None:
    await exchange.send_json(_item(exchange, _asked(exchange)))


async def on_delete_item(exchange: Exchange) -> None:
    stored = _asked(exchange)
    gone = _item(exchange, stored)
    await _put(exchange, stored.response, [item for item in stored.items if item is not gone])


def conversation_of(exchange: Exchange, body: dict[str, Any]) -> Stored | None:
    """Return the conversation that a response belongs to. Raises: GatewayError."""
    given = body.get(KIND)
    if given is None:
        return None
    conversation_id = given.get("id") if isinstance(given, dict) else given
    if not isinstance(conversation_id, str):
        raise invalid("`conversation` must be an id, or an object with one", KIND)
    return found(exchange, KIND, conversation_id, KIND)


def append(exchange: Exchange, conversation_id: str, more: list[Item]) -> None:
    """Add items to the conversation as it is now: another request may have added items since this one read it. A
    conversation that was deleted stays deleted.
    """
    stored = find(exchange, KIND, conversation_id)
    if stored is not None:
        store_of(exchange).put(exchange.caller.account, stored.response, [], [*stored.items, *more])


def _check_size(exchange: Exchange, n_bytes: int) -> None:
    """Refuse a conversation that the store would drop. Raises: GatewayError (413)."""
    if not store_of(exchange).can_hold(n_bytes):
        message = "the conversation would be larger than all that is kept (`answers.responses_kept_mb`)"
        raise GatewayError(Kind.TOO_LARGE, message, code="request_too_large")


def _asked(exchange: Exchange) -> Stored:
    return found(exchange, KIND, exchange.params["id"])


def _given(exchange: Exchange, body: dict[str, Any], conversation_id: str) -> list[Item]:
    """Return the items of a request, as they are listed in this conversation. Raises: GatewayError."""
    given = array(body, "items")
    for i, item in enumerate(given):
        if not isinstance(item, dict):
            raise invalid(f"`items[{i}]` must be an object", f"items[{i}]")
    whole = [referred(exchange, item, f"items[{i}]") for i, item in enumerate(given)]
    items.to_messages(whole, "items")  # refuse now what could not be shown to a model later
    return items.all_kept(whole, has_item(exchange, conversation_id))


def _item(exchange: Exchange, stored: Stored) -> Item:
    """Return the item that the path names. Raises: GatewayError (404)."""
    item_id = exchange.params["item"]
    for item in stored.items:
        if item["id"] == item_id:
            return item
    raise GatewayError(Kind.NOT_FOUND, not_kept(exchange, "item", item_id), None, "not_found")


async def _put(exchange: Exchange, conversation: Item, listed: list[Item]) -> None:
    store_of(exchange).put(exchange.caller.account, conversation, [], listed)
    await exchange.send_json(conversation)
