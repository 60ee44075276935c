"""Log lines: their form, their privacy, and that the caller never waits for the writer."""

import io
import json
import logging
import threading

import pytest

from uma_core.config.options import LogOptions
from uma_core.log import ROOT, Output, installed

LOG = logging.getLogger(f"{ROOT}.server.client")


@pytest.fixture
def logged():
    """Run a function with logging on; return what was written."""

    def run(function, **options) -> str:
        stream = io.StringIO()
        output = Output(LogOptions(**options), stream)
        try:
            function()
        finally:
            output.close()
        assert output.n_dropped == 0
        return stream.getvalue()

    return run


class Stuck(io.StringIO):
    """A stream that blocks its writer until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released, self.entered = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.released.wait(10)
        return super().write(text)


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_text_lines_are_concise(logged):
    line = logged(lambda: LOG.info("accepted %d tokens", 5, extra={"request": "r-1", "note": "two words"}))
    _, rest = line.split(" ", 1)
    assert rest == 'INFO    server.client: accepted 5 tokens request=r-1 note="two words"\n'


def test_fields_of_other_libraries_are_left_out(logged):
    """Ray replaces the process's record factory. A gateway in a Ray worker must still log as everywhere else."""
    factory = logging.getLogRecordFactory()

    def stamped(*args, **kwargs):
        record = factory(*args, **kwargs)
        record._stamp_of_a_library = 1
        return record

    logging.setLogRecordFactory(stamped)
    try:
        assert logged(lambda: LOG.info("accepted")).endswith("server.client: accepted\n")
    finally:
        logging.setLogRecordFactory(factory)


def test_json_lines_are_one_object_each(logged):
    text = logged(
        lambda: [LOG.warning("slow"), LOG.error("bad\nline", extra={"request": "r-1", "odd": {1}})], format="json"
    )
    first, second = map(json.loads, text.splitlines())
    assert (first["level"], first["part"], first["message"]) == ("warning", "server.client", "slow")
    assert (second["message"], second["request"], second["odd"]) == ("bad\nline", "r-1", "{1}")


def test_a_message_cannot_forge_a_line(logged):
    text = logged(lambda: LOG.info("peer said %s", "x\n2026 INFO forged", extra={"id": "a\nb"}))
    assert text.count("\n") == 1


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("field", ["prompt", "text", "messages"])
def test_prompts_are_written_only_on_request(logged, format, field):
    def say():
        LOG.info("accepted", extra={field: "my secret"})

    assert "secret" not in logged(say, format=format)
    assert "<9 hidden>" in logged(say, format=format)
    assert "my secret" in logged(say, format=format, prompts=True)


def test_levels_select_and_change_live():
    stream = io.StringIO()
    output = Output(LogOptions(level="warning"), stream)
    LOG.info("one")
    output.apply(LogOptions(level="debug"))
    LOG.debug("two")
    output.close()
    assert [line.rsplit(" ", 1)[1] for line in stream.getvalue().splitlines()] == ["two"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_exceptions_carry_their_traceback(logged, format):
    def fail():
        try:
            raise KeyError("lost")
        except KeyError:
            LOG.exception("tick failed")

    text = logged(fail, format=format)
    assert "tick failed" in text and "KeyError: 'lost'" in text and "test_log.py" in text


def test_a_log_call_that_cannot_be_formatted_is_told_and_harmless(logged):
    text = logged(lambda: LOG.info("%d", "x"))
    assert "cannot be formatted" in text and "test_log.py" in text


def test_a_full_queue_drops_and_counts_but_never_blocks():
    stream = Stuck()
    output = Output(LogOptions(), stream, capacity=2)
    LOG.info("first")
    assert stream.entered.wait(10)  # the writer holds the first line; the queue has room for two more
    for n in range(5):
        LOG.info("line %d", n)
    assert output.n_dropped == 3
    stream.released.set()
    output.close()
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["first", "line 0", "line 1"]


def test_a_broken_stderr_is_counted_and_harmless():
    output = Output(LogOptions(), Broken())
    LOG.info("lost")
    output.close()
    assert output.n_dropped == 1


def test_many_threads_lose_and_tear_nothing(logged):
    def say(who):
        for n in range(100):
            LOG.info("%s-%d", who, n)

    def all_together():
        threads = [threading.Thread(target=say, args=(who,)) for who in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    lines = [line.split(": ")[1] for line in logged(all_together).splitlines()]
    assert sorted(lines) == sorted(f"{who}-{n}" for who in "abcd" for n in range(100))


def test_close_twice_is_harmless():
    output = Output(LogOptions(), io.StringIO())
    assert installed() is output
    output.close()
    output.close()
    assert installed() is None
