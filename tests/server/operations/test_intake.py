from __future__ import annotations

import threading

import pytest

from uma_core.clock import ManualClock
from uma_core.errors import ErrorCode
from uma_core.protocol.messages import Unfit
from uma_core.server.operations.intake import AGING_BYTES_PER_S, SHORT_BYTES, STOP_S, Decoding, Intake, Job
from uma_core.server.operations.large import Local
from uma_core.session.events import Final, Refused, Submit
from uma_core.types import FinishReason, Peer, Request

WAIT_S = 20


class Outbox:
    """Collects the intake's results, in order."""

    def __init__(self) -> None:
        self.items: list = []
        self._changed = threading.Condition()

    def __call__(self, item) -> None:
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    def wait(self, n: int) -> list:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.items) >= n, WAIT_S)
            return self.items


@pytest.fixture
def outbox():
    return Outbox()


def compile_none(text, constraint):
    raise AssertionError("no request here is constrained")


@pytest.fixture
def intake(fake_text, outbox):
    intake = Intake(lambda: fake_text, outbox, outbox, ManualClock(5_000_000), compile_none, Local())
    yield intake
    for gate in fake_text.gates.values():
        gate.set()
    if intake._threads[0].ident is not None:
        intake.stop()


def job(id: str, n_bytes: int | None = None, t_ns: int = 0, conn: int = 1, prompt: str = "") -> Job:
    prompt = prompt or id
    return Job(conn, Peer(), Request(id=id, prompt=prompt), t_ns, len(prompt) if n_bytes is None else n_bytes)


def test_a_job_becomes_a_submit(intake, outbox, fake_text):
    intake.start()
    intake.put(job("a", t_ns=77))
    (submit,) = outbox.wait(1)
    assert submit == Submit(1, Peer(), Request(id="a", prompt="a"), [1, ord("a")], 77, (), fake_text)
    assert intake.n_jobs == 0


def order(intake, outbox, jobs: list[Job]) -> list[str]:
    """Return the order of the results if all jobs are already waiting."""
    for one in jobs:
        intake.put(one)
    intake._threads.pop()  # one worker, so that the order is certain
    intake.start()
    return [item.request.id for item in outbox.wait(len(jobs))]


def test_the_shorter_prompt_goes_first(intake, outbox):
    assert order(intake, outbox, [job("long", 90_000), job("mid", 9_000), job("short", 10)]) == ["short", "mid", "long"]


def test_waiting_counts_as_much_as_size(intake, outbox):
    second = 1_000_000_000
    jobs = [job("long", AGING_BYTES_PER_S, 0), job("soon", 1_000, second // 2), job("late", 1_000, 2 * second)]
    assert order(intake, outbox, jobs) == ["soon", "long", "late"]


def test_a_long_prompt_under_way_does_not_delay_short_ones(intake, outbox, fake_text):
    started, release = fake_text.block("paste")
    intake.start()
    intake.put(job("long", SHORT_BYTES + 1, prompt="paste"))
    assert started.wait(WAIT_S)
    for n in range(3):
        intake.put(job(f"short {n}"))
    assert [item.request.id for item in outbox.wait(3)] == ["short 0", "short 1", "short 2"]
    release.set()
    assert outbox.wait(4)[3].request.id == "long"


def test_cancel_while_waiting_and_while_at_work(intake, outbox, fake_text):
    started, release = fake_text.block("paste")
    intake.put(job("waiting"))
    assert intake.cancel(1, "waiting")
    intake.start()
    (final,) = outbox.wait(1)
    assert (final.request_id, final.reason, final.usage["prompt_tokens"]) == ("waiting", FinishReason.CANCELLED, 0)
    assert set(final.timing) == {"queue_ms", "ttft_ms", "total_ms", "itl_p50_ms", "itl_max_ms"}
    intake.put(job("at work", prompt="paste"))
    assert started.wait(WAIT_S)
    assert intake.cancel(1, "at work")
    release.set()
    assert isinstance(outbox.wait(2)[1], Final)
    assert not intake.cancel(1, "at work")


def test_a_large_request_that_nothing_can_read_ends_nobody_elses(intake, outbox, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(intake._reader, "digest", fail)  # the helper had no memory for it, and neither has the daemon
    monkeypatch.setattr(Local, "digest", fail)
    intake.start()
    for _ in range(2):  # one thread reads large requests, and it must survive for the second one
        intake.put(Decoding(1, 0, b"{}", outbox))
    found = outbox.wait(2)
    assert all(isinstance(each, Unfit) and each.error.error is ErrorCode.INTERNAL for each in found)


def test_hang_up_drops_only_that_clients_jobs(intake, outbox, fake_text):
    started, release = fake_text.block("paste")
    intake.start()
    intake.put(job("at work", prompt="paste"))
    assert started.wait(WAIT_S)
    intake.put(job("other", conn=2))
    intake.hang_up(1)
    release.set()
    assert [item.conn_id for item in outbox.wait(1)] == [2]
    intake.stop()
    assert (len(outbox.items), intake.n_jobs) == (1, 0)


def test_errors_come_back_as_refusals(intake, outbox, fake_text, caplog):
    fake_text.template = None
    plain = fake_text.tokenize

    def tokenize(text, *rest):
        if text == "explode":
            raise RuntimeError("tokeniser bug")
        return plain(text, *rest)

    fake_text.tokenize = tokenize
    intake.start()
    intake.put(Job(1, Peer(), Request(id="chat", messages=({"role": "user", "content": "x"},)), 0, 1))
    intake.put(job("explode"))
    refusals = {item.request_id: item.error.error for item in outbox.wait(2)}
    assert refusals == {"chat": ErrorCode.TEMPLATE_FAILED, "explode": ErrorCode.INTERNAL}
    intake.put(job("fine"))
    assert isinstance(outbox.wait(3)[2], Submit)


def test_no_model(outbox):
    intake = Intake(lambda: None, outbox, outbox, ManualClock(), compile_none, Local())
    intake.start()
    intake.put(job("a"))
    (refused,) = outbox.wait(1)
    assert refused.error.error is ErrorCode.MODEL_NOT_LOADED
    intake.stop()


class Stuck:
    """Stands in for a worker whose job never ends."""

    ident = 1

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    def join(self, timeout_s: float) -> None:
        self._waits.append(timeout_s)


def test_workers_that_never_end_are_waited_for_once_and_together(intake, monkeypatch):
    waits: list[float] = []
    times = iter([100.0, 101.0, 109.0])
    monkeypatch.setattr("uma_core.server.operations.intake.time.monotonic", lambda: next(times))
    monkeypatch.setattr(intake, "_threads", [Stuck(waits), Stuck(waits)])
    intake.stop()
    intake.stop()
    assert waits == [STOP_S - 1, STOP_S - 9]


def test_stopping_refuses_what_waits(intake, outbox, fake_text):
    started, release = fake_text.block("paste")
    intake.start()
    intake.put(job("at work", SHORT_BYTES + 1, prompt="paste"))
    assert started.wait(WAIT_S)
    intake.put(job("waiting", SHORT_BYTES + 1))
    threading.Timer(0.01, release.set).start()
    intake.stop()
    assert [type(item) for item in outbox.items] == [Submit, Refused]
    assert outbox.items[1].error.error is ErrorCode.SHUTTING_DOWN


def test_which_model_is_in_use(intake, outbox, fake_text):
    started, release = fake_text.block("paste")
    intake.start()
    assert not intake.is_using(fake_text)
    intake.put(job("a", prompt="paste"))
    assert started.wait(WAIT_S)
    assert intake.is_using(fake_text)
    release.set()
    outbox.wait(1)
    intake.stop()
    assert not intake.is_using(fake_text)


def test_many_threads_of_events_lose_nothing(intake, outbox):
    """Another thread cancels at random. Every job has exactly one outcome."""
    intake.start()
    n = 500
    for i in range(n):
        intake.put(job(f"j{i}"))
        if i % 3 == 0:
            intake.cancel(1, f"j{i // 2}")
    items = outbox.wait(n)
    ids = [item.request.id if isinstance(item, Submit) else item.request_id for item in items]
    assert sorted(ids) == sorted(f"j{i}" for i in range(n))
