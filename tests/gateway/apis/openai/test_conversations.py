"""`/v1/conversations`, by OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.openai_client import client_of
from tests.gateway.support import GatewayProcess
from tests.late import Late
from uma_gateway.keys import entry, new_key

openai = Late("openai")

PREVIOUS = "previous_response_id"
FIRST: dict[str, Any] = {"type": "message", "role": "user", "content": "My name is Ada."}


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as client:
        yield client


def texts_of(client: openai.OpenAI, conversation_id: str) -> list[str]:
    return [item.content[0].text for item in client.conversations.items.list(conversation_id, order="asc")]


def test_a_conversation_is_made_read_changed_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "names"}, items=[FIRST])
    assert made.id.startswith("conv_") and made.object == "conversation" and made.metadata == {"topic": "names"}
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "other"})
    assert changed.metadata == {"topic": "other"} and changed.created_at == made.created_at
    assert texts_of(client, made.id) == ["My name is Ada."]
    gone = client.conversations.delete(made.id)
    assert gone.deleted and gone.id == made.id
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_items_are_added_listed_in_pages_and_deleted(client: openai.OpenAI) -> None:
    conversation_id = client.conversations.create().id
    assert texts_of(client, conversation_id) == []
    more = [{"role": "user", "content": f"text {i}"} for i in range(5)]
    added = client.conversations.items.create(conversation_id, items=more)
    assert [item.content[0].text for item in added.data] == [f"text {i}" for i in range(5)] and not added.has_more
    page = client.conversations.items.list(conversation_id, limit=2)
    assert [item.content[0].text for item in page.data] == ["text 4", "text 3"]
    assert len(list(page)) == 5  # the client asks for the further pages
    item = client.conversations.items.retrieve(added.data[1].id, conversation_id=conversation_id)
    assert item == added.data[1]
    assert client.conversations.items.delete(item.id, conversation_id=conversation_id).id == conversation_id
    assert texts_of(client, conversation_id) == ["text 0", "text 2", "text 3", "text 4"]
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(item.id, conversation_id=conversation_id)


def test_items_that_come_back_are_listed_once_each(client: openai.OpenAI) -> None:
    """A page begins after an id: with two items of one id, a client would ask for the same page for ever."""
    conversation_id = client.conversations.create(items=[{**FIRST, "id": "msg_1"}, {**FIRST, "id": "msg_1"}]).id
    how: dict[str, Any] = {"model": "any", "max_output_tokens": 8, "conversation": conversation_id}
    first = client.responses.create(**how, input="Who am I?")
    said = [item.model_dump(exclude_none=True) for item in first.output]
    second = client.responses.create(**how, input=[*said, *said, {"role": "user", "content": "Sure?"}])
    client.conversations.items.create(conversation_id, items=[{"type": "item_reference", "id": first.output[0].id}])
    for order in ("asc", "desc"):
        listed = client.conversations.items.list(conversation_id, limit=1, order=order)
        assert len({item.id for item, _ in zip(listed, range(20), strict=False)}) == 9
    listed = client.responses.input_items.list(second.id, limit=1)
    assert len({item.id for item, _ in zip(listed, range(20), strict=False)}) == 3
    assert client.conversations.items.retrieve(first.output[0].id, conversation_id=conversation_id)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_response_continues_its_conversation_and_is_added_to_it(client: openai.OpenAI, is_stream: bool) -> None:
    conversation_id = client.conversations.create(items=[FIRST]).id
    how: dict[str, Any] = {"model": "any", "max_output_tokens": 8, "temperature": 0}
    if is_stream:
        *_, last = client.responses.create(**how, input="Who am I?", conversation=conversation_id, stream=True)
        first = last.response
    else:
        first = client.responses.create(**how, input="Who am I?", conversation=conversation_id)
    assert first.conversation.id == conversation_id
    said = ["My name is Ada.", "Who am I?", first.output_text]
    assert texts_of(client, conversation_id) == said
    second = client.responses.create(**how, input="Sure?", conversation={"id": conversation_id}, store=False)
    assert texts_of(client, conversation_id) == [*said, "Sure?", second.output_text]
    roles = ("user", "user", "assistant", "user")
    whole = [{"role": role, "content": text} for role, text in zip(roles, [*said, "Sure?"], strict=True)]
    assert client.responses.create(**how, input=whole).usage.input_tokens == second.usage.input_tokens
    assert client.responses.retrieve(first.id).conversation.id == conversation_id


def test_a_conversation_is_its_account_s_alone(serve: Any, before: Any, folder: Any) -> None:
    alice, bob = new_key(), new_key()
    keys = folder / "keys.yaml"
    keys.write_text(entry("alice", alice) + entry("bob", bob))
    gateway = before(serve(), "--api-key-file", str(keys))
    with client_of(gateway, api_key=alice) as hers, client_of(gateway, api_key=bob) as his:
        conversation_id = hers.conversations.create(items=[FIRST]).id
        with pytest.raises(openai.NotFoundError):
            his.conversations.retrieve(conversation_id)
        with pytest.raises(openai.NotFoundError):
            his.responses.create(model="any", input="Hello", conversation=conversation_id)
        assert texts_of(hers, conversation_id) == ["My name is Ada."]


def test_where_nothing_is_kept_there_are_no_conversations(serve: Any, before: Any) -> None:
    gateway = before(serve(), "--responses-kept-s", "0")
    answer = gateway.post("/v1/conversations")
    assert answer.status == 501 and "responses_kept_s" in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/v1/conversations", {"items": [{"type": "message", "content": "x"}]}, 400, "items[0].role"),
        ("POST", "/v1/conversations", {"items": ["x"]}, 400, "items[0]"),
        ("POST", "/v1/conversations", {"items": [{"type": "item_reference", "id": "no"}]}, 404, "items[0]"),
        ("POST", "/v1/conversations", {"metadata": []}, 400, "metadata"),
        ("POST", "/v1/conversations/conv_no/items", {"items": [FIRST]}, 404, None),
        ("POST", "/v1/responses", {"input": "x", "conversation": "conv_no"}, 404, "conversation"),
        ("POST", "/v1/responses", {"input": "x", "conversation": 5}, 400, "conversation"),
        ("POST", "/v1/responses", {"input": "x", "conversation": "c", "previous_response_id": "r"}, 400, PREVIOUS),
    ],
)
def test_what_is_wrong_is_named(
    gateway: GatewayProcess, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    answer = gateway.ask(method, path, body)
    assert answer.status == status and answer.error["param"] == param, answer.body


def test_a_response_is_no_conversation(gateway: GatewayProcess, client: openai.OpenAI) -> None:
    made = client.responses.create(model="any", input="Hello", max_output_tokens=4)
    conversation = client.conversations.create()
    assert gateway.get(f"/v1/conversations/{made.id}").status == 404
    assert gateway.get(f"/v1/responses/{conversation.id}").status == 404


def test_what_is_too_large_to_be_kept_is_refused_and_costs_nothing(fake: Any, before: Any) -> None:
    """It was answered as if it were kept, and adding items to a conversation lost all of it."""
    with client_of(before(fake, "--responses-kept-mb", "0.002")) as client:
        made = client.conversations.create(items=[FIRST])
        large: Any = {"type": "message", "role": "user", "content": "x" * 3000}
        with pytest.raises(openai.APIStatusError) as created:
            client.conversations.create(items=[large])
        with pytest.raises(openai.APIStatusError) as added:
            client.conversations.items.create(made.id, items=[large])
        with pytest.raises(openai.APIStatusError) as updated:
            client.conversations.update(made.id, metadata={"text": "x" * 3000})
        for caught in (created, added, updated):
            assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
        assert texts_of(client, made.id) == ["My name is Ada."]
