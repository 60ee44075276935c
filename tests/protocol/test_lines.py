from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.lines import LineReader


def read_all(reader: LineReader, is_last: bool = False) -> list[str]:
    lines = []
    while (line := reader.next_line(is_last)) is not None:
        lines.append(line)
    return lines


text_lines = st.text(st.characters(blacklist_characters="\n\0", blacklist_categories=("Cs",)), max_size=40)


@given(st.lists(text_lines, max_size=8), st.integers(1, 7))
def test_any_chunking_gives_the_same_lines(lines, step):
    stream = "".join(line + "\n" for line in lines).encode()
    reader, got = LineReader(1 << 16), []
    for i in range(0, len(stream), step):
        reader.feed(stream[i : i + step])
        got += read_all(reader)
    assert got == [line.rstrip("\r") for line in lines]


def test_carriage_returns_are_trimmed_and_the_end_of_the_stream_ends_a_line():
    reader = LineReader(100)
    reader.feed(b"one\r\ntwo")
    assert read_all(reader) == ["one"]
    assert read_all(reader, is_last=True) == ["two"]
    assert reader.next_line(is_last=True) is None


@pytest.mark.parametrize("raw", [b"a\0b", b"\xff\xfe", b"caf\xc3", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_a_line_that_is_not_text_is_refused_and_the_next_one_is_read(raw):
    reader = LineReader(100)
    reader.feed(raw + b"\nfine\n")
    with pytest.raises(UmaError) as caught:
        reader.next_line()
    assert caught.value.error is ErrorCode.BAD_UTF8
    assert reader.next_line() == "fine"


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_above_the_cap_is_refused(end):
    reader = LineReader(10)
    reader.feed(b"x" * 11 + end)
    with pytest.raises(UmaError) as caught:
        reader.next_line()
    assert caught.value.error is ErrorCode.FRAME_TOO_LARGE


def test_a_line_of_exactly_the_cap_passes():
    reader = LineReader(10)
    reader.feed(b"x" * 10 + b"\n")
    assert reader.next_line() == "x" * 10
