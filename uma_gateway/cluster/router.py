"""Chooses which of several daemons answers a request.

    score = cached share of the prompt − β · (load − mean load) / max(mean load, time to read the prompt)

Load is the time, in ms, that the request would wait there: the daemon's own prediction, plus the requests sent there
since. So a request goes to the daemon that has its beginning in the cache, until waiting there costs more than reading
it again elsewhere. Then another daemon reads it and has it from then on, so the load of a popular beginning spreads
over as many daemons as it needs.

A request that finds no daemon with room waits here, in one queue per priority. The account that was served least goes
first, so an account with a thousand requests fills no daemon's queue, and another account's next request waits for only
one place.

Rules: pure. No I/O, clock or randomness: `now_ns` is given, and random draws come from a counter. The router learns
only from digests and from requests that it routed, so after a restart one digest from each daemon restores its
knowledge.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

READY = frozenset({"ready", "degraded"})  # states in which a daemon accepts requests
PRIORITIES = ("interactive", "background")
NS_PER_MS = 1_000_000
EWMA = 0.1  # weight of the latest request in the mean time that a daemon has a request
OCCUPANCY = 0.05  # a full daemon scores this share of a prompt less than an empty one, even if nothing waits at either
GUESS_MS = 1000.0  # expected time of an answer, until some have ended
FEW = 32  # most daemons with the same pages of a prompt that are compared; of more, this many are drawn at random
PAGE = 64  # tokens
CHECK_NS = 250_000_000  # interval of checks for silent daemons
INFINITE = float("inf")
WINDOW = 32  # requests at the head of a queue that may get a daemon before those ahead of them
RETRY_MS = 1000  # if no better time to retry is known
ACCOUNTS_MOST = 4096  # accounts whose use is remembered


@dataclass(frozen=True)
class RouterSettings:
    """The weights and limits of routing."""

    beta: float = 1.0  # production-stack #1035 found 1 best for both kinds of load
    # figures older than this do not show the least loaded daemon reliably: the better of two drawn ones is taken
    stale_ns: int = 1_000_000_000
    lost_ns: int = 10_000_000_000  # a daemon silent for this long gets no requests while others answer
    # requests that a daemon may have, as a multiple of its sequences: its own scheduler needs several to choose from
    slack: float = 1.0
    # the same for a request half of which is cached there: a full cluster would otherwise read it again elsewhere
    warm_slack: float = 4.0
    max_queued: int = 1024  # requests of one priority that may wait here; more are refused
    # if no daemon accepts requests, they wait this long for one to come back; then they are refused
    closed_ns: int = 60_000_000_000


class Ask(NamedTuple):
    """What routing needs to know about a request. Each attempt at a request has its own id."""

    id: str
    account: str
    priority: int  # index into PRIORITIES
    group: str  # group of daemons that can answer it: the same model and template
    pages: tuple[int, ...]  # hashes of its prompt, one per page (`prefix_hashes`)
    n_tokens: int  # length of its prompt
    deadline_ns: int = 0  # 0: none
    avoid: frozenset[str] = frozenset()  # daemons that refused it, and that are used only if no others are open
    lost: frozenset[str] = frozenset()  # daemons that lost it, and that are used only if no others have room
    has_waited: bool = False  # it had its turn before: it goes before its account's other requests, and is not refused


class Choice(NamedTuple):
    node: str
    n_cached: int  # tokens of the prompt that the daemon should have


class Refusal(NamedTuple):
    """No daemon can take the request."""

    reason: str  # overloaded, unavailable, timeout
    retry_after_ms: int


@dataclass(slots=True, eq=False)
class _Sent:
    """A request that a daemon has."""

    ask: Ask
    node: _Node
    t_ns: int
    ms: float  # predicted work before its first token
    charged_ms: float  # charged to its account


@dataclass(slots=True, eq=False)
class _Node:
    id: str
    bit: int  # its number in its group
    group: _Group
    is_open: bool = False
    is_lost: bool = False  # it is silent
    is_told: bool = False  # `check` has logged the silence
    heard_ns: int = 0  # when its last digest was requested; 0: never
    spoke_ns: int = 0  # when that digest came
    waits: tuple[float, float] = (0.0, 0.0)  # ms by priority, as the daemon reported them
    loads: list[float] = field(default_factory=lambda: [0.0, 0.0])  # ms by priority, including requests sent since
    n_foreign: int = 0  # requests that did not come from this router
    n_ours: list[int] = field(default_factory=lambda: [0, 0])  # by priority
    n_seq: int = 1
    n_most: float = INFINITE  # requests that it accepts in all
    token_ms: float = 0.0
    sent: dict[str, _Sent] = field(default_factory=dict)  # our requests that it has
    known: set[int] = field(default_factory=set)  # pages that it reported
    hoped: dict[int, int] = field(default_factory=dict)  # pages of requests that were sent: number of requests per page
    # end times of requests and their pages, which are assumed to be cached until the daemon reports them
    ended: deque[tuple[int, tuple[int, ...]]] = field(default_factory=deque)

    @property
    def n_requests(self) -> int:
        return self.n_foreign + self.n_ours[0] + self.n_ours[1]

    def n_places(self, slack: float) -> float:
        """Return the number of requests that it may have before others wait here."""
        return min(self.n_seq * (1 + slack), self.n_most)

    def has_room(self, priority: int, slack: float) -> bool:
        """Whether it has room for a request. Background work never keeps interactive work out, because the daemon
        prefers interactive work.
        """
        n = self.n_foreign + self.n_ours[0] + (self.n_ours[1] if priority else 0)
        return n < self.n_seq * (1 + slack) and self.n_requests < self.n_most


class _Group:
    """Daemons that give the same answers, and the requests that wait for one of them."""

    def __init__(self) -> None:
        self.nodes: list[_Node | None] = []  # by bit
        self.holders: dict[int, int] = {}  # page -> the daemons that have it, one bit each
        self.queues = (FairQueue(), FairQueue())
        self.open = 0  # the daemons that accept requests, by bit
        self.t_open_ns = 0  # last time at which a daemon accepted requests
        self.usable = [0, 0]  # by priority: the daemons that have room for a request ...
        self.warm = [0, 0]  # ... and those that have room for one that is cached there
        # by priority and bit: load, plus a little for occupancy; infinite: not usable
        self.cold: tuple[list[float], list[float]] = ([], [])
        self.sums = [0.0, 0.0]  # loads of the usable daemons, by priority

    def join(self, node_id: str) -> _Node:
        bit = next((i for i, node in enumerate(self.nodes) if node is None), len(self.nodes))
        if bit == len(self.nodes):
            self.nodes.append(None)
            for cold in self.cold:
                cold.append(INFINITE)
        node = self.nodes[bit] = _Node(node_id, bit, self)
        return node

    def leave(self, node: _Node) -> None:
        node.is_open = False
        self.refresh(node, RouterSettings())
        for page in node.known | node.hoped.keys():
            self.unhold(page, node)
        self.nodes[node.bit] = None

    @property
    def is_empty(self) -> bool:
        return not any(self.nodes)

    def refresh(self, node: _Node, settings: RouterSettings) -> None:
        """Update the figures of the group after a change of this daemon."""
        bit = 1 << node.bit
        is_open = node.is_open and not node.is_lost
        self.open = self.open | bit if is_open else self.open & ~bit
        for priority in (0, 1):
            is_usable = is_open and node.has_room(priority, settings.slack)
            is_warm = is_open and node.has_room(priority, max(settings.slack, settings.warm_slack))
            self.warm[priority] = self.warm[priority] | bit if is_warm else self.warm[priority] & ~bit
            had = self.cold[priority][node.bit]
            self.usable[priority] = self.usable[priority] | bit if is_usable else self.usable[priority] & ~bit
            if had != INFINITE:
                self.sums[priority] -= had
            now = node.loads[priority] + OCCUPANCY * node.n_requests / node.n_seq if is_usable else INFINITE
            self.cold[priority][node.bit] = now
            if now != INFINITE:
                self.sums[priority] += now

    def hold(self, page: int, node: _Node) -> None:
        self.holders[page] = self.holders.get(page, 0) | 1 << node.bit

    def unhold(self, page: int, node: _Node) -> None:
        left = self.holders.get(page, 0) & ~(1 << node.bit)
        if left:
            self.holders[page] = left
        else:
            self.holders.pop(page, None)


class Router:
    """See the module's docstring."""

    def __init__(self, settings: RouterSettings | None = None, seed: int = 1) -> None:
        self.settings = settings or RouterSettings()
        self._nodes: dict[str, _Node] = {}
        self._groups: dict[str, _Group] = {}
        self._sent: dict[str, _Sent] = {}
        self._service_ms = GUESS_MS  # how long a daemon has a request, on average
        self._draw = seed
        self._t_checked_ns = 0

    # the daemons

    def add(self, node_id: str, group: str) -> None:
        """Add a daemon; it gets requests after its first digest. Those under another model are forgotten."""
        node = self._nodes.get(node_id)
        if node is not None and self._groups.get(group) is node.group:
            return
        self.remove(node_id)
        self._nodes[node_id] = self._groups.setdefault(group, _Group()).join(node_id)

    def remove(self, node_id: str) -> list[str]:
        """Remove a daemon. Returns the requests that it had, and forgets them."""
        node = self._nodes.pop(node_id, None)
        if node is None:
            return []
        node.group.leave(node)
        for request_id in node.sent:
            del self._sent[request_id]
        for name, group in list(self._groups.items()):
            if group.is_empty and not group.queues[0] and not group.queues[1]:
                del self._groups[name]
        return list(node.sent)

    def shut(self, node_id: str) -> None:
        """Send a daemon that drains or is gone no more requests until its next digest. It keeps those that it has."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.is_open = False
            node.group.refresh(node, self.settings)

    def heard(self, node_id: str, digest: Mapping[str, Any], t_asked_ns: int, now_ns: int = 0) -> None:
        """Take a reply of `digest`. `t_asked_ns`: it includes all requests sent before that time. `now_ns`: when it
        came; 0: at once.
        """
        node = self._nodes[node_id]
        node.heard_ns, node.is_lost = max(1, t_asked_ns), False
        node.spoke_ns = max(node.heard_ns, now_ns)
        node.is_told = False
        node.group.t_open_ns = node.group.t_open_ns or t_asked_ns
        node.is_open = digest["state"] in READY
        node.n_seq, node.token_ms = max(1, digest["n_seq_max"]), digest["token_ms"]
        node.n_most = digest.get("max_requests", INFINITE)
        n_all = digest["active"] + sum(digest["queued"].values())
        node.n_foreign = max(0, n_all - sum(sent.t_ns < t_asked_ns for sent in node.sent.values()))
        self._learn_pages(node, digest)
        while node.ended and node.ended[0][0] < t_asked_ns:
            self._hope(node, node.ended.popleft()[1], -1)
        node.waits = (digest["wait_ms"][PRIORITIES[0]], digest["wait_ms"][PRIORITIES[1]])
        node.loads = list(node.waits)
        for sent in node.sent.values():
            if sent.t_ns >= t_asked_ns:
                _add_load(node, sent.ask.priority, sent.ms)
        node.group.refresh(node, self.settings)

    @staticmethod
    def _learn_pages(node: _Node, digest: Mapping[str, Any]) -> None:
        added = {int(page, 16) for page in digest["added"]}
        removed = node.known - added if digest["is_whole"] else {int(page, 16) for page in digest["removed"]}
        for page in added - node.known:
            node.group.hold(page, node)
        node.known |= added
        node.known -= removed
        for page in removed:
            if page not in node.hoped:
                node.group.unhold(page, node)

    @staticmethod
    def _hope(node: _Node, pages: tuple[int, ...], n: int) -> None:
        """Expect these pages at the daemon (n = 1), or take that back (n = -1)."""
        hoped, known, group = node.hoped, node.known, node.group
        for page in pages:
            count = hoped.get(page, 0) + n
            if count > 0:
                hoped[page] = count
                if count == n:
                    group.hold(page, node)
            else:
                hoped.pop(page, None)
                if page not in known:
                    group.unhold(page, node)

    def check(self, now_ns: int) -> list[str]:
        """Find silent daemons: they get no requests until they answer. Each is logged once."""
        self._find_lost(now_ns)
        found = [node for node in self._nodes.values() if node.is_lost and not node.is_told]
        for node in found:
            node.is_told = True
        return [node.id for node in found]

    def _find_lost(self, now_ns: int) -> None:
        self._t_checked_ns = now_ns
        for node in self._nodes.values():
            if node.heard_ns and not node.is_lost and now_ns - node.spoke_ns > self.settings.lost_ns:
                node.is_lost = True
                node.group.refresh(node, self.settings)

    # choosing

    def choose(self, ask: Ask, now_ns: int) -> Choice | None:
        """Return the best daemon with room for a request; None: no daemon has room. The request is not changed."""
        if now_ns - self._t_checked_ns > CHECK_NS:
            self._find_lost(now_ns)
        group = self._groups.get(ask.group)
        if group is None:
            return None
        usable, warm = group.usable[ask.priority], group.warm[ask.priority]
        others = group.open & ~self._bits(ask.avoid, group)
        if others:
            usable, warm = usable & others, warm & others
        rest = warm & ~self._bits(ask.lost, group)
        choice = self._best(ask, group, (usable & rest, rest), now_ns) if rest else None
        if choice is None and warm != rest:  # a daemon that has come back is better than waiting
            choice = self._best(ask, group, (usable, warm), now_ns)
        return choice

    def _bits(self, names: frozenset[str], group: _Group) -> int:
        nodes = (self._nodes.get(name) for name in names)
        return sum(1 << node.bit for node in nodes if node is not None and node.group is group)

    def _best(self, ask: Ask, group: _Group, masks: tuple[int, int], now_ns: int) -> Choice | None:
        priority, n_tokens, beta = ask.priority, max(1, ask.n_tokens), self.settings.beta
        mean = max(0.0, group.sums[priority]) / max(1, group.usable[priority].bit_count())
        best, best_score, best_cached = None, -INFINITE, 0
        for bit, n_cached in self._candidates(ask, group, masks, now_ns):
            node = group.nodes[bit]
            assert node is not None
            load = node.loads[priority]
            scale = max(mean, n_tokens * node.token_ms, 1.0)
            score = n_cached / n_tokens - beta * (load - mean) / scale - OCCUPANCY * node.n_requests / node.n_seq
            if score > best_score:
                best, best_score, best_cached = node, score, n_cached
        return Choice(best.id, min(best_cached, ask.n_tokens)) if best is not None else None

    def _candidates(self, ask: Ask, group: _Group, masks: tuple[int, int], now_ns: int) -> Iterator[tuple[int, int]]:
        """Yield (bit, tokens of the prompt that it has) for daemons that have a part of the prompt, and for the least
        loaded ones.

        A page stands for all pages before it.
        """
        usable, warm = masks
        left, n_warm = warm, ask.n_tokens // (2 * PAGE)
        for bit in self._coldest(group, usable, ask.priority, now_ns) if usable else ():
            left &= ~(1 << bit)
            yield (
                bit,
                next(
                    (
                        PAGE * (i + 1)
                        for i in range(len(ask.pages) - 1, -1, -1)
                        if group.holders.get(ask.pages[i], 0) >> bit & 1
                    ),
                    0,
                ),
            )
        for i in range(len(ask.pages) - 1, -1, -1):
            mask = group.holders.get(ask.pages[i], 0) & (left if i >= n_warm else left & usable)
            if mask:
                left &= ~mask
                yield from ((bit, PAGE * (i + 1)) for bit in self._few(mask))

    def _few(self, mask: int) -> Iterator[int]:
        """Yield bits of the mask: all of them if they are few, otherwise some from a random place on."""
        if mask.bit_count() > FEW:
            at = self._random(mask.bit_length())
            upper = mask >> at << at
            mask = upper if upper.bit_count() >= FEW else mask
        for _ in range(min(FEW, mask.bit_count())):
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def _coldest(self, group: _Group, usable: int, priority: int, now_ns: int) -> tuple[int, ...]:
        """Return daemons to try besides those that have the prompt: the least loaded one if its figures are fresh, two
        drawn ones if they are old.

        With old figures, all routers would send to the daemon that looked idle a second ago. Taking the better of two
        random ones spreads the requests.
        """
        cold = group.cold[priority]
        if usable != group.usable[priority]:  # the request avoids some daemons
            cold = [load if usable >> bit & 1 else INFINITE for bit, load in enumerate(cold)]
        bit = cold.index(min(cold))
        node = group.nodes[bit]
        assert node is not None
        if usable.bit_count() <= 2 or now_ns - node.heard_ns <= self.settings.stale_ns:
            return (bit,)
        return self._drawn(usable), self._drawn(usable)

    def _drawn(self, mask: int) -> int:
        """Return the first set bit from a random place on."""
        at = self._random(mask.bit_length())
        mask = mask >> at << at or mask
        return (mask & -mask).bit_length() - 1

    def _random(self, n: int) -> int:
        """Return a number from splitmix64 of a counter."""
        self._draw = (self._draw + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = self._draw
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return (z ^ (z >> 31)) % n

    # the requests

    def offer(self, ask: Ask, now_ns: int) -> Choice | Refusal | None:
        """Take a request. It then is with the chosen daemon, waits for `ready` (None), or is refused."""
        group = self._groups.get(ask.group)
        if group is None:
            return Refusal("unavailable", RETRY_MS)
        queue = group.queues[ask.priority]
        if not group.queues[0] and (ask.priority == 0 or not queue):
            choice = self.choose(ask, now_ns)
            if choice is not None:
                return self._send(ask, choice, now_ns)
        if len(queue) >= self.settings.max_queued and not ask.has_waited:
            return Refusal("overloaded", max(250, int(self.wait_ms(ask))))
        queue.push(ask)
        return None

    def ready(self, now_ns: int) -> Iterator[tuple[Ask, Choice | Refusal]]:
        """Yield the requests that no longer wait: they now have a daemon, or their time has passed."""
        for name, group in list(self._groups.items()):
            if group.open:
                group.t_open_ns = now_ns
            for priority, queue in enumerate(group.queues):
                for late in queue.expired(now_ns):
                    yield late, Refusal("timeout", 0)
                passed: list[Ask] = []  # requests whose daemons have no room
                while group.warm[priority] and len(passed) < WINDOW and (ask := queue.pop()) is not None:
                    choice = self.choose(ask, now_ns)
                    if choice is None:
                        passed.append(ask)
                    else:
                        yield ask, self._send(ask, choice, now_ns)
                for each in reversed(passed):
                    queue.put_back(each)
            if group.is_empty or now_ns - group.t_open_ns > self.settings.closed_ns:
                for queue in group.queues:
                    while (left := queue.pop()) is not None:
                        yield left, Refusal("unavailable", RETRY_MS)
            if group.is_empty:
                self._groups.pop(name, None)

    def _send(self, ask: Ask, choice: Choice, now_ns: int) -> Choice:
        node = self._nodes[choice.node]
        ms = max(0, ask.n_tokens - choice.n_cached) * node.token_ms
        if node.n_requests >= node.n_seq:
            ms += self._service_ms / node.n_seq
        charged_ms = self._service_ms
        self._sent[ask.id] = node.sent[ask.id] = _Sent(ask, node, now_ns, ms, charged_ms)
        node.n_ours[ask.priority] += 1
        _add_load(node, ask.priority, ms)
        self._hope(node, ask.pages, 1)
        node.group.refresh(node, self.settings)
        node.group.queues[ask.priority].served(ask.account, charged_ms)
        return choice

    def ended(self, request_id: str, now_ns: int, has_read: bool = True) -> None:
        """Note that a request is no longer with its daemon, or has stopped waiting.

        `has_read`: its prompt was read, so its pages stay there for a while.
        """
        sent = self._sent.pop(request_id, None)
        if sent is None:
            for group in self._groups.values():
                for queue in group.queues:
                    queue.forget(request_id)
            return
        node, priority = sent.node, sent.ask.priority
        del node.sent[request_id]
        node.n_ours[priority] -= 1
        if sent.t_ns >= node.heard_ns:
            _add_load(node, priority, -sent.ms)
        ms = (now_ns - sent.t_ns) / NS_PER_MS
        if has_read:
            self._service_ms += EWMA * (ms - self._service_ms)
            node.ended.append((now_ns, sent.ask.pages))
        else:
            self._hope(node, sent.ask.pages, -1)
        node.group.refresh(node, self.settings)
        node.group.queues[priority].served(sent.ask.account, ms - sent.charged_ms)

    # what others ask about it

    def is_open(self, node_id: str) -> bool:
        """Whether a daemon accepts requests."""
        node = self._nodes.get(node_id)
        return node is not None and node.is_open and not node.is_lost

    def is_silent(self, node_id: str) -> bool:
        """Whether a daemon has said nothing for so long that it counts as lost."""
        node = self._nodes.get(node_id)
        return node is not None and node.is_lost

    def n_requests(self, node_id: str) -> int:
        """Return the number of requests that a daemon has, as far as known."""
        node = self._nodes.get(node_id)
        return 0 if node is None else node.n_requests

    def positions(self, group: str) -> dict[str, int]:
        """Return, for each request that waits for a group, how many of its priority are ahead of it."""
        found = self._groups.get(group)
        return (
            {ask.id: i for queue in found.queues for i, ask in enumerate(queue.in_turn())} if found is not None else {}
        )

    def wait_ms(self, ask: Ask, position: int | None = None) -> float:
        """Return how long a request waits here for a place, from the mean time that a daemon has a request. `position`:
        how many requests of its priority are ahead of it; None: all that wait.
        """
        group = self._groups.get(ask.group)
        if group is None:
            return 0.0
        slack = self.settings.slack
        n_places = sum(node.n_places(slack) for node in group.nodes if node is not None and group.open >> node.bit & 1)
        n_before = len(group.queues[ask.priority]) if position is None else position
        n_before += len(group.queues[0]) if ask.priority else 0
        return (n_before + 1) * self._service_ms / max(1.0, n_places)

    @property
    def n_waiting(self) -> int:
        return sum(len(queue) for group in self._groups.values() for queue in group.queues)

    def node_of(self, request_id: str) -> str | None:
        """Return the daemon that has a request; None: no daemon has it."""
        sent = self._sent.get(request_id)
        return None if sent is None else sent.node.id

    def table(self, now_ns: int) -> list[dict[str, Any]]:
        """Return one row per daemon, for people."""
        return [
            {
                "node": node.id,
                "is_open": node.is_open and not node.is_lost,
                "age_ms": round((now_ns - node.heard_ns) / NS_PER_MS, 1) if node.heard_ns else None,
                "load_ms": {priority: round(load, 1) for priority, load in zip(PRIORITIES, node.loads, strict=True)},
                "requests": node.n_requests,
                "sequences": node.n_seq,
                "pages": len(node.known),
            }
            for node in self._nodes.values()
        ]


def _add_load(node: _Node, priority: int, ms: float) -> None:
    """Add load. Interactive work delays requests of both priorities, background work only those of its own."""
    for each in range(priority, len(PRIORITIES)):
        node.loads[each] = max(0.0, node.loads[each] + ms)


class FairQueue:
    """Waiting requests in start-time fair queueing (Goyal, Vin, Cheng 1996): the account that used least goes first,
    and within an account the oldest request. An account that returns begins at the current virtual time, so no account
    can save up a claim.
    """

    def __init__(self) -> None:
        self._asks: dict[str, OrderedDict[str, Ask]] = {}  # by account, then by id
        self._account_of: dict[str, str] = {}
        self._used: dict[str, float] = {}  # ms by account
        self._time = 0.0  # virtual: the start of the account that was served last
        self._deadlines: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._account_of)

    def push(self, ask: Ask) -> None:
        if ask.has_waited:
            self.put_back(ask)
        else:
            self._asks.setdefault(ask.account, OrderedDict())[ask.id] = ask
            self._account_of[ask.id] = ask.account
        if ask.deadline_ns:
            heappush(self._deadlines, (ask.deadline_ns, ask.id))

    def put_back(self, ask: Ask) -> None:
        """Put a request before all others of its account. If it was popped, its deadline is still known."""
        asks = self._asks.setdefault(ask.account, OrderedDict())
        asks[ask.id] = ask
        asks.move_to_end(ask.id, last=False)
        self._account_of[ask.id] = ask.account

    def _start(self, account: str) -> float:
        return max(self._used.get(account, 0.0), self._time)

    def pop(self) -> Ask | None:
        """Take the request whose turn it is."""
        if not self._asks:
            return None
        account = min(self._asks, key=self._start)
        ask = next(iter(self._asks[account].values()))
        self.forget(ask.id)
        return ask

    def forget(self, request_id: str) -> Ask | None:
        account = self._account_of.pop(request_id, None)
        if account is None:
            return None
        asks = self._asks[account]
        ask = asks.pop(request_id)
        if not asks:
            del self._asks[account]
        return ask

    def served(self, account: str, ms: float) -> None:
        """Charge an account with this much; negative: it used less than was predicted."""
        start = self._start(account)
        if ms >= 0:
            self._time = start
        self._used[account] = start + ms
        if len(self._used) > ACCOUNTS_MOST:  # an account that is not ahead of the virtual time would begin there anyway
            self._used = {name: used for name, used in self._used.items() if used > self._time}

    def in_turn(self) -> list[Ask]:
        """Return all waiting requests, in the order in which they would be served if all took equally long."""
        heap = [(self._start(account), i, account) for i, account in enumerate(self._asks)]
        heap.sort()
        left = {account: deque(asks.values()) for account, asks in self._asks.items()}
        order = []
        while heap:
            at, i, account = heappop(heap)
            order.append(left[account].popleft())
            if left[account]:
                heappush(heap, (at + GUESS_MS, i, account))
        return order

    def expired(self, now_ns: int) -> Iterator[Ask]:
        """Take out the requests whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            ask = self.forget(heappop(self._deadlines)[1])
            if ask is not None:
                yield ask
