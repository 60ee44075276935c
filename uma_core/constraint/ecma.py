"""Translates JSON Schema's regular expressions, which follow ECMA-262, into Rust's syntax, which llguidance reads. A
construct whose meaning differs is rewritten, or refused. Constructs that Rust does not have are refused by llguidance
itself. Pure.
"""

from __future__ import annotations

import re

_SPACE = r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}"  # ECMA-262, 22.2.2.9
_ESCAPES = {"s": _SPACE, "0": r"\x00"}
_CLASSES = {"s": f"[{_SPACE}]", "S": f"[^{_SPACE}]", "0": r"\x00"}
_ANY = r"[^\n\r\u{2028}\u{2029}]"
# escapes that only Rust has, such as anchors and POSIX classes; in ECMA-262 each stands for its letter
_FOREIGN_ESCAPES = frozenset("AzaQhHRXK<>")
_FOREIGN_GROUP = re.compile(r"\(\?(?![:=!]|<[=!A-Za-z_$])")
_FOREIGN_IN_CLASS = ("[", "&&", "--", "~~")  # nested classes and operations on them


class ForeignError(ValueError):
    """A construct that means something else in Rust's syntax."""


def to_rust(pattern: str) -> str:
    """Return the pattern in Rust's syntax. Raises: ForeignError."""
    out, at, in_class = [], 0, False
    while at < len(pattern):
        n, text = _in_class(pattern, at) if in_class else _outside(pattern, at)
        in_class = text != "]" if in_class else pattern[at] == "["
        out.append(text)
        at += n
    return "".join(out)


def _outside(pattern: str, at: int) -> tuple[int, str]:
    """Return how many characters were read, and their translation."""
    if pattern[at] == "\\":
        return _escape(pattern, at, _CLASSES)
    group = _FOREIGN_GROUP.match(pattern, at)
    if group:
        raise ForeignError(group[0])
    if pattern.startswith(("[]", "[^]"), at):
        raise ForeignError(pattern[at : pattern.index("]", at) + 1])
    if pattern.startswith("[^", at):
        return 2, "[^"
    return 1, _ANY if pattern[at] == "." else pattern[at]


def _in_class(pattern: str, at: int) -> tuple[int, str]:
    if pattern[at] == "\\":
        return _escape(pattern, at, {**_ESCAPES, "S": _CLASSES["S"]})
    for foreign in _FOREIGN_IN_CLASS:
        if pattern.startswith(foreign, at):
            raise ForeignError(foreign)
    return 1, pattern[at]


def _escape(pattern: str, at: int, known: dict[str, str]) -> tuple[int, str]:
    letter = pattern[at + 1 : at + 2]
    if letter in _FOREIGN_ESCAPES:
        raise ForeignError(pattern[at : at + 2])
    if letter == "c" and pattern[at + 2 : at + 3].isalpha() and pattern[at + 2].isascii():
        return 3, f"\\x{ord(pattern[at + 2]) % 32:02x}"
    if letter == "0" and pattern[at + 2 : at + 3].isdecimal():
        raise ForeignError(pattern[at : at + 3])
    return 2, known.get(letter, "\\" + letter)
