"""Payloads between the one who brings them and the one who reads them."""

from __future__ import annotations

import asyncio

import pytest

from uma_gateway.errors import GatewayError
from uma_gateway.inbox import Inbox
from uma_gateway.link import no_daemon


def test_all_that_has_arrived_is_taken_at_once_and_in_order() -> None:
    async def work() -> None:
        inbox = Inbox()
        inbox.put([b"a", b"b"])
        inbox.put([b"c"])
        assert await inbox.take() == [b"a", b"b", b"c"]

    asyncio.run(work())


def test_a_failure_is_raised_after_what_came_before_it_and_the_first_counts() -> None:
    async def work() -> None:
        inbox = Inbox()
        inbox.put([b"a"])
        inbox.fail(no_daemon("first"))
        inbox.fail(no_daemon("second"))
        assert await inbox.take() == [b"a"]
        for _ in range(2):
            with pytest.raises(GatewayError, match="first"):
                await inbox.take()

    asyncio.run(work())


def test_a_reader_that_waits_is_woken() -> None:
    async def work() -> None:
        inbox = Inbox()
        reader = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        assert inbox.is_awaited
        inbox.put([b"a"])
        assert not inbox.is_awaited and await reader == [b"a"]
        reader = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        inbox.wake()
        assert await reader == []

    asyncio.run(work())


def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    async def work() -> None:
        inbox = Inbox()
        reader = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        inbox.put([b"a"])
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert not inbox.is_awaited and await inbox.take() == [b"a"]

    asyncio.run(work())
