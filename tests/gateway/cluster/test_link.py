"""A request's way through a cluster whose daemons follow a script: it ends exactly once, whatever they do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.support import WAIT_S
from tests.gateway.cluster.test_router import digest
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import thought_mark
from uma_gateway.cluster import cluster as cluster_module
from uma_gateway.cluster.cluster import Cluster
from uma_gateway.cluster.link import TRIES_MOST, RoutedLink
from uma_gateway.cluster.router import Ask, Choice, RouterSettings
from uma_gateway.cluster.transport import Event, Unit, UnitLost
from uma_gateway.errors import GatewayError

N_TOKENS = 6  # length of a whole answer, whose text is 012345
TOKENS = "0123456789"


class Scripted:
    """A transport. Each request that arrives at any daemon performs the next act: `whole`, `refuse`, `gone` (no longer
    loaded), `other` (its daemon is lost and comes back with another model), `reloaded` (its daemon has another model
    after one token, and finishes the answer with the old one), `silent` or `stopped` (after one token), `pairs` (two
    events of two tokens each, then its daemon is lost), or the number of tokens that are sent before its daemon is
    lost.
    """

    def __init__(self, n_units: int, *acts: str | int, pause_s: float = 0.0) -> None:
        self.names = [f"n{i}" for i in range(n_units)]
        self.acts: Iterator[str | int] = iter(acts)
        self.pause_s = pause_s
        self.seen: list[tuple[str, dict[str, Any]]] = []  # the unit and the request of each arrival
        self.n_loads = 0
        self.limits: dict[str, Any] = {"max_tokens": 100, "default_max_tokens": 50, "overflow": "error"}
        self.cancels: list[int | None] = []
        self.models: dict[str, str] = {}  # fingerprints by unit, if they are not "f"

    async def units(self) -> list[Unit]:
        return [Unit(name, name, "m") for name in self.names]

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        if unit.name not in self.names:
            raise UnitLost("gone")
        if operation == "digest":
            return {**digest(), "fingerprint": self.models.get(unit.name, "f"), "generation": 1}
        if operation == "detokenize":
            return {"content": "".join(TOKENS[each] for each in fields["tokens"])}
        if operation == "tokenize":
            return {"tokens": [TOKENS.index(each) for each in fields["content"]]}
        if operation == "props":
            return {"limits": self.limits}
        if operation == "cancel":
            self.cancels.append(fields["index"])
            return {"found": True}
        return {"hashes": [], "n_tokens": 10}

    async def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        self.seen.append((unit.name, dict(fields)))
        await asyncio.sleep(self.pause_s)
        act = next(self.acts, "whole")
        if act == "refuse":
            yield [
                json.dumps({"event": "error", **UmaError(ErrorCode.OVERLOADED, retry_after_ms=700).to_dict()}).encode()
            ]
            return
        if act == "gone":
            self.names.remove(unit.name)
            raise UnitLost("m is not loaded here")
        if act == "other":
            self.models[unit.name] = "g"
            raise UnitLost("it broke")
        if act == "silent":
            yield [json.dumps({"event": "token", "text": TOKENS[0], "token_id": 0}).encode()]
            await asyncio.sleep(3600)
        begun = N_TOKENS - fields["max_tokens"]
        if act == "stopped":
            error = UmaError(ErrorCode.SHUTTING_DOWN).to_dict()
            yield [  # these events arrive together
                json.dumps({"event": "token", "text": TOKENS[begun], "token_id": begun}).encode(),
                json.dumps({"event": "eos", "reason": "error", "error": error, "usage": {}}).encode(),
            ]
            return
        if act == "pairs":
            for i in range(begun, min(begun + 4, N_TOKENS), 2):
                token = {"event": "token", "text": TOKENS[i : i + 2], "token_id": i + 1, "n_tokens": 2}
                yield [json.dumps(token).encode()]
            raise UnitLost("it broke")
        is_whole = act in ("whole", "reloaded")
        n = fields["max_tokens"] if is_whole else min(int(act), fields["max_tokens"])
        for i in range(begun, begun + n):
            yield [json.dumps({"event": "token", "text": TOKENS[i], "token_id": i}).encode()]
            if act == "reloaded":
                self.models[unit.name] = "g"
                await asyncio.sleep(0.02)  # meanwhile its digest names the new model
        if not is_whole:
            raise UnitLost("it broke")
        usage = {"prompt_tokens": 10 + begun, "cached_tokens": 0, "completion_tokens": n}
        yield [json.dumps({"event": "eos", "reason": "length", "text": "", "usage": usage}).encode()]

    async def load(self, model: str) -> None:
        if self.names:
            return  # the unit is already there
        self.n_loads += 1
        self.names.append(f"loaded{self.n_loads}")

    async def close(self) -> None:
        pass


class Got:
    """What the client got."""

    def __init__(self) -> None:
        self.text = ""
        self.prompt: list[int] = []
        self.n_answers = 0  # answers that have ended, of several
        self.ends: list[str] = []
        self.usage: dict[str, int] = {}
        self.error: GatewayError | None = None


def ask(transport: Scripted, is_resumable: bool = False, settings: RouterSettings | None = None, **fields: Any) -> Got:
    async def work() -> Got:
        cluster = Cluster(transport, bytes(32), settings)
        cluster.start()
        request = {"type": "generate", "prompt": "p", "max_tokens": N_TOKENS, **fields}
        link = RoutedLink(cluster, "m", request, "r", is_resumable)
        got = Got()
        try:
            while not got.ends:
                for payload in await link.receive():
                    event = json.loads(payload)
                    if event["event"] == "token":
                        assert not got.ends, "something came after the end"
                        got.text += event["text"]
                    elif event["event"] == "prompt":
                        got.prompt += [each["id"] for each in event["logprobs"]]
                    elif event["event"] == "end":
                        got.n_answers += 1
                    elif event["event"] == "eos":
                        got.ends.append(event["reason"])
                        got.usage = event["usage"]
                    elif event["event"] == "error":
                        got.ends.append(event["name"])
        except GatewayError as error:
            got.error = error
            got.ends.append(str(error.code))
        link.close()
        while any(row.get("requests") for row in cluster.table()):  # wait until no daemon has a request left
            await asyncio.sleep(0)
        await cluster.close()
        return got

    return asyncio.run(asyncio.wait_for(work(), WAIT_S))


@pytest.fixture(autouse=True, scope="module")
def hurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "POLL_S", 0.005)
        patch.setattr(cluster_module, "UNITS_S", 0.01)
        yield


acts = st.lists(st.sampled_from(["whole", "refuse", "gone", "stopped", 0, 1, 3, 6]), max_size=6)


@settings(max_examples=60, deadline=None)
@given(acts, st.integers(1, 3), st.booleans())
def test_every_request_ends_once_with_its_own_text(acts: list[str | int], n_units: int, is_resumable: bool) -> None:
    transport = Scripted(n_units, *acts)
    got = ask(transport, is_resumable)
    assert len(got.ends) == 1 and "012345".startswith(got.text)
    (end,) = got.ends
    assert end in ("length", "replica_lost", "overloaded", "daemon_unavailable")
    if end == "length":
        assert got.text == "012345" and got.usage["completion_tokens"] == N_TOKENS
    if end == "replica_lost":
        assert got.error is not None and got.error.extra == {
            "tokens_sent": len(got.text),
            "characters_sent": len(got.text),
        }
        assert not is_resumable or len(transport.seen) > 1, "it was tried elsewhere"


def test_a_refusal_is_taken_elsewhere_once_and_its_deadline_is_kept() -> None:
    transport = Scripted(3, "refuse", pause_s=0.1)
    assert ask(transport, timeout_ms=5000).ends == ["length"]
    (first, one), (second, two) = transport.seen
    assert first != second
    assert one["timeout_ms"] <= 5000 and 0 < two["timeout_ms"] <= one["timeout_ms"] - 100
    assert ask(Scripted(3, "refuse", "refuse")).ends == ["overloaded"], "the second one is the client's"


@pytest.mark.parametrize("timeout_ms", [-1, -1e308, 1e308, 86_400_001])
def test_a_time_limit_that_no_daemon_takes_is_left_for_it_to_refuse(timeout_ms: float) -> None:
    transport = Scripted(1)
    ask(transport, timeout_ms=timeout_ms)
    assert [fields["timeout_ms"] for _, fields in transport.seen] == [timeout_ms]


def test_a_refusal_at_the_last_try_is_the_clients() -> None:
    assert ask(Scripted(2, 0, 0, 0, "refuse")).ends == ["overloaded"]


def test_a_daemon_that_comes_back_with_another_model_answers_who_named_none() -> None:
    transport = Scripted(1, "other")
    assert ask(transport).ends == ["length"]
    assert ask(Scripted(1, "other"), model="f").ends == ["model_changed"]


def test_an_answer_that_began_before_a_reload_is_finished_by_the_model_that_began_it() -> None:
    transport = Scripted(1, "reloaded")
    got = ask(transport)
    assert transport.models == {"n0": "g"}
    assert (got.text, got.ends) == ("012345", ["length"]), got.error


def test_an_answer_is_not_continued_by_another_model() -> None:
    transport = Scripted(1, 2, "other")
    got = ask(transport, is_resumable=True)
    assert (got.text, got.ends) == ("01", ["replica_lost"])
    assert got.error is not None and got.error.extra == {"tokens_sent": 2, "characters_sent": 2}


def test_a_lost_answer_tells_all_tokens_of_its_events() -> None:
    got = ask(Scripted(1, "pairs"))
    assert got.error is not None and got.error.extra == {"tokens_sent": 4, "characters_sent": 4}


def test_a_daemon_that_falls_silent_is_given_up_while_the_cluster_does_not_tell_what_it_has() -> None:
    transport = Scripted(1, "silent")
    units, call = transport.units, transport.call

    async def silent_units() -> list[Unit]:
        return await (units() if not transport.seen else asyncio.sleep(3600, []))

    async def silent_call(unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        return await (call(unit, operation, timeout_s, fields) if not transport.seen else asyncio.sleep(3600, {}))

    transport.units, transport.call = silent_units, silent_call  # type: ignore[method-assign]
    assert ask(transport, settings=RouterSettings(lost_ns=50_000_000)).ends == ["replica_lost"]


def test_a_daemon_that_falls_silent_between_its_choice_and_the_request_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers are told of a silence once: who comes later must see it."""
    transport = Scripted(1, "silent")
    call, submit = transport.call, Cluster.submit
    is_chosen = asyncio.Event()

    async def silent_call(unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        return await (call(unit, operation, timeout_s, fields) if not is_chosen.is_set() else asyncio.sleep(3600, {}))

    async def slow_submit(cluster: Cluster, request: Ask) -> Choice:
        choice = await submit(cluster, request)
        is_chosen.set()
        while not cluster.router.is_silent(choice.node) or cluster.router.check(time.monotonic_ns()):
            await asyncio.sleep(0.01)
        return choice

    transport.call = silent_call  # type: ignore[method-assign]
    monkeypatch.setattr(Cluster, "submit", slow_submit)
    assert ask(transport, settings=RouterSettings(lost_ns=50_000_000, closed_ns=0)).ends == ["daemon_unavailable"]


def test_an_answer_is_continued_after_what_was_sent_of_it() -> None:
    transport = Scripted(2, 2)
    got = ask(transport, True, min_tokens=5, constraint={"grammar": "g"}, timeout_ms=60_000, prompt_progress=True)
    assert (got.text, got.ends) == ("012345", ["length"])
    again = transport.seen[1][1]
    assert again["prompt"] == ["p", 0, 1] and (again["max_tokens"], again["min_tokens"]) == (4, 3)
    assert again["constraint"] == {"grammar": "g", "prefix": "01"}
    assert "prompt_progress" not in again, "the client has read that its prompt is read"


def test_an_answer_that_is_continued_waits_behind_no_request_that_has_not_begun() -> None:
    transport = Scripted(1, 1)

    async def work() -> None:
        one_place = RouterSettings(slack=-0.75, warm_slack=-0.75)
        cluster = Cluster(transport, bytes(32), one_place)
        stream = transport.stream

        async def held(unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
            async for payloads in stream(unit, fields):
                while len(transport.seen) == 1 and cluster.router.n_waiting < 3:
                    await asyncio.sleep(0.001)
                yield payloads

        transport.stream = held  # type: ignore[method-assign]
        request = {"type": "generate", "prompt": "p", "max_tokens": N_TOKENS}
        links = [RoutedLink(cluster, "m", request, "begun", True)]
        while not transport.seen:
            await asyncio.sleep(0.001)
        links += [RoutedLink(cluster, "m", request, f"new{i}") for i in range(3)]
        for link in links:
            text = ""
            while len(text) < N_TOKENS:
                text += "".join(json.loads(payload).get("text", "") for payload in await link.receive())
            assert text == TOKENS[:N_TOKENS]
            link.close()
        await cluster.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
    assert [fields["id"] for _, fields in transport.seen][:2] == ["begun", "begun"]


def test_a_daemon_that_ends_its_answers_because_it_stops_is_lost() -> None:
    assert ask(Scripted(2, "stopped")).ends == ["replica_lost"]
    got = ask(Scripted(2, "stopped"), is_resumable=True)
    assert (got.text, got.ends) == ("012345", ["length"])


def test_tokens_that_came_together_are_all_counted() -> None:
    transport = Scripted(2, "pairs")
    got = ask(transport, is_resumable=True)
    assert (got.text, got.ends, got.usage["completion_tokens"]) == ("012345", ["length"], N_TOKENS)
    assert transport.seen[1][1]["prompt"] == ["p", "0123"] and transport.seen[1][1]["max_tokens"] == 2
    transport = Scripted(2, "pairs", "pairs")
    got = ask(transport, is_resumable=True)
    assert (got.text, got.ends, got.usage["completion_tokens"]) == ("012345", ["length"], N_TOKENS)
    assert len(transport.seen) == 2, "nothing but the end was lost"


class Reading(Scripted):
    """First reports each of a prompt's ten tokens, four to an event. The act `read` loses the daemon after two
    events.
    """

    async def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        act = next(self.acts, "whole")
        for at in (0, 4, 8) if "prompt_logprobs" in fields else ():
            if act == "read" and at == 8:
                raise UnitLost("it broke")
            rows = [{"id": each} for each in range(at, min(at + 4, 10))]
            yield [json.dumps({"event": "prompt", "logprobs": rows}).encode()]
        self.acts = iter((act, *self.acts))
        async for payloads in super().stream(unit, fields):
            yield payloads


@pytest.mark.parametrize("acts", [("whole",), ("read",), ("read", "read"), (2,)])
def test_a_prompts_log_probabilities_come_once(acts: tuple[str | int, ...]) -> None:
    got = ask(Reading(2, *acts), is_resumable=True, prompt_logprobs=0)
    assert (got.prompt, got.text, got.ends) == (list(range(10)), "012345", ["length"])


class Several(Scripted):
    """The first of two answers is empty and has ended when the daemon is lost."""

    async def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        yield [json.dumps({"event": "end", "index": 0, "reason": "stop", "usage": {}}).encode()]
        raise UnitLost("it broke")


def test_an_answer_of_several_that_has_ended_is_not_begun_anew() -> None:
    got = ask(Several(2), n=2)
    assert (got.n_answers, got.ends) == (1, ["replica_lost"])


def test_an_answer_that_lost_nothing_but_its_end_is_whole() -> None:
    got = ask(Scripted(2, N_TOKENS))
    assert (got.text, got.ends) == ("012345", ["length"])
    assert got.usage == {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": N_TOKENS}


class Refusing(Scripted):
    """The daemons that are to continue an answer refuse to, this many times."""

    def __init__(self, error: UmaError, n_refusals: int = TRIES_MOST) -> None:
        super().__init__(2, 3)
        self.error = error
        self.n_refusals = n_refusals

    async def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        if self.seen and self.n_refusals:
            self.n_refusals -= 1
            self.seen.append((unit.name, dict(fields)))
            yield [json.dumps({"event": "error", **self.error.to_dict()}).encode()]
            return
        async for payloads in super().stream(unit, fields):
            yield payloads


def test_a_constrained_answer_that_lost_nothing_but_its_end_is_whole() -> None:
    transport = Refusing(UmaError(ErrorCode.CONSTRAINT_REFUSED, is_complete=True))
    got = ask(transport, is_resumable=True, constraint={"choices": ["012"]})
    assert (got.text, got.ends, got.usage["completion_tokens"]) == ("012", ["stop"], 3)
    assert transport.seen[-1][1]["constraint"] == {"choices": ["012"], "prefix": "012"}


@pytest.mark.parametrize(("n_ctx_seq", "end"), [(12, "length"), (11, "prompt_too_large")])
def test_an_answer_that_filled_the_context_and_lost_nothing_but_its_end_is_whole(n_ctx_seq: int, end: str) -> None:
    """A daemon with a smaller context is another matter: the answer would have gone on."""
    error = UmaError(ErrorCode.PROMPT_TOO_LARGE, n_tokens=13, n_ctx_seq=n_ctx_seq)
    got = ask(Refusing(error), is_resumable=True)
    assert (got.text, got.ends) == ("012", [end])


@pytest.mark.parametrize(
    ("configured", "requested", "continued"),
    [
        ("truncate-middle", None, "error"),
        ("shift", "truncate-middle", "error"),
        ("truncate-middle", "shift", "shift"),
        ("shift", None, None),
        ("error", None, None),
    ],
)
def test_a_continued_answers_prompt_is_not_cut(configured: str, requested: str | None, continued: str | None) -> None:
    """A daemon cuts a prompt so that a quarter of the context stays free, and a prompt may have grown beyond that."""
    transport = Scripted(2, 3)
    transport.limits["overflow"] = configured
    fields = {} if requested is None else {"overflow": requested}
    assert ask(transport, is_resumable=True, **fields).text == "012345"
    assert [request.get("overflow") for _, request in transport.seen] == [requested, continued]


def test_a_continued_answers_prompt_is_cut_if_it_was_too_long_from_the_start() -> None:
    transport = Refusing(UmaError(ErrorCode.PROMPT_TOO_LARGE, n_tokens=13, n_ctx_seq=11), n_refusals=1)
    got = ask(transport, is_resumable=True, overflow="truncate-middle")
    assert (got.text, got.ends) == ("012345", ["length"])
    wanted = ["truncate-middle", "error", "truncate-middle"]
    assert [request["overflow"] for _, request in transport.seen] == wanted


class Counting(Scripted):
    """Its daemons count drafts, and thoughts if they are told to. The first daemon stops after three tokens."""

    async def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        self.seen.append((unit.name, dict(fields)))
        begun = N_TOKENS - fields["max_tokens"]
        ids = range(begun, 3) if begun < 3 else range(begun, N_TOKENS)
        for i in ids:
            yield [json.dumps({"event": "token", "text": TOKENS[i], "token_id": i}).encode()]
        usage = {"prompt_tokens": 10 + begun, "cached_tokens": 0, "completion_tokens": len(ids)}
        usage |= {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1}
        if "reasoning" in fields:
            end = TOKENS.find(thought_mark(fields["reasoning"]["end"]))
            usage["reasoning_tokens"] = sum(i < end or end < 0 for i in ids)
        reason = "draining" if begun < 3 else "length"
        yield [json.dumps({"event": "eos", "reason": reason, "text": "", "usage": usage}).encode()]


@pytest.mark.parametrize(("end", "n_thought"), [("2", 2), ("5", 5), (" ", N_TOKENS)])
def test_what_several_daemons_counted_is_added_up(end: str, n_thought: int) -> None:
    got = ask(Counting(2), is_resumable=True, reasoning={"start": "", "end": end})
    assert (got.text, got.ends) == ("012345", ["length"])
    assert got.usage == {
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": N_TOKENS,
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 2,
        "reasoning_tokens": n_thought,
    }


def test_a_thought_is_counted_where_nothing_but_the_end_was_lost() -> None:
    got = ask(Scripted(2, N_TOKENS), reasoning={"start": "1", "end": "4"})
    assert (got.ends, got.usage["reasoning_tokens"]) == (["length"], 2)


@pytest.mark.parametrize(
    ("limits", "fields", "left"),
    [
        ({"max_tokens": N_TOKENS, "default_max_tokens": 50}, {"max_tokens": 50}, 4),
        ({"max_tokens": 100, "default_max_tokens": 5}, {"max_tokens": None}, 3),
    ],
)
def test_a_continued_answer_has_what_is_left_of_its_daemons_limit(
    limits: dict[str, int], fields: dict[str, Any], left: int
) -> None:
    transport = Scripted(2)
    transport.limits = limits
    sent = iter([2, 0])

    async def stream(unit: Unit, given: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        transport.seen.append((unit.name, dict(given)))
        n = next(sent)
        for i in range(n):
            yield [json.dumps({"event": "token", "text": TOKENS[i], "token_id": i}).encode()]
        if n:
            raise UnitLost("it broke")
        usage = {"prompt_tokens": 12, "cached_tokens": 0, "completion_tokens": 0}
        yield [json.dumps({"event": "eos", "reason": "length", "text": "", "usage": usage}).encode()]

    transport.stream = stream  # type: ignore[method-assign]
    assert ask(transport, is_resumable=True, **fields).ends == ["length"]
    assert transport.seen[1][1]["max_tokens"] == left


def cancelled(transport: Scripted, when: Callable[[], bool], index: int | None = None, **fields: Any) -> list[str]:
    """Cancel a request at a given moment; return its ends."""

    async def work() -> list[str]:
        cluster = Cluster(transport, bytes(32))
        cluster.start()
        link = RoutedLink(cluster, "m", {"prompt": "p", "max_tokens": N_TOKENS, **fields}, "r", True)
        while not when():
            await asyncio.sleep(0)
        link.send({"type": "cancel", "id": "r", **({} if index is None else {"index": index})})
        ends: list[str] = []
        while not ends:
            events = [json.loads(payload) for payload in await link.receive()]
            ends += [event["reason"] for event in events if event["event"] == "eos"]
        link.close()
        await cluster.close()
        return ends

    return asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_a_cancel_while_no_daemon_has_the_request_ends_it() -> None:
    """One daemon was lost and is gone, and the next one does not have the request yet."""
    transport = Scripted(1, "gone")

    async def load(model: str) -> None:
        if transport.names:
            return
        transport.n_loads += 1
        await asyncio.sleep(3600)

    transport.load = load  # type: ignore[method-assign]
    assert cancelled(transport, lambda: transport.n_loads > 0) == ["cancelled"]
    assert len(transport.seen) == 1


def test_a_request_that_is_refused_while_it_is_cancelled_goes_nowhere_else() -> None:
    transport = Scripted(2, "refuse", pause_s=0.05)
    assert cancelled(transport, lambda: bool(transport.seen)) == ["cancelled"]
    assert len(transport.seen) == 1


def test_a_cancel_before_the_model_is_there_ends_the_request() -> None:
    transport = Scripted(0)

    async def load(model: str) -> None:
        transport.n_loads += 1
        await asyncio.sleep(3600)

    transport.load = load  # type: ignore[method-assign]
    assert cancelled(transport, lambda: transport.n_loads > 0) == ["cancelled"]


def test_a_cancel_that_comes_before_the_daemon_has_the_request_is_told_again() -> None:
    transport = Scripted(1, "silent")
    call, found = transport.call, iter([False, False])
    has_it = asyncio.Event()

    async def late(unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        reply = await call(unit, operation, timeout_s, fields)
        if operation == "cancel":
            reply = {"found": next(found, True)}
            if reply["found"]:
                has_it.set()
        return reply

    async def stream(unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        transport.seen.append((unit.name, dict(fields)))
        await has_it.wait()
        yield [json.dumps({"event": "eos", "reason": "cancelled", "text": "", "usage": {}}).encode()]

    transport.call, transport.stream = late, stream  # type: ignore[method-assign]
    assert cancelled(transport, lambda: bool(transport.seen)) == ["cancelled"]
    assert transport.cancels == [None] * 3


def test_a_cancel_of_one_answer_goes_with_the_request_to_another_daemon() -> None:
    transport = Scripted(2)

    async def stream(unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        transport.seen.append((unit.name, dict(fields)))
        n = len(transport.seen)
        while len(transport.cancels) < n:
            await asyncio.sleep(0)
        if n == 1:
            raise UnitLost("it broke")
        yield [json.dumps({"event": "eos", "reason": "length", "text": "", "usage": {}}).encode()]

    transport.stream = stream  # type: ignore[method-assign]
    assert cancelled(transport, lambda: bool(transport.seen), index=1, n=2) == ["length"]
    assert transport.cancels == [1, 1]


def test_the_only_daemon_is_asked_again_when_it_is_back() -> None:
    transport = Scripted(1, 0)
    assert ask(transport).ends == ["length"]
    assert [name for name, _ in transport.seen] == ["n0", "n0"]


def test_a_model_that_was_evicted_at_that_moment_is_loaded_again() -> None:
    transport = Scripted(1, "gone")
    assert ask(transport).ends == ["length"]
    assert transport.n_loads == 1 and [name for name, _ in transport.seen] == ["n0", "loaded1"]


def test_a_model_that_does_not_come_in_time_is_a_timeout() -> None:
    transport = Scripted(0)

    async def load(model: str) -> None:
        await asyncio.sleep(3600)

    transport.load = load  # type: ignore[method-assign]
    assert ask(transport, timeout_ms=50).ends == ["timeout"]
