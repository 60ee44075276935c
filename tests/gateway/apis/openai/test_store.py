"""What is kept of responses, for how long, and within which budget."""

from __future__ import annotations

from uma_gateway.apis.openai.store import Store


def response(name, text="x"):
    return {"id": name, "output": text}


def test_the_store_forgets_after_its_time_and_beyond_its_budget():
    now = [0.0]
    store = Store(10.0, 1000, lambda: now[0])
    store.put("a", response("one"), [], [{"text": "x" * 300}])
    now[0] = 5.0
    store.put("a", response("two"), [], [{"text": "x" * 300}])
    assert store.get("a", "one") and store.get("a", "two") and not store.get("b", "one")
    now[0] = 10.5
    assert store.get("a", "one") is None and store.get("a", "two")
    for i in range(10):
        store.put("a", response(f"more {i}"), [], [{"text": "x" * 300}])
    assert store.n_bytes <= 1000 and store.get("a", "two") is None and store.get("a", "more 9")
    store.put("a", response("huge"), [], [{"text": "x" * 5000}])
    assert store.get("a", "huge") is None and store.get("a", "more 9")


def test_an_item_stays_as_long_as_a_conversation_that_has_it():
    now = [0.0]
    store = Store(10.0, 1000, lambda: now[0])
    said = {"id": "msg_1", "text": "x"}
    store.put("a", response("one"), [{"id": "msg_0"}, {"id": 5}], [said])
    now[0] = 5.0
    store.put("a", response("two"), [], [said])
    assert store.item("a", "msg_0") and store.item("a", "msg_1") == said and store.item("b", "msg_1") is None
    now[0] = 10.5
    assert store.item("a", "msg_0") is None and store.item("a", "msg_1") == said
    assert store.delete("a", "two") and store.item("a", "msg_1") is None


def test_an_item_stays_when_a_later_response_that_had_it_is_deleted():
    store = Store(10.0, 1000, lambda: 0.0)
    said = {"id": "msg_1", "text": "x"}
    for name in ("one", "two"):
        store.put("a", response(name), [said], [said])
    assert store.delete("a", "two") and store.item("a", "msg_1") == said
    assert store.delete("a", "one") and store.item("a", "msg_1") is None


def test_what_is_larger_than_the_budget_costs_nobody_else_anything():
    store = Store(10.0, 1000, lambda: 0.0)
    store.put("a", response("one"), [], [{"id": "msg_1", "text": "x"}])
    store.put("b", response("huge"), [], [{"id": "msg_2", "text": "x" * 5000}])
    assert store.get("a", "one") and store.get("b", "huge") is None and store.item("b", "msg_2") is None
    store.put("a", response("one"), [], [{"id": "msg_1", "text": "x"}, {"id": "msg_3", "text": "x" * 5000}])
    assert store.get("a", "one") is None and store.item("a", "msg_1") is None and store.n_bytes == 0


class Written(dict):
    """An item that counts how often it is walked through."""

    n_seen = 0

    def get(self, *args):
        Written.n_seen += 1
        return super().get(*args)


def test_a_turn_of_a_long_conversation_reads_only_what_is_new():
    """Before, each turn of a conversation of 90,000 items held up all streams for half a second of processor time."""
    now = [0.0]
    store = Store(10.0, 1 << 20, lambda: now[0])
    begun = [Written(id=f"msg_{i}", text="x") for i in range(100)]
    store.put("a", response("conv"), [], begun)
    store.put("a", response("other"), [], [])
    n_first, Written.n_seen, now[0] = store.n_bytes, 0, 5.0
    store.put("a", response("conv", "y"), [], [*begun, Written(id="msg_new", text="z")])
    assert Written.n_seen == 1
    assert store.get("a", "conv").response["output"] == "y" and len(store.get("a", "conv").items) == 101
    assert store.item("a", "msg_new")["text"] == "z" and store.item("a", "msg_5") is begun[5]
    assert n_first < store.n_bytes < n_first + 50
    now[0] = 12.0  # it is kept from its last change on
    assert store.get("a", "other") is None and store.get("a", "conv")
    store.put("a", response("conv"), [], begun[1:])
    assert store.item("a", "msg_0") is None and store.item("a", "msg_new") is None and store.item("a", "msg_5")
    assert store.delete("a", "conv") and store.n_bytes == 0 and store.item("a", "msg_5") is None


def test_a_store_without_time_keeps_nothing():
    store = Store(0.0, 1000)
    store.put("a", response("one"), [], [])
    assert store.get("a", "one") is None
