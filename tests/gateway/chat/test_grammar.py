"""The nodes of a grammar."""

from __future__ import annotations

import threading

import pytest

from uma_gateway.chat.grammar import NONE, Choice, Node, Sequence


@pytest.mark.parametrize("kind", [Choice, Sequence])
@pytest.mark.parametrize("value", ["more", "alphabet"])
def test_the_threads_of_two_requests_do_not_wait_for_each_other(
    kind: type[Choice] | type[Sequence], value: str
) -> None:
    """Before, they deadlocked if each thread had begun a grammar that the other one needed: Open WebUI's chats with
    tools hung.
    """
    both = threading.Barrier(2, timeout=5)

    class Meeting(Node):
        @property
        def met(self) -> frozenset[str]:
            both.wait()
            return NONE

        more = alphabet = met

    def read() -> None:
        getattr(kind((Meeting(),)), value)
        read_through.append(value)

    read_through: list[str] = []
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_through == [value, value]


def test_what_may_follow_a_node_is_made_once() -> None:
    made: list[Node] = []

    class Counted(Node):
        @property
        def more(self) -> frozenset[str]:  # type: ignore[override]
            made.append(self)
            return NONE

    node = Choice((Counted(),))
    assert node.more is node.more and len(made) == 1
