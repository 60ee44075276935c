"""Log probabilities of an answer's content only: in OpenAI's form thoughts, calls and tags have none."""

from __future__ import annotations

from collections.abc import Iterable

from uma_gateway.chat.diff import Diff, Message
from uma_gateway.link import Event
from uma_gateway.parsing import Parser


class Held:
    """The log probabilities of tokens whose text the parser has not released yet."""

    def __init__(self, entries: Iterable[Event] = ()) -> None:
        self._entries = list(entries)

    def add(self, entries: Iterable[Event]) -> None:
        self._entries.extend(entries)

    def take(self, diff: Diff) -> list[Event]:
        """Return the log probabilities of the content that is released now."""
        if diff.reasoning:
            self._cut(diff.reasoning)
        if not diff.content:
            return []
        found = self._cut(diff.content)
        if found is None:  # the bytes are not text, but the answer must not lose them
            found, self._entries = self._entries, []
        return found

    def _cut(self, text: str) -> list[Event] | None:
        """Remove the entries up to the end of a text, and return the text's own entries. None: the text is not there.

        Bytes before it are tags. The search runs from the end, because a tag may contain the same letters.
        """
        wanted = text.encode("utf-8", "replace")
        held = b"".join(bytes(entry["bytes"]) for entry in self._entries)
        begin = 0 if held.startswith(wanted) else held.rfind(wanted)
        if begin < 0:
            return None
        found: list[Event] = []
        at = 0
        while self._entries and at < begin + len(wanted):
            entry = self._entries.pop(0)
            at += len(entry["bytes"])
            if at > begin:
                found.append(entry)
        return found


def read_whole(parser: Parser, text: str, entries: Iterable[Event]) -> tuple[Message, list[Event]]:
    """Read an answer that has ended, with the log probabilities of its tokens. Returns only those of its content."""
    message, held = Message(), Held(entries)
    told: list[Event] = []
    for diff in parser.feed(text, is_final=True):
        message.add(diff)
        told += held.take(diff)
    return message, told
