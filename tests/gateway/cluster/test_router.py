"""The router alone: which daemon it prefers, what it remembers, and which request waits for which."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uma_gateway.cluster.router import PAGE, Ask, Choice, Refusal, Router, RouterSettings

S = 1_000_000_000
PROMPT = tuple(range(100, 116))  # 16 pages


def digest(
    pages: tuple[int, ...] = (), wait: float = 0.0, background: float | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "state": "ready",
        "n_seq_max": 4,
        "token_ms": 1.0,
        "wait_ms": {"interactive": wait, "background": wait if background is None else background},
        "queued": {"interactive": 0, "background": 0},
        "active": 0,
        "is_whole": True,
        "added": [f"{page:016x}" for page in pages],
        "removed": [],
        **fields,
    }


def ask(name: str = "r", pages: tuple[int, ...] = PROMPT, account: str = "a", priority: int = 0, **fields: Any) -> Ask:
    return Ask(name, account, priority, "m", pages, len(pages) * PAGE + 1, **fields)


def routers(*digests: dict[str, Any], settings: RouterSettings | None = None, now: int = S) -> Router:
    router = Router(settings)
    for i, each in enumerate(digests):
        router.add(f"n{i}", "m")
        router.heard(f"n{i}", each, now)
    return router


def node_of(router: Router, request: Ask, now: int = S) -> str:
    choice = router.offer(request, now)
    assert isinstance(choice, Choice)
    return choice.node


def test_a_prompt_goes_where_it_is_cached() -> None:
    router = routers(digest(), digest(PROMPT[:4]), digest(PROMPT[:12]), digest(tuple(range(16))))
    choice = router.offer(ask(), S)
    assert choice == Choice("n2", 12 * PAGE)


def test_until_waiting_there_costs_more_than_reading_it_anew() -> None:
    assert node_of(routers(digest(), digest(PROMPT, wait=500.0)), ask()) == "n1"
    assert node_of(routers(digest(), digest(PROMPT, wait=3000.0)), ask()) == "n0"


def test_without_anything_cached_the_least_loaded_gets_it() -> None:
    assert node_of(routers(digest(wait=50), digest(wait=5), digest(wait=70)), ask()) == "n1"


def test_the_wait_of_a_requests_own_priority_counts() -> None:
    waits = digest(wait=0, background=5000), digest(wait=100, background=100)
    assert node_of(routers(*waits), ask(priority=0)) == "n0"
    assert node_of(routers(*waits), ask(priority=1)) == "n1"


def test_a_session_stays_where_it_began_before_any_digest_says_so() -> None:
    router = routers(*[digest() for _ in range(8)])
    first = node_of(router, ask("r0"))
    for turn in range(1, 5):
        router.ended(f"r{turn - 1}", S + turn)
        longer = PROMPT + tuple(range(200, 200 + turn))
        assert node_of(router, ask(f"r{turn}", longer), S + turn) == first


def test_what_was_hoped_for_is_forgotten_when_the_daemon_does_not_have_it() -> None:
    router = routers(digest(), digest())
    node = node_of(router, ask("r"))
    router.ended("r", S + 1)
    router.heard(node, digest(), 2 * S)
    choice = router.choose(ask("again"), 2 * S)
    assert choice is not None and choice.n_cached == 0


def test_a_popular_beginning_spreads_over_several_daemons() -> None:
    router = routers(digest(PROMPT), *[digest() for _ in range(7)])
    count: dict[str, int] = {}
    for i in range(32):
        node = node_of(router, ask(f"r{i}", (*PROMPT, 1000 + i)))
        count[node] = count.get(node, 0) + 1
    assert len(count) == 8 and max(count.values()) <= 8


def test_stale_figures_do_not_send_everybody_to_one_daemon() -> None:
    """The routers do not know of each other, and all have the same old figures."""
    count: dict[str, int] = {}
    for seed in range(200):
        router = Router(seed=seed)
        for i in range(10):
            router.add(f"n{i}", "m")
            router.heard(f"n{i}", digest(wait=0.0 if i == 3 else 40.0), S)
        choice = router.choose(ask(pages=()), 4 * S)
        assert choice is not None
        count[choice.node] = count.get(choice.node, 0) + 1
    assert len(count) == 10 and 20 <= count["n3"] <= 70


def test_a_silent_daemon_gets_nothing_while_others_speak() -> None:
    router = routers(digest(PROMPT), digest())
    router.heard("n1", digest(), 20 * S)
    assert node_of(router, ask(), 20 * S) == "n1"
    router.heard("n0", digest(PROMPT), 21 * S)
    assert node_of(router, ask("again"), 21 * S) == "n0"


def test_a_silent_daemon_is_told_once_whoever_found_it() -> None:
    router = routers(digest(), digest())
    router.heard("n1", digest(), 20 * S)
    assert node_of(router, ask(), 20 * S) == "n1", "which looked for silent ones"
    assert router.check(20 * S) == ["n0"]
    assert router.check(21 * S) == []
    router.heard("n0", digest(), 21 * S)
    assert router.check(21 * S) == []
    assert router.check(32 * S) == ["n0", "n1"]


def test_a_daemon_that_drains_gets_nothing_and_keeps_what_it_has() -> None:
    router = routers(digest(PROMPT), digest())
    assert node_of(router, ask("r")) == "n0"
    router.shut("n0")
    assert node_of(router, ask("s")) == "n1"
    assert router.node_of("r") == "n0"
    router.heard("n0", digest(PROMPT, state="draining"), 2 * S)
    assert node_of(router, ask("t"), 2 * S) == "n1"
    router.heard("n0", digest(PROMPT), 3 * S)
    assert node_of(router, ask("u"), 3 * S) == "n0"


def test_a_daemon_whose_answer_came_late_has_not_been_silent_since_it_was_asked() -> None:
    router = routers(digest(), digest())
    router.heard("n0", digest(), 2 * S, 11 * S)
    assert router.check(15 * S) == ["n1"] and router.is_open("n0")
    assert router.check(22 * S) == ["n0"] and not router.is_open("n0")


def test_a_daemon_that_lost_a_request_gets_it_again_only_when_no_other_has_room() -> None:
    """It may be back and idle, while the others have as much as they take."""
    router = routers(digest(PROMPT), digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0))
    lost = frozenset({"n0"})
    assert node_of(router, ask(lost=lost)) == "n1"
    assert node_of(router, ask("s", lost=lost)) == "n0"


def test_a_daemon_that_refused_a_request_gets_it_again_only_when_no_other_is_open() -> None:
    router = routers(digest(PROMPT), digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0))
    avoid = frozenset({"n0"})
    assert node_of(router, ask(avoid=avoid)) == "n1"
    assert router.offer(ask("s", avoid=avoid), S) is None, "it waits for the other one to have room"
    router.shut("n1")
    assert [(one.id, choice.node) for one, choice in router.ready(S) if isinstance(choice, Choice)] == [("s", "n0")]


def test_requests_wait_for_daemons_to_come_back_but_not_for_ever() -> None:
    router = routers(digest())
    router.shut("n0")
    for name in ("r", "s"):
        assert router.offer(ask(name), S) is None
    assert list(router.ready(30 * S)) == [], "a daemon that crashed is back by then"
    router.heard("n0", digest(n_seq_max=1, max_requests=1), 31 * S)
    assert [one.id for one, _ in router.ready(31 * S)] == ["r"]
    router.shut("n0")
    assert list(router.ready(90 * S)) == []
    assert list(router.ready(92 * S)) == [(ask("s"), Refusal("unavailable", 1000))]


def test_a_full_cluster_needs_no_more_memory_the_longer_it_is_full() -> None:
    """A request that is popped and put back keeps its only deadline."""
    router = routers(digest(n_seq_max=1), settings=RouterSettings(slack=0.0))
    assert router.offer(ask("r", ()), S) is not None
    for i in range(100):
        assert router.offer(ask(f"w{i}", (i,), deadline_ns=1000 * S), S) is None
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(300):
            assert list(router.ready(2 * S)) == []
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
    assert len([one for one, _ in router.ready(2000 * S) if one.id.startswith("w")]) == 100, "each ends once"


def test_a_daemon_that_goes_takes_its_requests_and_pages_along() -> None:
    router = routers(digest(PROMPT), digest())
    assert node_of(router, ask("r")) == "n0"
    assert router.remove("n0") == ["r"]
    assert router.node_of("r") is None
    choice = router.offer(ask("s"), S)
    assert choice == Choice("n1", 0)
    router.add("n0", "m")  # another daemon of that name, in the same place
    router.heard("n0", digest(), 2 * S)
    router.ended("s", 2 * S)
    choice = router.choose(ask("t"), 2 * S)
    assert choice is not None and (choice.node, choice.n_cached) == ("n1", 16 * PAGE)


def test_a_router_that_starts_anew_chooses_the_same() -> None:
    digests = [digest(tuple(range(i * 50, i * 50 + 20))) for i in range(8)]
    old = routers(*digests)
    for i in range(100):
        old.offer(ask(f"r{i}", tuple(range(900 + i, 910 + i))), S)
        old.ended(f"r{i}", S)
    new = routers(*digests)
    for i in range(8):
        pages = tuple(range(i * 50, i * 50 + 20))
        assert node_of(new, ask(f"s{i}", pages)) == node_of(old, ask(f"s{i}", pages)) == f"n{i}"


def test_models_do_not_mix() -> None:
    router = routers(digest())
    router.add("other", "m2")
    router.heard("other", digest(PROMPT), S)
    assert node_of(router, ask()) == "n0"
    assert router.offer(ask()._replace(group="m3", id="x"), S) == Refusal("unavailable", 1000)


def test_what_finds_no_room_waits_and_goes_when_there_is_some() -> None:
    router = routers(digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0))
    node_of(router, ask("r0"))
    assert router.offer(ask("r1"), S) is None
    assert list(router.ready(S)) == []
    router.ended("r0", 2 * S)
    assert [(one.id, choice.node) for one, choice in router.ready(2 * S) if isinstance(choice, Choice)] == [
        ("r1", "n0")
    ]


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    router = routers(digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0, max_queued=2))
    node_of(router, ask("r"))
    assert [router.offer(ask(f"w{i}"), S) for i in range(2)] == [None, None]
    refusal = router.offer(ask("w2"), S)
    assert isinstance(refusal, Refusal) and refusal.reason == "overloaded" and refusal.retry_after_ms >= 250


def test_what_a_daemon_had_goes_before_what_none_has_had() -> None:
    """Its client has waited already, and may have read a part of the answer. It is not refused either."""
    router = routers(digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0, max_queued=2))
    node_of(router, ask("r"))
    assert [router.offer(ask(f"w{i}"), S) for i in range(2)] == [None, None]
    assert router.offer(ask("again", has_waited=True), S) is None
    assert router.positions("m") == {"again": 0, "w0": 1, "w1": 2}
    router.ended("r", 2 * S)
    assert [one.id for one, _ in router.ready(2 * S)] == ["again"]


def test_who_waits_past_its_deadline_is_told() -> None:
    router = routers(digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0))
    node_of(router, ask("r"))
    router.offer(ask("late", deadline_ns=5 * S), S)
    router.offer(ask("patient", deadline_ns=50 * S), S)
    assert list(router.ready(6 * S)) == [(ask("late", deadline_ns=5 * S), Refusal("timeout", 0))]
    assert router.n_waiting == 1


def test_a_flood_of_one_account_keeps_nobody_else_out() -> None:
    router = routers(*[digest(n_seq_max=2) for _ in range(4)], settings=RouterSettings(slack=0.0, warm_slack=0.0))
    flood = [ask(f"f{i}", (5000 + i,), "flood") for i in range(200)]
    for request in flood:
        router.offer(request, S)
    for i in range(3):
        router.offer(ask(f"n{i}", (9000 + i,), "newcomer"), S)
    running = [f"f{i}" for i in range(8)]
    served = []
    for turn in range(8):
        router.ended(running[turn], (2 + turn) * S)
        served += [one.account for one, _ in router.ready((2 + turn) * S)]
    assert served[:6].count("newcomer") == 3


def test_accounts_share_by_what_they_use_over_all_daemons() -> None:
    """One account asks for long answers, the other for short ones. Their times come out alike, not their numbers of
    requests.
    """
    router = routers(
        *[digest(n_seq_max=1) for _ in range(2)],
        settings=RouterSettings(slack=0.0, warm_slack=0.0, max_queued=10_000, lost_ns=10**15),
    )
    used = {"long": 0, "short": 0}
    lasts = {"long": 8 * S, "short": 2 * S}
    running: list[tuple[int, str, str]] = []
    now = S
    for i in range(400):
        for account in used:
            choice = router.offer(ask(f"{account}{i}", (), account), now)
            if isinstance(choice, Choice):
                running.append((now + lasts[account], f"{account}{i}", account))
    while sum(used.values()) < 600 * S:
        running.sort()
        now, request_id, account = running.pop(0)
        used[account] += lasts[account]
        router.ended(request_id, now)
        running += [
            (now + lasts[one.account], one.id, one.account)
            for one, choice in router.ready(now)
            if isinstance(choice, Choice)
        ]
    assert 0.8 < used["long"] / used["short"] < 1.25


def test_background_work_waits_for_interactive_work_and_never_keeps_it_out() -> None:
    router = routers(digest(n_seq_max=2), settings=RouterSettings(slack=0.0, warm_slack=0.0))
    for i in range(4):
        router.offer(ask(f"b{i}", (), priority=1), S)
    assert node_of(router, ask("i0", ())) == "n0"
    assert node_of(router, ask("i1", ())) == "n0"
    assert router.offer(ask("i2", ()), S) is None
    for request_id in ("b0", "b1", "i0"):
        router.ended(request_id, 2 * S)
    assert [one.id for one, _ in router.ready(2 * S)] == ["i2"]


def test_positions_are_told_in_the_order_in_which_requests_go() -> None:
    router = routers(digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0))
    node_of(router, ask("r", account="a"))
    for name, account in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        router.offer(ask(name, account=account), S)
    places = router.positions("m")
    assert sorted(places.values()) == [0, 1, 2, 3] and places["b1"] < places["a1"] < places["a2"]
    router.ended("a1", S)
    assert "a1" not in router.positions("m")


@pytest.mark.parametrize("slack", [0.0, 1.0, 3.0])
def test_the_wait_that_is_told_is_the_wait_that_comes(slack: float) -> None:
    """One daemon answers two requests at once, a second each. A second daemon has fallen silent."""
    router = routers(digest(n_seq_max=2), digest(n_seq_max=2), settings=RouterSettings(slack=slack, warm_slack=0.0))
    told, placed = {}, {}
    has: list[str] = []  # in order of arrival
    for second in range(12, 120):
        now = second * S
        for name in has[:2]:
            router.ended(name, now)
        del has[:2]
        n = len(has)
        router.heard("n0", digest(n_seq_max=2, active=n), now)
        for each, choice in router.ready(now):
            assert isinstance(choice, Choice) and choice.node == "n0"
            placed[each.id] = second
            has.append(each.id)
        n_new = 2 if second > 30 else 4  # the queue grows, then keeps its length
        for request in (ask(f"r{second}-{i}", ()) for i in range(n_new)):
            if isinstance(router.offer(request, now), Choice):
                has.append(request.id)
            else:
                place = router.positions("m")[request.id]
                told[request.id] = second, router.wait_ms(request, place) / 1e3, router.wait_ms(request) / 1e3
    late = [(placed[name] - second, wait, last) for name, (second, wait, last) in told.items() if name in placed]
    assert len(late) > 100
    assert all(wait == pytest.approx(true, abs=2.0) and last >= wait for true, wait, last in late[-40:])


def test_who_is_nearer_its_turn_is_told_a_shorter_wait() -> None:
    router = routers(digest(n_seq_max=1), settings=RouterSettings(slack=0.0, warm_slack=0.0))
    node_of(router, ask("r"))
    for name, priority in (("i0", 0), ("i1", 0), ("b0", 1)):
        assert router.offer(ask(name, priority=priority), S) is None
    assert [router.wait_ms(ask(), n) for n in (0, 1)] == [1000.0, 2000.0]
    assert router.wait_ms(ask()) == 3000.0 and router.wait_ms(ask(priority=1), 0) == 3000.0


events = ["offer", "end", "lost", "hear", "remove", "add", "drain", "ready"]
steps = st.lists(st.tuples(st.sampled_from(events), st.integers(0, 7), st.integers(0, 3)), max_size=120)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_nothing_is_lost_or_answered_twice(script: list[tuple[str, int, int]]) -> None:
    """Whatever happens in whatever order, a request either waits, is with a daemon that exists, or has been given
    back.
    """
    router, now, n = Router(RouterSettings(slack=0.5, max_queued=6)), S, 0
    waiting: set[str] = set()
    placed: dict[str, str] = {}
    nodes: set[str] = set()

    def note(request: str, choice: Choice | Refusal | None) -> None:
        waiting.discard(request)
        if isinstance(choice, Choice):
            assert choice.node in nodes and request not in placed
            placed[request] = choice.node
        elif choice is None:
            waiting.add(request)

    for what, which, priority in script:
        now += S // 3
        name = f"n{which % 4}"
        if what == "offer":
            n += 1
            note(f"r{n}", router.offer(ask(f"r{n}", PROMPT[: which + 1], f"a{priority}", priority % 2), now))
        elif what in ("end", "lost") and placed:
            request = sorted(placed)[which % len(placed)]
            del placed[request]
            router.ended(request, now, what == "end")
        elif what == "hear" and name in nodes:
            router.heard(name, digest(PROMPT[:which], n_seq_max=1 + priority, active=priority), now)
        elif what == "drain":
            router.shut(name)
        elif what == "remove":
            nodes.discard(name)
            for request in router.remove(name):
                assert placed.pop(request) == name
        elif what == "add":
            nodes.add(name)
            router.add(name, "m")
        for one, choice in router.ready(now):
            assert one.id in waiting
            note(one.id, choice)
        assert router.n_waiting == len(waiting)
        assert {request: router.node_of(request) for request in placed} == placed
    for request in list(placed):
        router.ended(request, now)
    for name in nodes:
        router.heard(name, digest(n_seq_max=100), now + S)
    for one, choice in router.ready(now + S):
        note(one.id, choice)
    assert not waiting or not nodes


@pytest.mark.parametrize("n_nodes", [1, 40, 300])
def test_many_daemons_with_the_same_beginning(n_nodes: int) -> None:
    """All prompts share a system prompt. The router still picks the least loaded of the daemons that have it."""
    router = routers(*[digest(PROMPT, wait=10.0 + i % 7 if i != 5 else 0.0) for i in range(n_nodes)])
    choice = router.choose(ask(), S)
    assert choice is not None and choice.n_cached == 16 * PAGE
    assert choice.node == ("n5" if n_nodes > 5 else "n0")


def test_in_a_full_cluster_a_cached_prompt_still_goes_where_it_is_cached() -> None:
    router = routers(digest(PROMPT, n_seq_max=1), digest(n_seq_max=1), settings=RouterSettings(slack=0.0))
    for i in range(2):
        assert isinstance(router.offer(ask(f"r{i}", ()), S), Choice)
    assert router.offer(ask("cold", (7, 8, 9)), S) is None
    router.ended("cold", S)
    assert node_of(router, ask("warm")) == "n0"


def test_a_daemon_gets_no_more_than_it_takes() -> None:
    router = routers(digest(PROMPT, max_requests=3), digest(PROMPT, max_requests=2))
    placed = [router.offer(ask(f"r{i}"), S) for i in range(7)]
    assert sorted(choice.node for choice in placed if isinstance(choice, Choice)) == ["n0", "n0", "n0", "n1", "n1"]
    assert placed[5:] == [None, None]
