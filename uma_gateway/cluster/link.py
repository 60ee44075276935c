"""A generate request to a cluster: routed, sent, watched, and sent elsewhere if its daemon is lost.

    nothing was sent to the client yet   -> it is replayed on another daemon
    something was, and `resume` is set   -> it continues there, after the text that was sent
    otherwise                            -> it ends with `replica_lost`, which says how far it came

After a refusal such as `overloaded` the request goes once to another daemon, with the same deadline. Every request has
exactly one end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from uma_core.errors import BY_CODE, ErrorCode
from uma_core.protocol.ops import OPS
from uma_gateway.cluster.cluster import Cluster, attempt_id, group_of
from uma_gateway.cluster.resume import can_resume, n_thought, resumed
from uma_gateway.cluster.router import INFINITE, PAGE, PRIORITIES, Ask, Choice
from uma_gateway.cluster.transport import Event, Unit, UnitLost
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.inbox import Inbox

QUEUE_HIGH = 256  # events that wait for their reader; at this number nothing more is read from the daemon
TRIES_MOST = 4  # daemons that a request may lose before it is given up: the request itself may be what ends them
HASHES_S = 5.0
FIRST_NEWS_S, NEWS_S = 0.02, 0.5  # time until a waiting client is told its place in the queue, and between updates
GRACE_S = 5.0  # after a request's deadline, time for the daemon to report that it passed
DRAFT_COUNTS = "accepted_prediction_tokens", "rejected_prediction_tokens"
TIMEOUT_MOST_MS = next(field.high or 0.0 for field in OPS["generate"].fields if field.name == "timeout_ms")
CANCEL_S = 0.05  # interval at which a daemon that does not have the request yet is told to cancel it
ELSEWHERE = frozenset(  # refusals after which another daemon may accept the request
    {
        ErrorCode.OVERLOADED, ErrorCode.TOO_MANY_SESSIONS, ErrorCode.DRAINING, ErrorCode.SHUTTING_DOWN,
        ErrorCode.MODEL_NOT_LOADED,
        ErrorCode.ENGINE_HUNG, ErrorCode.KV_FULL, ErrorCode.FORBIDDEN,
    }
)  # fmt: skip


class _Complete(Exception):
    """The sent text is the whole answer. The argument: the reason for its end."""


class RoutedLink:
    """The source from which a `Generation` reads, instead of a connection to one daemon."""

    def __init__(
        self, cluster: Cluster, model: str, fields: Mapping[str, Any], request_id: str, is_resumable: bool = False
    ) -> None:
        self._cluster = cluster
        self._model = model
        self._fields = dict(fields)
        self._id = request_id
        self._attempt_key = secrets.token_hex(8)  # clients choose ids, so two requests may have the same one
        self._is_resumable = is_resumable and can_resume(fields)
        timeout_ms = fields.get("timeout_ms") or 0
        is_timed = 0 < timeout_ms <= TIMEOUT_MOST_MS  # other values are sent as they are: the daemon refuses them
        self._deadline_ns = time.monotonic_ns() + int(timeout_ms * 1e6) if is_timed else 0
        self._inbox = Inbox()
        self._drained = asyncio.Event()
        self._sent_text = ""
        self._tail: list[str | int] = []  # the text sent so far, as it continues the prompt: token ids, or text
        self._n_sent = 0  # token events ...
        self._n_tokens = 0  # ... and the tokens that they stand for
        self._n_read = 0  # tokens of the prompt whose log probabilities were sent ...
        self._n_read_here = 0  # ... and those that the present daemon has reported
        self._has_ended_one = False  # one of several answers has ended, and its end was sent
        self._token_ids: list[int] = []  # the last token of each event sent
        self._usage: dict[str, int] = {}  # usage of attempts before this one
        self._avoid: set[str] = set()  # daemons that refused the request ...
        self._lost_by: set[str] = set()  # ... and those that were lost with it
        self._n_refusals = 0
        self._is_last_try = False
        self._overflow = ""  # what the daemons do when the context is full
        self._is_cut = False  # the prompt was cut before any text was sent, so it is cut again
        self._group = ""  # group of the daemons that can continue the sent text; "": no text was sent
        self._is_done = False
        self._unit: Unit | None = None
        self._cancels: list[int | None] = []  # answers that each daemon of the request must end; None: all
        self._task = asyncio.get_running_loop().create_task(self._run())

    # the methods of a Link

    async def receive(self) -> list[bytes]:
        """Wait for events. Raises: GatewayError once nothing more can arrive."""
        taken = await self._inbox.take()
        self._drained.set()
        return taken

    def send(self, message: Mapping[str, Any]) -> None:
        """Cancel one answer, or all."""
        self._task.get_loop().create_task(self._cancel(message))

    async def _cancel(self, message: Mapping[str, Any]) -> None:
        index, unit = message.get("index"), self._unit
        if self._is_done or index in self._cancels:
            return
        self._cancels.append(index)
        if unit is not None:
            await self._tell(unit, index)
        elif index is None and not self._task.done():  # the request is between two daemons, or before the first
            self._task.cancel()
            await self._end_cancelled()

    async def _tell(self, unit: Unit, index: int | None) -> None:
        """Tell a daemon to cancel, as soon as it has the request."""
        fields = {"id": self._id, "index": index, "attempt": self._attempt_key}
        with contextlib.suppress(UnitLost, GatewayError):
            while unit is self._unit and not self._is_done:
                if (await self._cluster.transport.call(unit, "cancel", HASHES_S, fields)).get("found"):
                    return
                await asyncio.sleep(CANCEL_S)

    async def _end_cancelled(self) -> None:
        """End a request that no daemon has."""
        if not self._is_done:
            self._is_done = True
            await self._put_end("cancelled", self._usage.get("completion_tokens", 0))

    async def _put_end(self, reason: str, n_tokens: int) -> None:
        _, n_prompt = await self._hashes(self._fields, self._cluster.of_model(self._model), is_exact=True)
        usage = {**self._usage, "prompt_tokens": n_prompt, "cached_tokens": 0, "completion_tokens": n_tokens}
        end = {"event": "eos", "id": self._id, "reason": reason, "text": "", "usage": usage, "timing": {}}
        self._inbox.put([orjson.dumps(end)])

    def close(self) -> None:
        """Close the request: the client has left, or has everything. Whatever is still running is cancelled."""
        self._task.cancel()
        self._inbox.fail(GatewayError(Kind.UNAVAILABLE, "the request was closed", code="closed"))

    # the life of the request

    async def _run(self) -> None:
        try:
            ask = await self._ask()
            for n in range(TRIES_MOST):
                self._is_last_try = n == TRIES_MOST - 1
                if None in self._cancels:  # the daemon that was told to cancel has refused the request
                    await self._end_cancelled()
                    return
                try:
                    avoid, lost = frozenset(self._avoid), frozenset(self._lost_by)
                    fresh = ask._replace(id=attempt_id(self._id), avoid=avoid, lost=lost, has_waited=n > 0)
                    if await self._attempt(fresh):
                        return
                except UnitLost as loss:
                    if None in self._cancels:
                        await self._end_cancelled()
                        return
                    if await self._has_all():
                        return
                    self._check_hope(loss)
                    if self._n_sent:
                        self._group = ask.group
                        self._tail = [self._sent_text]
                        ask = await self._ask()
                except GatewayError as error:
                    if error.code != "daemon_unavailable" or self._is_last_try:
                        raise
                    ask = await self._asked_anew(ask, error)
        except GatewayError as error:
            if self._n_sent:
                error.extra |= self._progress()
            self._inbox.fail(error)
        except Exception as error:  # even after a bug here the client must get an end
            self._inbox.fail(
                GatewayError(Kind.SERVER, f"routing failed: {type(error).__name__}: {error}", code="internal")
            )

    def _check_hope(self, loss: UnitLost) -> None:
        """Check that the request can continue elsewhere. Raises: GatewayError."""
        counts = self._cluster.counts
        if not self._is_last_try and self._n_sent == 0 and not self._has_ended_one:
            counts["replayed"] += 1
        elif not self._is_last_try and self._is_resumable:
            counts["resumed"] += 1
        else:
            counts["lost"] += 1
            raise self._lost(str(loss))

    def _lost(self, why: str) -> GatewayError:
        message = f"the daemon of this answer was lost after {self._n_tokens} tokens: {why}"
        return GatewayError(Kind.UNAVAILABLE, message, code="replica_lost", extra=self._progress())

    async def _asked_anew(self, ask: Ask, refusal: GatewayError) -> Ask:
        """Ask again about a request that no daemon accepts. The daemons may have another model by now; or the model's
        last daemon is gone, and one is loaded. Raises: GatewayError.
        """
        units = self._cluster.of_model(self._model)
        groups = {group_of(self._model, self._cluster.fingerprints[unit.name]) for unit in units}
        if ask.group in groups:
            raise refusal
        anew = await self._ask()
        if not groups or anew.group in groups:
            return anew
        if self._n_sent:
            raise self._lost("its daemons have another model now")
        raise GatewayError(Kind.UNAVAILABLE, "the daemons have another model now", code="model_changed")

    def _progress(self) -> dict[str, int]:
        """Return how much of the answer was sent, for its error."""
        return {"tokens_sent": self._n_tokens, "characters_sent": len(self._sent_text)}

    async def _has_all(self) -> bool:
        """Send an end if only the end was lost. Returns whether that is so."""
        n_tokens = self._usage.get("completion_tokens", 0)
        is_one = can_resume(self._fields)  # with several answers it is not known how many tokens each has
        if not self._n_sent or not is_one or n_tokens < (self._fields.get("max_tokens") or INFINITE):
            return False
        self._is_done = True
        await self._put_end("length", n_tokens)
        return True

    async def _ask(self) -> Ask:
        """Return what the router must know about the request. Raises: GatewayError."""
        fields = self._continued()
        units = await self._available()
        pages, n_tokens = await self._hashes(fields, units)
        fingerprint = fields.get("model") or self._cluster.fingerprint(self._model)
        priority = PRIORITIES.index(fields["priority"]) if fields.get("priority") else 0
        group = self._group or group_of(self._model, fingerprint)
        return Ask(
            self._id,
            str(fields.get("account", "")),
            priority,
            group,
            pages,
            n_tokens,
            self._deadline_ns,
        )

    async def _available(self) -> list[Unit]:
        """Return the model's daemons as soon as there are any. Raises: GatewayError."""
        left_s = self._time_left_s()
        try:
            return await self._cluster.available(
                self._model, self._cluster.load_s if left_s is None else min(left_s, self._cluster.load_s)
            )
        except GatewayError:
            if self._time_left_s() == 0.0:
                raise GatewayError(
                    Kind.GENERATION_TIMEOUT,
                    "the time for this request passed before its model was there",
                    code="timeout",
                ) from None
            raise

    async def _count_sent(self, unit: Unit) -> None:
        """Find out which tokens were sent, and how many, before this daemon continues from there.

        An event of several tokens names only the last one; then the daemon is asked how many tokens the text has.
        Raises: UnitLost.
        """
        call, ids, text = self._cluster.transport.call, self._token_ids, self._sent_text
        with contextlib.suppress(GatewayError):
            # without these the answer's limit would start again
            limits = (await call(unit, "props", HASHES_S, {}))["limits"]
            n_most = self._fields.get("max_tokens") or limits["default_max_tokens"]
            self._fields["max_tokens"] = min(n_most, limits["max_tokens"])
            self._overflow = self._fields.get("overflow") or limits.get("overflow", "")
            if (await call(unit, "detokenize", HASHES_S, {"tokens": ids}))["content"] == text:
                self._tail, self._usage["completion_tokens"] = list(ids), len(ids)
            else:
                found = (await call(unit, "tokenize", HASHES_S, {"content": text}))["tokens"]
                self._tail, self._usage["completion_tokens"] = [text], len(found)
        self._count_thought()

    def _count_thought(self) -> None:
        if self._fields.get("reasoning") is not None and can_resume(self._fields):
            n_tokens = self._usage["completion_tokens"]
            self._usage["reasoning_tokens"] = n_thought(self._fields, self._sent_text, n_tokens)

    async def _hashes(
        self, fields: Mapping[str, Any], units: list[Unit], is_exact: bool = False
    ) -> tuple[tuple[int, ...], int]:
        """Return the prompt's hashes from any daemon that answers, and the number of its tokens. Without hashes the
        request is routed by load only. `is_exact`: count the tokens even if no hash is needed.
        """
        inputs = {
            name: fields[name]
            for name in ("prompt", "tokens", "messages", "infill", "suffix")
            if fields.get(name) is not None
        }
        size = len(orjson.dumps(inputs))
        # the prompt is too short for a page, or must not be shared
        if not is_exact and (size < PAGE or fields.get("cache_prompt") is False):
            return (), max(1, size // 3)
        for unit in self._cluster.nearest(units, 2):
            try:
                call = self._cluster.transport.call(
                    unit, "prefix_hashes", HASHES_S, {**inputs, "key": self._cluster.key.hex()}
                )
                reply = await call
            except (UnitLost, GatewayError):
                continue  # `generate` will report the error in the input
            return tuple(int(page, 16) for page in reply["hashes"]), reply["n_tokens"]
        return (), max(1, size // 3)

    def _time_left_s(self) -> float | None:
        if not self._deadline_ns:
            return None
        return max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)

    def _continued(self) -> dict[str, Any]:
        """Return the request's current fields: it continues after the sent text, within the remaining time."""
        fields = dict(self._fields)
        left_s = self._time_left_s()
        if left_s is not None:
            fields["timeout_ms"] = max(1.0, left_s * 1e3)
        if not self._tail:
            return fields
        fields = resumed(fields, self._tail, self._sent_text, self._usage.get("completion_tokens", 0))
        if self._is_kept_whole:
            fields["overflow"] = "error"
        return fields

    @property
    def _is_kept_whole(self) -> bool:
        """Whether a continued prompt must not be cut. A daemon cuts a prompt so far that a quarter of the context stays
        free, but the rest of this answer may have room without that.
        """
        return bool(self._tail) and self._overflow == "truncate-middle" and not self._is_cut and not self._is_last_try

    async def _attempt(self, ask: Ask) -> bool:
        """Try one daemon. True: the request has ended. Raises: UnitLost, GatewayError."""
        try:
            choice = await self._place(ask)
        except BaseException:
            self._cluster.ended(ask.id, False)
            raise
        unit = self._cluster.units.get(choice.node)
        if unit is None or self._cluster.router.is_silent(unit.name):  # since it was chosen
            self._cluster.ended(ask.id, False)
            raise UnitLost("it left the cluster" if unit is None else "it no longer sends anything")
        self._unit = unit
        reading = asyncio.ensure_future(self._answer(unit))
        telling = [asyncio.ensure_future(self._tell(unit, index)) for index in self._cancels]
        loss = asyncio.Event()
        lost = asyncio.ensure_future(loss.wait())
        self._cluster.reading(unit.name, self, loss.set)
        n_before, n_tokens_before = self._n_sent, self._n_tokens
        try:
            left_s = self._time_left_s()
            timeout_s = None if left_s is None else left_s + GRACE_S
            await asyncio.wait((reading, lost), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            if lost.done():
                raise UnitLost("it no longer sends anything")
            raise GatewayError(
                Kind.GENERATION_TIMEOUT,
                "the time for this request passed, and its daemon did not report it",
                code="timeout",
            )
        except UnitLost:
            self._lost_by.add(unit.name)
            self._cluster.router.shut(unit.name)  # until a digest shows that it is back
            n_tokens = self._n_tokens - n_tokens_before
            self._usage["completion_tokens"] = self._usage.get("completion_tokens", 0) + n_tokens
            self._count_thought()
            raise
        finally:
            for task in (lost, reading, *telling):
                task.cancel()
            self._cluster.left(unit.name, self)
            self._cluster.ended(ask.id, self._n_sent > n_before or self._is_done)
            self._unit = None

    async def _place(self, ask: Ask) -> Choice:
        """Wait for a daemon with room; meanwhile tell the client its place in the queue."""
        waiting = asyncio.ensure_future(self._cluster.submit(ask))
        try:
            pause_s = FIRST_NEWS_S
            while True:
                done, _ = await asyncio.wait((waiting,), timeout=pause_s)
                if done:
                    return waiting.result()
                pause_s = NEWS_S
                position = self._cluster.position(ask) if self._fields.get("queue_updates") else None
                if position is not None:
                    event = {
                        "event": "queued",
                        "id": self._id,
                        "position": position,
                        "wait_ms": int(self._cluster.router.wait_ms(ask, position)),
                    }
                    self._inbox.put([orjson.dumps(event)])
        finally:
            if not waiting.done():
                waiting.cancel()

    async def _answer(self, unit: Unit) -> bool:
        """Make the daemon answer, or continue the sent text.

        True: the request has its end; False: try another daemon. Raises: UnitLost.
        """
        if self._n_sent:
            await self._count_sent(unit)
            if await self._has_all():
                return True
        fields = {
            **{name: value for name, value in self._continued().items() if not name.startswith("x_")},
            "id": self._id,
            "x_attempt": self._attempt_key,
        }
        try:
            return await self._read(self._cluster.transport.stream(unit, fields), unit)
        except _Complete as end:
            self._is_done = True
            await self._put_end(str(end), self._usage["completion_tokens"])
            return True

    async def _read(self, stream: AsyncIterator[list[bytes]], unit: Unit) -> bool:
        """Pass on the events. Result and errors: those of `_answer`, and _Complete."""
        self._n_read_here = 0
        try:
            async for payloads in stream:
                passed: list[bytes] = []
                try:
                    for payload in payloads:
                        verdict = self._judge(orjson.loads(payload), unit)
                        if verdict is False:
                            return False
                        passed.append(payload if verdict is None else orjson.dumps(verdict))
                finally:  # also passes on events that arrived together with the loss
                    if passed:
                        self._inbox.put(passed)
                if self._is_done:
                    return True
                while len(self._inbox.payloads) > QUEUE_HIGH:
                    self._drained.clear()
                    await self._drained.wait()
        finally:
            await stream.aclose()  # type: ignore[attr-defined] # all transports' are generators
        raise UnitLost("its answer broke off")

    def _judge(self, event: Event, unit: Unit) -> Event | bool | None:
        """Judge an event. None: pass it on; False: try another daemon; otherwise pass on the returned value instead.
        Raises: UnitLost, _Complete.
        """
        kind = event.get("event")
        if kind == "token":
            self._n_sent += 1
            self._n_tokens += event.get("n_tokens", 1)
            self._sent_text += event["text"]
            self._token_ids.append(event["token_id"])
        elif kind == "prompt":
            n_before, self._n_read_here = self._n_read_here, self._n_read_here + len(event["logprobs"])
            n_twice = max(0, self._n_read - n_before)
            self._n_read = max(self._n_read, self._n_read_here)
            return {**event, "logprobs": event["logprobs"][n_twice:]} if n_twice else None
        elif kind == "end":
            self._has_ended_one = True
        elif kind == "error":
            code = BY_CODE.get(str(event.get("code")))
            is_first = not self._n_refusals and not self._is_last_try
            if code in ELSEWHERE and is_first and self._has_others(unit):
                self._n_refusals += 1
                self._avoid.add(unit.name)
                # no other request tries the unit before its next digest
                self._cluster.router.shut(unit.name)
                self._cluster.counts["rerouted"] += 1
                return False
            reason = _end_of_sent(code, event.get("detail") or {}) if self._n_sent else ""
            if reason:
                raise _Complete(reason)
            if code is ErrorCode.PROMPT_TOO_LARGE and self._is_kept_whole:
                self._is_cut = True
                return False
            self._is_done = True
        elif kind == "eos":
            code = BY_CODE.get(str((event.get("error") or {}).get("code")))
            if event["reason"] == "draining" or code in (ErrorCode.SHUTTING_DOWN, ErrorCode.ENGINE_HUNG):
                for name in DRAFT_COUNTS:
                    if name in event["usage"] and can_resume(self._fields):
                        self._usage[name] = self._usage.get(name, 0) + event["usage"][name]
                raise UnitLost("it was stopped")
            self._is_done = True
            return self._whole(event)
        return None

    def _has_others(self, unit: Unit) -> bool:
        return any(other.name != unit.name for other in self._cluster.of_model(self._model))

    def _whole(self, eos: Event) -> Event | None:
        """Return the end of an answer that several daemons wrote, as if one had written it."""
        n_before = self._usage.get("completion_tokens", 0)
        if not n_before:
            return None
        usage = dict(eos["usage"])
        usage["completion_tokens"] += n_before
        usage["prompt_tokens"] = max(0, usage["prompt_tokens"] - n_before)
        usage["cached_tokens"] = min(usage["cached_tokens"], usage["prompt_tokens"])
        for name in (*DRAFT_COUNTS, "reasoning_tokens"):
            if name in self._usage:
                usage[name] = usage.get(name, 0) + self._usage[name]
        return {**eos, "usage": usage}


def _end_of_sent(code: ErrorCode | None, detail: Mapping[str, Any]) -> str:
    """Return how the sent text ends if a daemon refuses to continue it because nothing was missing but its end: its
    constraint allows nothing more, or it fills the context. "": it was refused for another reason.
    """
    if code is ErrorCode.CONSTRAINT_REFUSED and detail.get("is_complete"):
        return "stop"
    # an answer's last token is not read any more, so it has no place in the context
    is_full = code is ErrorCode.PROMPT_TOO_LARGE and detail.get("n_tokens") == detail.get("n_ctx_seq", 0) + 1
    return "length" if is_full else ""
