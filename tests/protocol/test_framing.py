from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.framing import FRAME_CAP_LIMIT, FrameReader, encode_frame
from uma_core.protocol.lines import Mode, detect_mode


def read_all(reader: FrameReader) -> list[bytes]:
    payloads = []
    while (payload := reader.next_payload()) is not None:
        payloads.append(payload)
    return payloads


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.data(), st.booleans())
def test_any_chunking_gives_the_same_payloads(payloads, data, can_be_whole):
    stream = b"".join(map(encode_frame, payloads))
    ends = [*itertools.accumulate(len(encode_frame(payload)) for payload in payloads)]
    cuts = st.one_of(st.integers(0, len(stream)), st.sampled_from([0, *ends]))
    cuts = sorted(data.draw(st.lists(cuts, max_size=12)))
    reader, got = FrameReader(1 << 20), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        payload = reader.whole(stream[start:end]) if can_be_whole else None
        if payload is None:
            reader.feed(stream[start:end])
            got += read_all(reader)
        else:
            got.append(payload)
    assert got == payloads
    assert len(reader) == 0


def test_one_frame_is_taken_whole_where_nothing_waits_for_it():
    reader = FrameReader(100)
    assert reader.whole(encode_frame(b"x" * 100)) == b"x" * 100
    for data in (bytes(4), encode_frame(b"x" * 101), encode_frame(b"ab")[:-1], encode_frame(b"ab") * 2, b"\x02\0"):
        assert reader.whole(data) is None
    reader.feed(b"\x02")
    assert reader.whole(encode_frame(b"x")) is None


def test_the_cap_is_checked_on_the_header_alone():
    reader = FrameReader(100)
    reader.feed((101).to_bytes(4, "little"))
    with pytest.raises(UmaError) as caught:
        reader.next_payload()
    assert caught.value.error is ErrorCode.FRAME_TOO_LARGE
    assert caught.value.detail["limit"] == 100


def test_a_payload_of_exactly_the_cap_passes():
    reader = FrameReader(100)
    reader.feed(encode_frame(b"x" * 100))
    assert reader.next_payload() == b"x" * 100


def test_a_length_of_zero_is_a_bad_frame():
    reader = FrameReader(100)
    reader.feed(bytes(4))
    with pytest.raises(UmaError) as caught:
        reader.next_payload()
    assert caught.value.error is ErrorCode.BAD_FRAME


@given(st.text(min_size=4).filter(lambda text: "\0" not in text[:4]))
def test_text_is_never_taken_for_a_frame(text):
    head = text.encode("utf-8", "ignore")
    if len(head) >= 4 and head[3] >= 9:  # nobody types control characters below tab
        assert detect_mode(head) is Mode.LINES


@given(st.integers(1, FRAME_CAP_LIMIT))
def test_a_legal_header_is_never_taken_for_text(length):
    head = length.to_bytes(4, "little")
    assert detect_mode(head) is Mode.FRAMES
    for n in range(4):
        assert detect_mode(head[:n]) is Mode.UNDECIDED


@pytest.mark.parametrize("length", [(1 << 20) + 1, 1 << 21, 0x00FFFFFF, 0, 50_000_001, 0x08FFFFFF, 0x41420041])
def test_a_header_that_no_text_has_is_a_frame_even_when_it_is_not_legal(length):
    assert detect_mode(length.to_bytes(4, "little")) is Mode.FRAMES
