from __future__ import annotations

import socket
import threading

import pytest

from uma_core.clock import ManualClock
from uma_core.server.io.loop import READ, WRITE, Loop, Wakeup


@pytest.fixture
def clock():
    return ManualClock(1_000)


@pytest.fixture
def loop(clock):
    loop = Loop(clock)
    yield loop
    loop.close()


@pytest.fixture
def pair():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_timers_run_in_order_of_their_time(loop, clock):
    ran = []
    for delay in (300, 100, 200):
        loop.call_later(delay, lambda delay=delay: ran.append(delay))
    loop.turn(0)
    assert ran == []
    clock.advance(200)
    loop.turn(0)
    assert ran == [100, 200]
    clock.advance(100)
    loop.turn(0)
    assert ran == [100, 200, 300]


def test_a_cancelled_timer_does_not_run(loop, clock):
    ran = []
    timer = loop.call_later(100, lambda: ran.append(1))
    timer.cancel()
    timer.cancel()
    clock.advance(200)
    loop.turn(0)
    assert ran == []


def test_a_timer_may_start_another(loop, clock):
    ran = []
    loop.call_later(1, lambda: loop.call_later(0, lambda: ran.append("second")))
    clock.advance(1)
    loop.turn(0)
    assert ran == ["second"]


def test_many_cancelled_timers_do_not_pile_up(loop):
    for _ in range(10_000):
        loop.call_later(10**15, lambda: None).cancel()
    assert len(loop._timers) < 5_000


def test_ready_sockets_are_called(loop, pair):
    seen = []
    loop.watch(pair[0], READ, lambda events: seen.append(events))
    loop.turn(0)
    assert seen == []
    pair[1].send(b"x")
    loop.turn(0)
    assert seen == [READ]
    loop.watch(pair[0], READ | WRITE, lambda events: seen.append(events))
    loop.turn(0)
    assert seen == [READ, READ | WRITE]
    loop.watch(pair[0], 0, lambda events: None)
    loop.turn(0)
    assert len(seen) == 2


def test_a_socket_closed_by_an_earlier_callback_is_not_called(loop):
    pairs = [socket.socketpair() for _ in range(2)]
    seen = []

    def close_both(mine):
        def callback(events):
            seen.append(mine)
            for a, _ in pairs:
                loop.watch(a, 0, callback)
                a.close()

        return callback

    for n, (a, b) in enumerate(pairs):
        loop.watch(a, READ, close_both(n))
        b.send(b"x")
    loop.turn(0)
    assert len(seen) == 1
    for _, b in pairs:
        b.close()


def test_a_failing_callback_does_not_end_the_loop(loop, pair, clock, caplog):
    ran = []
    loop.watch(pair[0], READ, lambda events: 1 / 0)
    loop.before_wait.append(lambda: 1 / 0)
    loop.before_wait.append(lambda: ran.append("hook"))
    loop.call_soon(lambda: 1 / 0)
    loop.call_later(0, lambda: 1 / 0)
    loop.call_later(0, lambda: ran.append("timer"))
    pair[1].send(b"x")
    loop.turn(0)
    assert ran == ["hook", "timer"]
    assert sum("callback failed" in record.message for record in caplog.records) == 4


def test_call_soon_from_another_thread_ends_the_sleep(loop):
    ran = []

    def act() -> None:
        ran.append(threading.current_thread())
        loop.stop()

    thread = threading.Timer(0.01, lambda: loop.call_soon(act))
    thread.start()
    loop.run()
    thread.join()
    assert ran == [threading.current_thread()]


def test_a_call_that_calls_itself_again_lets_others_have_their_turn(loop):
    ran = []

    def again():
        ran.append(loop.n_turns)
        if len(ran) < 100:
            loop.call_soon(again)

    loop.call_soon(again)
    for _ in range(3):
        loop.turn(0)
    assert ran == [1, 2, 3]


def test_no_wake_up_is_lost(loop):
    """Producers append and wake as fast as they can. The consumer must see everything without a timeout."""
    n_each, queue = 2_000, []

    def produce():
        for _ in range(n_each):
            queue.append(1)
            loop.wake()

    threads = [threading.Thread(target=produce) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = 0
    while seen < 3 * n_each:
        n = len(queue)
        del queue[:n]
        seen += n
        if seen < 3 * n_each:
            loop.turn(20)
    for thread in threads:
        thread.join()
    assert seen == 3 * n_each


def test_stop_from_another_thread():
    loop = Loop()
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.call_soon(loop.stop)
    thread.join(20)
    assert not thread.is_alive()
    loop.close()


def test_wakeup_without_eventfd(monkeypatch):
    monkeypatch.delattr("os.eventfd", raising=False)
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    wakeup.clear()
    wakeup.clear()
    wakeup.set()
    wakeup.close()
    wakeup.set()
