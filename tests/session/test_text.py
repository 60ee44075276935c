"""Whole characters and stop strings, however the text is cut into pieces."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from uma_core.session.text import TextStream


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(st.text(max_size=60), st.lists(st.integers(0, 300), max_size=20))
def test_any_chunking_gives_the_text_back(text: str, cuts: list[int]) -> None:
    stream = TextStream()
    out = [stream.push(piece) for piece in cut(text.encode("utf-8", "surrogatepass"), cuts)]
    expected = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert "".join(out) + stream.finish() == expected


def test_a_character_is_never_split() -> None:
    stream = TextStream()
    assert [stream.push(bytes([b])) for b in "é€".encode()] == ["", "é", "", "", "€"]


def test_unfinished_character_becomes_replacement() -> None:
    stream = TextStream()
    assert stream.push("€".encode()[:2]) == ""
    assert stream.finish() == "�"


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=10),
)
def test_stops_cut_where_a_whole_search_would(text: str, stops: list[str], cuts: list[int]) -> None:
    stream = TextStream(tuple(stops))
    out = seen = ""
    for piece in cut(text.encode(), cuts):
        seen += piece.decode()
        out += stream.push(piece)
        if stream.is_stopped:
            break
    out += stream.finish()
    # The first piece that completes any stop string decides. All text before the earliest stop string is sent.
    complete = [i for s in stops for i in range(len(seen)) if seen.startswith(s, i)]
    assert stream.is_stopped == bool(complete)
    assert out == (seen[: min(complete)] if complete else text)


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(("\n\n",))
    assert stream.push(b"one\n") == "one"
    assert stream.push(b"\ntwo") == ""
    assert stream.is_stopped and stream.push(b"three") == "" and stream.finish() == ""


def test_half_a_character_behind_a_stop_is_none_of_the_answer() -> None:
    stream = TextStream(("\n\n",))
    assert stream.push(b"one\n\n" + "€".encode()[:2]) == "one"
    assert stream.finish() == ""
