"""Turns an answer's text, as it is generated, into content, reasoning and tool calls; no part of the text is ever
dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from uma_gateway.chat.diff import Diff, Message, ToolCall
from uma_gateway.chat.library import Handle, LibraryError, call, encode, load, passer
from uma_gateway.chat.templates import Applied

STREAM, FINAL, PARSE = range(3)  # how text is given to the library
IN_CONTENT, IN_REASONING, IN_ARGUMENTS = 1, 2, 3  # where uma_chat_parser_pass says that the text belongs
N_STEPS = 64  # most steps in the search for the end of the parseable text: 10 ms for 10 KB


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class Parser:
    """Reads one answer. Used by one thread at a time; a call takes well below a millisecond for most answers.

    Text that can only be content, reasoning or the inside of an argument is returned at once, without another parse of
    the whole. Elsewhere the library parses again, but only so often that the total time grows in proportion to the
    answer's length.
    """

    def __init__(self, applied: Applied, new_id: Callable[[], str] = new_call_id) -> None:
        spec = applied.answer
        request = {
            "format": spec.format,
            "parser": spec.parser,
            "generation_prompt": spec.generation_prompt,
            "is_continuation": spec.is_continuation,
        }
        self._handle: Handle | None = Handle("parser", encode(request, "the answer's format"))
        thinking = applied.thinking
        self._thinking_end = thinking.end if thinking else ""
        self._open_thinking = thinking.end if thinking and thinking.is_open else ""
        self._new_id = new_id
        self._pieces: list[str] = []  # pieces of the text, joined only if all of it is needed
        self._n_chars = 0
        self._n_read = 0  # characters read that have the template's form
        self._n_begun = 0  # bytes at the end of the text read that may be a part of a delimiter
        self._pass = passer()
        self._is_whole = False  # the last parse succeeded, and read the text to its end
        self._has_left_form = False  # no further text can fit the template: the rest is content
        self._space = ""  # white space after calls that was not reported yet
        self._has_rest = False  # text after the end of the template's form was reported
        self._told: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, pieces of the arguments
        self.n_parsed = 0  # bytes that the library has parsed, including repeated ones

    @property
    def answer(self) -> Message:
        """The message that the differences so far add up to."""
        calls = [ToolCall(id, name, "".join(pieces), i) for i, (id, name, pieces) in enumerate(self._calls)]
        return Message("".join(self._told["content"]), "".join(self._told["reasoning"]), calls)

    def feed(self, text: str, is_final: bool = False) -> list[Diff]:
        """Add text; return the new differences, often none.

        After the final call no more text may be fed. Raises: ChatError for our own faults only.
        """
        self._pieces.append(text)
        self._n_chars += len(text)
        if self._has_left_form:
            return self._rest(text)
        if not is_final and text and self._handle is not None:
            data = text.encode("utf-8", "replace")
            part = self._pass(self._handle.pointer, data, len(data))
            if part:
                self._n_read, self._n_begun, self._is_whole = self._n_chars, 0, False
                if part == IN_CONTENT:
                    self._told["content"].append(text)
                    return [Diff(text)]
                return [self._inside(part, text)]
        diffs = self._feed(text, FINAL if is_final else STREAM)
        if is_final or self._has_left_form:
            if not self._is_whole:
                diffs += self._recovered()
            diffs += self._remaining()
            self._handle, self._has_left_form = None, True
        return diffs

    def _inside(self, part: int, text: str) -> Diff:
        """Return text that continues a thought or the arguments of the last call."""
        if part == IN_ARGUMENTS:
            self._calls[-1][2].append(text)
            return Diff(tool=len(self._calls) - 1, tool_arguments=text)
        self._told["reasoning"].append(text)
        return Diff(reasoning=text)

    def _rest(self, text: str) -> list[Diff]:
        """Return text unchanged, but white space after calls only once something follows it."""
        text = self._space + text
        self._space = "" if self._has_rest or text.strip() or not self._calls else text
        if self._space:
            return []
        self._has_rest = True
        return self._as_text(content=text)

    def _feed(self, text: str, how: int) -> list[Diff]:
        """Give the library more text."""
        self._is_whole = False
        if self._handle is None:
            return []
        data = text.encode("utf-8", "replace")
        try:
            found = call("uma_chat_parser_feed", self._handle.pointer, data, len(data), how)
        except LibraryError as error:
            if error.kind == "depth":  # too deep: the library parses no more of this answer
                self._handle, self._has_left_form = None, True
            elif error.kind != "answer":
                raise
            return []
        self.n_parsed = found["n_parsed"]
        self._has_left_form = found["is_dead"]
        if found["is_read"]:
            self._n_read = self._n_chars if how != PARSE else self._n_read + len(text)
            self._is_whole = found["is_whole"]
            self._n_begun = found["n_begun"]
        return [self._add(entry) for entry in found["differences"]]

    def _recovered(self) -> list[Diff]:
        """Continue to the exact character at which an answer leaves the template's form."""
        diffs: list[Diff] = []
        text = self._join()
        step = max(1, (len(text) - self._n_read) // N_STEPS)
        while self._handle is not None and self._n_read < len(text):
            self._rewind(self._handle, text)
            before = self._n_read
            diffs += self._feed(text[before : before + step], PARSE)
            if self._n_read == before:
                if step == 1:
                    break
                step = max(1, step // N_STEPS)
        if self._handle is not None:  # parse it again, to see whether its end is part of a delimiter
            self._rewind(self._handle, text)
            diffs += self._feed("", PARSE)
        self._is_whole = False
        return diffs

    def _rewind(self, handle: Handle, text: str) -> None:
        """Let the library forget what follows the text that was read."""
        load().uma_chat_parser_rewind(handle.pointer, len(text[: self._n_read].encode("utf-8", "replace")))

    def _join(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def _add(self, entry: dict[str, Any]) -> Diff:
        index = entry.get("index")
        if index is None:
            diff = Diff(content=entry.get("content", ""), reasoning=entry.get("reasoning", ""))
            self._told["content"].append(diff.content)
            self._told["reasoning"].append(diff.reasoning)
            return diff
        if index < len(self._calls):
            diff = Diff(tool=index, tool_arguments=entry["arguments"])
        else:
            diff = Diff("", "", index, entry["id"] or self._new_id(), entry["name"], entry["arguments"])
            self._calls.append((diff.tool_id, diff.tool_name, []))
        self._calls[index][2].append(diff.tool_arguments)
        return diff

    def _remaining(self) -> list[Diff]:
        """Return, as plain text, the part of an answer that no difference has reported because it does not parse to its
        end.
        """
        answer, text = self.answer, self._join()
        if self._is_whole and (answer.content or answer.reasoning or answer.tool_calls or not text.strip()):
            return []
        if answer.tool_calls:
            read = text[: self._n_read].encode("utf-8", "replace")
            begun = read[len(read) - self._n_begun :].decode("utf-8", "ignore")  # not a delimiter: other text follows
            return self._rest(begun + text[self._n_read :])
        told = answer.content or answer.reasoning
        place = text.rfind(told, 0, self._n_read) if told else -1
        if place >= 0:
            rest = text[place + len(told) :]
        elif told:
            rest = text[self._n_read :]
        else:
            thought, end, rest = text.partition(self._open_thinking) if self._open_thinking else ("", "", "")
            return self._as_text(thought, rest) if end else self._as_text(content=text)
        if not answer.content:
            rest = rest.lstrip().removeprefix(self._thinking_end).lstrip()
        return self._as_text(content=rest)

    def _as_text(self, reasoning: str = "", content: str = "") -> list[Diff]:
        parts = {"reasoning": reasoning, "content": content}
        return [self._add({kind: text}) for kind, text in parts.items() if text]
