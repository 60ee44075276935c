"""A generate request from its first frame to its last event, for every API family.

`begin` sends it and waits until the daemon has accepted it. `relay` writes the events as they arrive, and keeps the
connection alive while there are none. `ended` raises an error for an answer that must not look complete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from uma_core.types import PRIORITIES
from uma_gateway import sse
from uma_gateway.errors import GatewayError, Kind, from_daemon, invalid, unsupported
from uma_gateway.exchange import Exchange, Headers
from uma_gateway.generation import Generation
from uma_gateway.link import Event
from uma_gateway.model import Model

GOOD_ENDS = ("stop", "length")
TRIES = 3  # attempts to write a prompt for the served model, while the model is being replaced
PING = b"\n\n"  # not a comment: clients that read each line as JSON skip only blank lines
MERGED_WAITING = 64  # batches of several answers that wait for a slow reader
# OpenAI's service tiers; with auto and default the daemon decides
_TIERS = {"priority": "interactive", "flex": "background"}

P = TypeVar("P")


class Plan(NamedTuple):
    """The request to the daemon, and the model that it is written for."""

    model: Model
    fields: dict[str, Any]
    context: Any = None  # what the family needs to read the answer
    names: Mapping[str, str] = MappingProxyType({})  # the client's names for the daemon's fields, if they differ


@contextlib.asynccontextmanager
async def begin(
    exchange: Exchange, plan_for: Callable[[Model], Awaitable[Plan]]
) -> AsyncIterator[tuple[Plan, Generation]]:
    """Plan, send, and wait until the request is accepted.

    Leaving the block cancels whatever is unfinished. Raises: GatewayError.
    """
    plan, generation = await _begun(exchange, plan_for)
    async with generation:
        yield plan, generation


async def _begun(exchange: Exchange, plan_for: Callable[[Model], Awaitable[Plan]]) -> tuple[Plan, Generation]:
    async def checked(model: Model) -> Plan:
        if not model.has_completion:  # checked first, or the error would be that the model has no chat template
            raise unsupported("this model makes vectors or scores, no text")
        return await plan_for(model)

    for n in range(TRIES):
        plan = await planned(exchange, checked, is_new=n > 0)
        try:
            return plan, await send(exchange, plan)
        except GatewayError as error:
            if error.code != "model_changed" or n == TRIES - 1:
                raise
    raise AssertionError("unreachable")


async def planned(exchange: Exchange, plan_for: Callable[[Model], Awaitable[P]], is_new: bool = False) -> P:
    """Plan for the served model. What is known of it may be old: if the plan is refused, and the daemon serves another
    model by now, that model decides. Raises: GatewayError.
    """
    model = await exchange.gateway.model(is_new, asked=exchange.asked)
    try:
        return await plan_for(model)
    except GatewayError:
        served = await exchange.gateway.model(is_new=True)
        if served is model:
            raise
    return await plan_for(served)


async def send(exchange: Exchange, plan: Plan, suffix: str = "") -> Generation:
    """Send the request to the daemon and wait until it is accepted. Raises: GatewayError."""
    fields = {**plan.fields, "account": exchange.caller.account, "queue_updates": True}
    if exchange.is_resumable:
        fields["x_resume"] = True  # for a cluster's router; a daemon ignores it
    generation = await exchange.gateway.daemon.generate(fields, exchange.request_id + suffix)
    try:
        first = await generation.first()
    except BaseException as error:
        generation.close()
        if isinstance(error, GatewayError):
            error.rename(plan.names)
        raise
    if first.get("event") == "queued" and b"x-queue-position" not in dict(exchange.extra_headers):
        exchange.extra_headers += queue_headers(first)
        exchange.facts["queue"] = first["position"]
    return generation


def queue_headers(event: Event) -> Headers:
    return [
        (b"x-queue-position", str(event["position"]).encode()),
        (b"x-queue-wait-ms", str(event["wait_ms"]).encode()),
    ]


def queue_comment(event: Event) -> bytes:
    """Return the queue position for a waiting client, as a comment in the event stream, which most clients skip."""
    return b": queue_position=%d wait_ms=%d\n\n" % (event["position"], event["wait_ms"])


async def relay(
    exchange: Exchange,
    generations: Sequence[Generation],
    encode: Callable[[int, Event], bytes],
    end: Callable[[], bytes] = bytes,
    failed: Callable[[GatewayError], bytes] | None = None,
    is_sse: bool = True,
) -> None:
    """Write a streamed answer that has begun, to its end.

    `encode` returns the bytes for an event of the generation with that number, often none. It does not get `queued` and
    `error` events. A silent event stream gets blank lines, and comments about the request's place in the queue. `end`
    returns the last bytes. `failed` returns the bytes that report an error, by default as OpenAI's clients read it in a
    stream.
    """
    try:
        async with _pings(exchange) if is_sse else contextlib.nullcontext():
            await _relay(exchange, generations, encode, is_sse)
    except GatewayError as error:
        exchange.facts["error"] = error.code
        await exchange.finish(failed(error) if failed is not None else sse.data(exchange.error_object(error)))
    else:
        await exchange.finish(end())


@contextlib.asynccontextmanager
async def _pings(exchange: Exchange) -> AsyncGenerator[None, None]:
    """Fill every silence in the stream with blank lines."""

    async def ping() -> None:
        while True:
            exchange.is_silent = True
            await asyncio.sleep(exchange.gateway.config.answers.ping_s)
            if exchange.is_silent:
                await exchange.write(PING)

    task = asyncio.ensure_future(ping())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _relay(
    exchange: Exchange, generations: Sequence[Generation], encode: Callable[[int, Event], bytes], is_sse: bool
) -> None:
    """Write the events until the last one. Raises: GatewayError."""

    def encoded(event: Event) -> bytes:
        """Encode an event for the writer, which does not go through the exchange."""
        data = encode(0, event)
        if data:
            exchange.is_silent = False
        return data

    if len(generations) == 1 and exchange.writer is not None:
        generations[0].divert(encoded, exchange.writer)
    async with contextlib.aclosing(_merged(exchange, generations, is_sse)) as merged:
        async for number, events in merged:
            data = b"".join([encode(number, event) for event in events])
            if data:
                await exchange.write(data)


async def _batches(exchange: Exchange, generation: Generation, is_told: bool) -> AsyncGenerator[list[Event], None]:
    """Yield events as they arrive, until the last one. `queued` events are left out; if `is_told`, the client gets them
    as comments.
    """
    while True:
        events = await generation.events()
        told = [event for event in events if event.get("event") == "queued"]
        if is_told and told and told[-1]["position"] + told[-1]["wait_ms"]:
            await exchange.write(queue_comment(told[-1]))
        rest = [event for event in events if event.get("event") != "queued"] if told else events
        if rest:
            yield rest
            if rest[-1]["event"] == "eos":
                return


async def _merged(
    exchange: Exchange, generations: Sequence[Generation], is_sse: bool
) -> AsyncGenerator[tuple[int, list[Event]], None]:
    """Yield (number of the generation, its events), until all generations have ended."""
    is_told = is_sse and exchange.asked.get("queue_updates") is not False
    if len(generations) == 1:
        async with contextlib.aclosing(_batches(exchange, generations[0], is_told)) as batches:
            async for events in batches:
                yield 0, events
        return
    arrived: asyncio.Queue[tuple[int, list[Event], Exception | None]] = asyncio.Queue(MERGED_WAITING)

    async def pump(number: int) -> None:
        try:
            async for events in _batches(exchange, generations[number], is_told and number == 0):
                await arrived.put((number, events, None))
        except Exception as error:  # raised where the events are read
            await arrived.put((number, [], error))

    pumps = [asyncio.ensure_future(pump(n)) for n in range(len(generations))]
    n_left = len(generations)
    try:
        while n_left:
            number, events, error = await arrived.get()
            if error is not None:
                raise error
            if events[-1]["event"] == "eos":
                n_left -= 1
            yield number, events
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.wait(pumps)


async def final(generation: Generation) -> Event:
    """Wait for the end of an answer that is not streamed. `prompt_logprobs` has the log probabilities of its prompt.

    Raises: GatewayError, also for a bad end.
    """
    prompt: list[Event] = []
    while True:
        for event in await generation.events():
            if event["event"] == "prompt":
                prompt += event["logprobs"]
            if event["event"] == "eos":
                return {**ended(event), "prompt_logprobs": prompt}


def answers_of(eos: Event) -> list[Event]:
    """Return the answer or answers of an `eos`, each with its index. Raises: GatewayError if one ended badly."""
    return [ended(answer) for answer in eos.get("answers") or [{**eos, "index": 0}]]


def stop_told(end: Event, wanted: Set[str]) -> str:
    """Return the stop text that ended an answer, if it is one that the answer is to include."""
    stop = str((end.get("stop") or {}).get("text", ""))
    return stop if stop in wanted else ""


def ended(eos: Event) -> Event:
    """Return a good end unchanged. Raises: GatewayError for others: an incomplete answer must not look complete."""
    reason = eos["reason"]
    if reason in GOOD_ENDS:
        return eos
    if reason == "error":
        raise from_daemon(eos.get("error") or {})
    if reason == "draining":
        message = "the daemon is stopping or draining, and ended the answer before it was complete"
        raise GatewayError(Kind.UNAVAILABLE, message, code="draining")
    if reason == "timeout":
        raise GatewayError(
            Kind.GENERATION_TIMEOUT, "the time for this request passed before the answer was complete", code="timeout"
        )
    raise GatewayError(Kind.CANCELLED, "the request was cancelled", code="request_cancelled")


def priority_fields(exchange: Exchange, body: dict[str, Any]) -> dict[str, str]:
    """Return the priority that a request asks for, by header or field, no more urgent than its key allows.

    Raises: GatewayError.
    """
    given = body.get("priority")
    if isinstance(given, int):  # vLLM's numbers, which order vLLM's own queue
        given = None
    wish = exchange.header(b"x-priority").lower() or given or _TIERS.get(str(body.get("service_tier")))
    if wish is not None and wish not in PRIORITIES:
        raise invalid(f"the priority must be one of {', '.join(PRIORITIES)}", "priority")
    if exchange.caller.key.priority == "background":
        wish = "background"
    return {} if wish is None else {"priority": wish}


def spent_ms(timing: Mapping[str, float]) -> tuple[float, float]:
    """Return the time spent on the prompt and on the answer, in milliseconds. The prompt's time includes the first
    token, and is all of the time if there was no token.
    """
    total, first, queue = (timing.get(name, 0.0) for name in ("total_ms", "ttft_ms", "queue_ms"))
    first = first or total
    return max(0.0, first - queue), max(0.0, total - first)


def note_end(exchange: Exchange, eos: Event) -> None:
    """Record the facts about an answer for its log line."""
    usage, timing = eos.get("usage") or {}, eos.get("timing") or {}
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        if name in usage:
            exchange.facts[name] = exchange.facts.get(name, 0) + usage[name]
    if "ttft_ms" in timing:
        exchange.facts["ttft_ms"] = timing["ttft_ms"]
    exchange.facts["reason"] = eos.get("reason")
