"""The gateway's own questions to the daemon."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from uma_gateway import gateway as gateway_module
from uma_gateway.config import Config
from uma_gateway.daemon import CALL_S, Daemon
from uma_gateway.gateway import Gateway
from uma_gateway.keys import Keys
from uma_gateway.link import Event, no_daemon


class Starting(Daemon):
    """A daemon that is absent at first and then loads. `asked`: the operations that it was asked for."""

    def __init__(self) -> None:
        super().__init__("")
        self.asked: list[str] = []
        self.is_asked_for_model = asyncio.Event()

    async def call(self, operation: str, timeout_s: float = CALL_S, **fields: Any) -> Event:
        self.asked.append(operation)
        if operation == "health" and len(self.asked) > 1:
            return {"is_ready": len(self.asked) > 2}
        if operation == "props":
            self.is_asked_for_model.set()
        raise no_daemon("it does not run")


def test_the_model_is_asked_for_once_it_is_loaded():
    """A loading daemon logs a line for each question that it refuses."""

    async def run() -> list[str]:
        daemon = Starting()
        gateway = Gateway(Config(), Keys("", ""), daemon)
        await asyncio.wait_for(daemon.is_asked_for_model.wait(), 60)
        await gateway.close()
        return daemon.asked

    assert asyncio.run(run()) == ["health", "health", "health", "props"]


class Silent(Daemon):
    """A daemon that never answers questions about its model."""

    def __init__(self) -> None:
        super().__init__("")
        self.is_asked_for_model = asyncio.Event()

    async def call(self, operation: str, timeout_s: float = CALL_S, **fields: Any) -> Event:
        if operation == "health":
            return {"is_ready": True}
        self.is_asked_for_model.set()
        await asyncio.sleep(timeout_s)
        raise no_daemon("it says nothing")


def test_a_question_about_the_model_ends_with_the_gateway():
    """Otherwise the question would belong to an event loop that is gone, and Python's message about it would appear
    where an error has one line.
    """

    async def run() -> set[asyncio.Task[Any]]:
        daemon = Silent()
        gateway = Gateway(Config(), Keys("", ""), daemon)
        await asyncio.wait_for(daemon.is_asked_for_model.wait(), 60)
        await gateway.close()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert not asyncio.run(run())


class Reloaded(Daemon):
    """A daemon with the adapters in `adapters`. `n_asked`: how often it was asked for them."""

    def __init__(self) -> None:
        super().__init__("")
        self.adapters: list[str] = []
        self.chat_template: str | None = None
        self.n_asked = 0

    async def call(self, operation: str, timeout_s: float = CALL_S, **fields: Any) -> Event:
        self.n_asked += 1
        facts = {"name": "served", "path": "", "fingerprint": "f", "n_ctx_train": 8, "n_vocab": 8}
        capabilities = {"operations": [], "generate": [], "chat": False, "infill": False, "rerank": False}
        adapters = [{"id": name, "path": name, "scale": 0.0} for name in self.adapters]
        return {
            "model": facts, "n_ctx_seq": 8, "limits": {"max_tokens": 8}, "adapters": adapters,
            "capabilities": {**capabilities, "embeddings": False}, "chat_template": self.chat_template,
            "chat_template_tool_use": None, "special": {}, "add_bos": False, "add_eos": False,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "is_new"),
    [({"model": "tone"}, True), ({"lora": [{"id": 0}]}, True), ({"model": "served"}, False), ({}, False)],
)
def test_a_request_that_may_name_an_adapter_is_answered_by_what_the_daemon_has_now(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], is_new: bool
) -> None:
    """The known facts expire at once here. Other requests do not wait, but make the gateway ask."""

    async def run() -> tuple[list[str], list[str], int]:
        daemon = Reloaded()
        gateway = Gateway(Config(), Keys("", ""), daemon, is_asking=False)
        before = (await gateway.model()).adapters
        daemon.adapters = ["tone"]
        after = (await gateway.model(asked=asked)).adapters
        await asyncio.sleep(0)  # let the question run, for which no request waits
        await gateway.close()
        return before, after, daemon.n_asked

    monkeypatch.setattr(gateway_module, "FRESH_S", -1.0)
    assert asyncio.run(run()) == ([], ["tone"] if is_new else [], 2)


def test_templates_that_stay_the_same_are_not_tried_again() -> None:
    """A cluster's daemons may differ in their adapters, their context, and their number of reloads. No chat waits for
    templates because another one of them was asked.
    """

    async def run() -> None:
        daemon = Reloaded()
        daemon.chat_template = "{{ messages[0].content }}"
        gateway = Gateway(Config(), Keys("", ""), daemon, is_asking=False)
        templates = await (await gateway.model()).templates()
        daemon.adapters = ["tone"]
        changed = await gateway.model(is_new=True)
        assert changed.adapters == ["tone"] and await changed.templates() is templates
        daemon.chat_template = "{{ messages[0].role }}"
        assert await (await gateway.model(is_new=True)).templates() is not templates
        await gateway.close()

    asyncio.run(run())
