"""Simulates a cluster's router: hundreds of daemons and a million requests, without real daemons or a network.

A simulated daemon has sequences, reads one prompt at a time, keeps the pages of the prompts that it read (the least
recently used are dropped), and reports its digest at intervals, as a real one does. All policies see the same figures
at the same times.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from uma_gateway.cluster.router import PAGE, Ask, Choice, Refusal, Router, RouterSettings

NS = 1_000_000_000
GROUP = "model"
POLICIES = ("prefix-aware", "round-robin", "least-loaded")


@dataclass(frozen=True)
class Setup:
    """Parameters of every simulated daemon.

    The figures are those of a 0.5B model on two cores: 1 ms a prompt token, 20 ms a token of an answer.
    """

    n_nodes: int = 8
    n_seq: int = 4
    token_ms: float = 1.0
    step_ms: float = 20.0
    n_pages: int = 1024  # pages that a daemon keeps: 64k tokens
    digest_ms: float = 250.0


class Arrival(NamedTuple):
    at_ns: int
    account: str
    pages: tuple[int, ...]
    n_tokens: int
    n_answer: int
    priority: int = 0
    session: int = -1  # the next turn of a session comes when this one has been answered


@dataclass
class Outcome:
    ttft_ms: list[float] = field(default_factory=list)
    n_prompt: int = 0
    n_cached: int = 0
    n_refused: int = 0
    choose_us: list[float] = field(default_factory=list)  # processor time of the router, per call
    most_on_one: float = 0.0  # requests of the busiest daemon, as a multiple of the mean

    @property
    def cached_share(self) -> float:
        return self.n_cached / max(1, self.n_prompt)


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


def words(outcome: Outcome) -> str:
    ttft, cost = outcome.ttft_ms, outcome.choose_us
    found = (
        f"{outcome.cached_share:6.1%} of the prompts' tokens cached, first token p50 {quantile(ttft, 0.5):6.0f} "
        f"ms, p95 {quantile(ttft, 0.95):6.0f}"
    )
    return found + (f"; a choice p50 {quantile(cost, 0.5):.0f} us, p99 {quantile(cost, 0.99):.0f}" if cost else "")


class _SimNode:
    """One daemon."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.name, self.setup = name, setup
        self.pages: OrderedDict[int, None] = OrderedDict()
        self.added: set[int] = set()
        self.removed: set[int] = set()
        self.waiting: tuple[deque[_SimRequest], deque[_SimRequest]] = (deque(), deque())
        self.n_active = 0
        self.reads_until_ns = 0  # the prompts that have a sequence are read one after the other
        self.ends: list[int] = []  # when the running requests end
        self.n_served = 0
        self.generation = 0

    @property
    def n_requests(self) -> int:
        return self.n_active + len(self.waiting[0]) + len(self.waiting[1])

    def digest(self, now_ns: int) -> dict[str, object]:
        waits = []
        free_ns = heapq.nsmallest(1, self.ends)[0] if self.n_active >= self.setup.n_seq else now_ns
        mean_ns = sum(end - now_ns for end in self.ends) / len(self.ends) if self.ends else 0.0
        n_before = 0
        for priority in (0, 1):
            n_before += len(self.waiting[priority])
            unread_ns = sum(request.arrival.n_tokens for request in self.waiting[priority]) * self.setup.token_ms * 1e6
            seq_ns = max(0, free_ns - now_ns) + n_before * mean_ns / self.setup.n_seq
            waits.append(max(seq_ns, max(0, self.reads_until_ns - now_ns) + unread_ns) / 1e6)
        self.generation += 1
        added, self.added = [f"{page:x}" for page in self.added], set()
        removed, self.removed = [f"{page:x}" for page in self.removed], set()
        return {
            "state": "ready",
            "n_seq_max": self.setup.n_seq,
            "token_ms": self.setup.token_ms,
            "wait_ms": {"interactive": waits[0], "background": waits[1]},
            "queued": {"interactive": len(self.waiting[0]), "background": len(self.waiting[1])},
            "active": self.n_active,
            "is_whole": self.generation == 1,
            "added": added,
            "removed": removed,
        }

    def read(self, pages: tuple[int, ...]) -> int:
        """Return how many pages of a prompt are cached. Afterwards all of them are."""
        n_cached = next((i for i, page in enumerate(pages) if page not in self.pages), len(pages))
        for page in pages:
            self.pages[page] = None
            self.pages.move_to_end(page)
        new = pages[n_cached:]
        self.added.update(new)
        self.removed.difference_update(new)
        while len(self.pages) > self.setup.n_pages:
            page, _ = self.pages.popitem(last=False)
            if page in self.added:
                self.added.remove(page)
            else:
                self.removed.add(page)
        return n_cached


@dataclass(slots=True, eq=False)
class _SimRequest:
    id: str
    arrival: Arrival
    node: _SimNode | None = None


class Simulation:
    """One policy on one trace."""

    def __init__(
        self,
        setup: Setup,
        policy: str,
        arrivals: Iterator[Arrival],
        follow: Callable[[Arrival, int], Arrival | None],
        is_timed: bool = True,
    ) -> None:
        """`follow` returns the request that comes after an answered request of a session, at that time or later.

        `is_timed`: measure the router's processor time. Where a look at the clock is slow, that takes half of the time.
        """
        self.setup, self.policy, self.follow = setup, policy, follow
        self.router = Router(RouterSettings(max_queued=1 << 30))
        self.nodes = [_SimNode(f"n{i}", setup) for i in range(setup.n_nodes)]
        self.by_name = {node.name: node for node in self.nodes}
        self.outcome = Outcome()
        self._processor_time: Callable[[], float] = time.thread_time if is_timed else lambda: 0.0
        self._arrivals = arrivals
        self._events: list[tuple[int, int, str, object]] = []
        self._numbers = itertools.count()
        self._turn = itertools.cycle(self.nodes)
        self._requests: dict[str, _SimRequest] = {}
        self._n_left = 0

    def run(self) -> Outcome:
        for i, node in enumerate(self.nodes):
            self.router.add(node.name, GROUP)
            self._at(int(i * self.setup.digest_ms * 1e6 / len(self.nodes)), "digest", node)
        self._next_arrival()
        while self._events and (self._n_left or self._requests):
            now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_on_{kind}")(now, what)
        served = [node.n_served for node in self.nodes]
        self.outcome.most_on_one = max(served) / max(1.0, sum(served) / len(served))
        return self.outcome

    def _at(self, at_ns: int, kind: str, what: object) -> None:
        heapq.heappush(self._events, (at_ns, next(self._numbers), kind, what))

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._n_left += 1
            self._at(arrival.at_ns, "arrival", (arrival, True))

    def _on_digest(self, now: int, node: _SimNode) -> None:
        self.router.heard(node.name, node.digest(now), now)
        self._at(now + int(self.setup.digest_ms * 1e6), "digest", node)
        self._let_go(now)

    def _on_arrival(self, now: int, what: tuple[Arrival, bool]) -> None:
        arrival, is_fresh = what
        self._n_left -= 1
        if is_fresh:
            self._next_arrival()
        request = _SimRequest(f"r{next(self._numbers)}", arrival)
        self._requests[request.id] = request
        if self.policy == "round-robin":
            self._start(now, request, next(self._turn))
            return
        if self.policy == "least-loaded":  # like nginx's least_conn: the daemon with the fewest requests at present
            self._start(now, request, min(self.nodes, key=lambda node: node.n_requests))
            return
        ask = Ask(request.id, arrival.account, arrival.priority, GROUP, arrival.pages, arrival.n_tokens)
        t0 = self._processor_time()
        choice = self.router.offer(ask, now)
        self.outcome.choose_us.append((self._processor_time() - t0) * 1e6)
        self._decided(now, request, choice)

    def _decided(self, now: int, request: _SimRequest, choice: Choice | Refusal | None) -> None:
        if isinstance(choice, Choice):
            self._start(now, request, self.by_name[choice.node])
        elif choice is not None:
            self.outcome.n_refused += 1
            del self._requests[request.id]

    def _let_go(self, now: int) -> None:
        t0 = self._processor_time()
        ready = list(self.router.ready(now))
        if ready:
            self.outcome.choose_us.append((self._processor_time() - t0) * 1e6)
        for ask, choice in ready:
            self._decided(now, self._requests[ask.id], choice)

    def _start(self, now: int, request: _SimRequest, node: _SimNode) -> None:
        request.node = node
        node.n_served += 1
        node.waiting[request.arrival.priority].append(request)
        self._admit(now, node)

    def _admit(self, now: int, node: _SimNode) -> None:
        while node.n_active < self.setup.n_seq:
            queue = next((queue for queue in node.waiting if queue), None)
            if queue is None:
                return
            request = queue.popleft()
            arrival = request.arrival
            n_cached = min(node.read(arrival.pages) * PAGE, arrival.n_tokens - 1)
            node.n_active += 1
            read_ns = int((arrival.n_tokens - n_cached) * self.setup.token_ms * 1e6)
            first = node.reads_until_ns = max(now, node.reads_until_ns) + read_ns
            end = first + int(arrival.n_answer * self.setup.step_ms * 1e6)
            heapq.heappush(node.ends, end)
            self.outcome.ttft_ms.append((first - arrival.at_ns) / 1e6)
            self.outcome.n_prompt += arrival.n_tokens
            self.outcome.n_cached += n_cached
            self._at(end, "end", request)

    def _on_end(self, now: int, request: _SimRequest) -> None:
        node = request.node
        assert node is not None
        node.n_active -= 1
        heapq.heappop(node.ends)
        del self._requests[request.id]
        self.router.ended(request.id, now)
        self._admit(now, node)
        after = self.follow(request.arrival, now)
        if after is not None:
            self._n_left += 1
            self._at(after.at_ns, "arrival", (after, False))
        self._let_go(now)


class AgentTrace:
    """Agents that work through tasks. Each has the system prompt and tools of its kind, and every turn adds to its
    conversation.
    """

    def __init__(self, n_sessions: int = 200, n_turns: int = 12, seed: int = 1, n_kinds: int = 5) -> None:
        draw = random.Random(seed)
        self._randoms = [
            random.Random(seed * 1_000_003 + session) for session in range(n_sessions)
        ]  # the same for every policy
        self._n_turns = n_turns
        self._pages = itertools.count(1)
        self._turns: dict[int, int] = {}
        system = [
            tuple(next(self._pages) for _ in range(24)) for _ in range(n_kinds)
        ]  # 1,536 tokens of instructions and tools
        self._starts = []
        at = 0.0
        for session in range(n_sessions):
            at += draw.expovariate(1.0) * 1.2
            self._starts.append(self._turn(int(at * NS), session, system[session % n_kinds]))

    def arrivals(self) -> Iterator[Arrival]:
        return iter(self._starts)

    def _turn(self, at_ns: int, session: int, before: tuple[int, ...]) -> Arrival:
        draw = self._randoms[session]
        n_new = draw.randint(2, 9)
        pages = before + tuple(next(self._pages) for _ in range(n_new))
        self._turns[session] = self._turns.get(session, 0) + 1
        n_answer = draw.randint(20, 120)
        return Arrival(at_ns, f"a{session % 20}", pages, len(pages) * PAGE + draw.randint(1, 63), n_answer, 0, session)

    def follow(self, arrival: Arrival, now_ns: int) -> Arrival | None:
        """Return the next turn: a tool ran for some seconds, and its output is sent back."""
        if self._turns[arrival.session] >= self._n_turns:
            return None
        return self._turn(
            now_ns + int(self._randoms[arrival.session].expovariate(1 / 3) * NS), arrival.session, arrival.pages
        )


class UniformTrace:
    """Requests that have nothing in common, at a share of the daemons' capacity."""

    def __init__(self, setup: Setup, n_requests: int, load: float = 0.7, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._n_requests = n_requests
        prompt_ms, answer_ms = 272 * setup.token_ms, 60 * setup.step_ms
        by_sequences = setup.n_seq / (prompt_ms + answer_ms)
        self._rate = load * setup.n_nodes * min(by_sequences, 1 / prompt_ms) * 1e3  # a second

    def arrivals(self) -> Iterator[Arrival]:
        at, pages = 0.0, itertools.count(1)
        for i in range(self._n_requests):
            at += self._random.expovariate(self._rate)
            n_pages = self._random.randint(1, 7)
            yield Arrival(
                int(at * NS),
                f"a{i % 50}",
                tuple(next(pages) for _ in range(n_pages)),
                n_pages * PAGE + 16,
                self._random.randint(20, 100),
            )

    def follow(self, arrival: Arrival, now_ns: int) -> Arrival | None:
        return None


def agent(
    policy: str, setup: Setup | None = None, n_sessions: int = 200, n_kinds: int = 5, is_timed: bool = True
) -> Outcome:
    """Simulate sessions of agents, by default 200 on 8 daemons."""
    trace = AgentTrace(n_sessions, seed=1, n_kinds=n_kinds)
    return Simulation(setup or Setup(), policy, trace.arrivals(), trace.follow, is_timed).run()


def uniform(
    policy: str,
    setup: Setup | None = None,
    n_requests: int = 4000,
    load: float = 0.7,
    seed: int = 1,
    is_timed: bool = True,
) -> Outcome:
    setup = setup or Setup()
    trace = UniformTrace(setup, n_requests, load, seed)
    return Simulation(setup, policy, trace.arrivals(), trace.follow, is_timed).run()


def big(n_nodes: int, n_requests: int) -> Outcome:
    """Simulate many daemons, with agents and other requests at once: the cost of a choice."""
    setup = Setup(n_nodes=n_nodes, digest_ms=1000.0)
    n_sessions = n_requests // 24
    agents = AgentTrace(n_sessions, seed=1, n_kinds=20)
    others = UniformTrace(setup, n_requests - n_sessions * 12, 0.2, seed=1)
    stretch = n_sessions * 1.2 / max(1.0, (n_requests - n_sessions * 12) / others._rate)
    starts = (arrival._replace(at_ns=int(arrival.at_ns / stretch)) for arrival in agents.arrivals())
    both = heapq.merge(starts, others.arrivals(), key=lambda arrival: arrival.at_ns)

    def follow(arrival: Arrival, now_ns: int) -> Arrival | None:
        return agents.follow(arrival, now_ns) if arrival.session >= 0 else None

    return Simulation(setup, "prefix-aware", both, follow).run()
