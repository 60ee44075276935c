"""A time limit: a result in time, a result too late, and a caller that leaves at the moment when the result comes."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import uma_gateway
from uma_gateway.within import within


def test_what_comes_in_time_is_given() -> None:
    async def failing() -> None:
        raise ValueError("no")

    async def work() -> None:
        assert await within(60.0, asyncio.sleep(0, "it")) == "it"
        with pytest.raises(ValueError, match="no"):
            await within(60.0, failing())

    asyncio.run(work())


def test_what_does_not_is_cancelled() -> None:
    async def work() -> None:
        never = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await within(0.0, never)
        assert never.cancelled()

    asyncio.run(work())


def finish(future: asyncio.Future[str]) -> None:
    future.set_result("it")


def fail(future: asyncio.Future[str]) -> None:
    future.set_exception(ValueError("no"))


@pytest.mark.parametrize("end", [finish, fail])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_caller_that_is_cancelled_as_the_result_comes_is_cancelled(
    end: Callable[[asyncio.Future[str]], None], is_first: bool
) -> None:
    async def caller(result: Awaitable[str]) -> None:
        await within(60.0, result)
        raise AssertionError("it goes on")

    async def work() -> None:
        result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(caller(result))
        await asyncio.sleep(0)
        if is_first:
            end(result)
            task.cancel()
        else:
            task.cancel()
            end(result)
        await asyncio.wait((task,))
        assert task.cancelled()

    asyncio.run(work())


def test_who_cancels_itself_is_not_late() -> None:
    async def work() -> None:
        result = asyncio.get_running_loop().create_future()
        result.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(60.0, result)

    asyncio.run(work())


def test_nothing_in_the_gateway_waits_otherwise() -> None:
    found = [
        path.name
        for path in Path(uma_gateway.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "wait_for"
    ]
    assert found == []
