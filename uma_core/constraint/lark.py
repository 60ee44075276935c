"""Estimates the cost of compiling a grammar in llguidance's Lark, before it is compiled. Pure.

Two costs grow quadratically (llguidance 1.9, 2 cores). A lexeme of n repetitions, each of which may be empty, takes
time and memory proportional to n squared: 1 s and 250 MB for 8,000, 134 s and 16 GB for 125,000. So do n different
lexemes in sequence: 1.8 s and 1.5 GB for 27,000.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from uma_core.constraint.schema import N_BYTES_MOST, N_NAMED_MOST, N_PATTERN_MOST, N_PATTERN_NAMES_MOST

# llguidance follows definitions recursively. A chain of 4,000 overflows a stack of 8 MiB, which would end the daemon.
N_DEFINITIONS_MOST = 1_000
N_REFS_MOST = 200  # references in all `%json`, which are not checked as schemas are
N_LEXEMES_MOST = 12_000  # different lexemes: up to 1.4 s and 0.3 GB
N_USES_MOST = 16_000  # uses of lexemes in rules: 1 s, or 5 s if each is optional
N_REPEATS_MOST = 8_000  # in one lexeme; of several, the root of the sum of their squares: 1 s and 250 MB

# A search that fails starts again at the next character, so a quote without its end would be looked for from each later
# one: minutes for 256 KiB. Both expressions therefore match to the end of the text what has no end of its own.
_TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*(?:"i?|(?P<open_string>\\?\Z)))
      | (?P<comment>//[^\n]*|\#[^\n]*)
      | (?P<regex>/(?:\\.|[^/\\])+(?:/[a-z]*|(?P<open_regex>\\?\Z)))
      | (?P<json>%json\s*)
      | (?P<special><[^<>\s]+>)
      | (?P<name>[A-Za-z_][\w-]*)
      | (?P<colon>:)
      | (?P<open>\[)
      | (?P<close>\])
      | (?P<repeat>[*+?{~])""",
    re.VERBOSE | re.DOTALL,
)
_NO_REPEAT = re.compile(r"\\[upPx]\{[^}]*(?:\}|\Z)|\\.|\(\?|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)", re.DOTALL)
_REPEAT = re.compile(r"[*+?{]")


@dataclass(slots=True)
class _Definition:
    """One rule or terminal."""

    n_repeats: int = 0
    names: list[str] = field(default_factory=list)  # definitions that it refers to


class TooLarge(Exception):
    """A grammar is too large, or goes on without an end; the text says why."""


def check_size(text: bytes) -> None:
    """Check the size of a grammar in any notation. Raises: TooLarge."""
    if len(text) > N_BYTES_MOST:
        raise TooLarge(f"it has {len(text)} bytes, the limit is {N_BYTES_MOST}")


def check(text: str) -> None:
    """Refuse a grammar that would take minutes or gigabytes to compile. Raises: TooLarge."""
    definitions: dict[str, _Definition] = {}
    lexemes: set[str] = set()
    squares, n_uses, n_refs, n_definitions = 0, 0, 0, 0
    here, is_terminal = _Definition(), False
    for kind, token in _tokens(text):
        if kind == "colon" and here.names:  # the last name was not a reference but the name of this definition
            name = here.names.pop()
            n_definitions += 1
            n_uses -= not is_terminal and _is_terminal(name)
            is_terminal = _is_terminal(name)
            here = definitions.setdefault(name, _Definition())
        elif kind == "json":
            n_uses += 1
            lexemes.add(token)
            n_refs += token.count('"$ref"')
            squares += _json_squares(token)
        elif kind == "name":
            here.names.append(token)
            n_uses += not is_terminal and _is_terminal(token)
        elif is_terminal:
            here.n_repeats += n_repeats(token) if kind == "regex" else kind == "repeat"
        elif kind in ("string", "regex", "special"):
            n_uses += 1
            lexemes.add(token)
            squares += n_repeats(token) ** 2 if kind == "regex" else 0
    if n_definitions > N_DEFINITIONS_MOST:
        raise TooLarge(f"it has more than {N_DEFINITIONS_MOST} definitions")
    if n_refs > N_REFS_MOST:
        raise TooLarge(f"its schemas have more than {N_REFS_MOST} references")
    if len(lexemes) > N_LEXEMES_MOST:
        raise TooLarge(f"its rules have {len(lexemes)} different lexemes, the limit is {N_LEXEMES_MOST}")
    if n_uses > N_USES_MOST:
        raise TooLarge(f"its rules use lexemes {n_uses} times, the limit is {N_USES_MOST}")
    if squares + sum(n**2 for n in _terminal_repeats(definitions)) > N_REPEATS_MOST**2:
        raise TooLarge("its regular expressions have too many repetitions (`*`, `+`, `?`, `{}`)")


def n_repeats(expression: str) -> int:
    """Return the number of repetitions in a regular expression."""
    return len(_REPEAT.findall(_NO_REPEAT.sub("", expression)))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield kinds and texts, without what is in the brackets of attributes; for `%json`, its value. Other text that
    llguidance cannot read is left for it to report. Raises: TooLarge for a string or an expression without an end.
    """
    decoder = json.JSONDecoder()
    at = depth = 0
    while match := _TOKEN.search(text, at):
        kind, at = str(match.lastgroup), match.end()
        if match["open_string"] is not None or match["open_regex"] is not None:
            raise TooLarge(f"its last {kind} has no end")
        if kind == "json":
            try:
                _, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                continue
            yield kind, text[at:end]
            at = end
        elif kind in ("open", "close"):
            depth = max(0, depth + (1 if kind == "open" else -1))
        elif kind != "comment" and not depth:
            yield kind, match.group()


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _json_squares(text: str) -> int:
    """Return the sum of the squared repetition counts of a schema's patterns."""
    squares = 0
    waiting: list[Any] = [json.loads(text)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, dict):
            continue
        waiting += value.values()
        names, by_pattern = value.get("properties"), value.get("patternProperties")
        if isinstance(names, dict) and len(names) > N_NAMED_MOST:
            raise TooLarge(f"an object in its schemas has more than {N_NAMED_MOST} properties")
        patterns = list(by_pattern) if isinstance(by_pattern, dict) else []
        if len(patterns) > N_PATTERN_NAMES_MOST:
            raise TooLarge(f"an object in its schemas has more than {N_PATTERN_NAMES_MOST} `patternProperties`")
        if isinstance(value.get("pattern"), str):
            patterns.append(value["pattern"])
        if any(len(pattern) > N_PATTERN_MOST for pattern in patterns):
            raise TooLarge(f"a pattern in its schemas has more than {N_PATTERN_MOST} characters")
        squares += sum(n_repeats(pattern) ** 2 for pattern in patterns)
    return squares


def _terminal_repeats(definitions: dict[str, _Definition]) -> Iterator[int]:
    """Yield each terminal's repetitions, including those of the terminals that it refers to. Counting stops above the
    limit.
    """
    found: dict[str, int] = {}
    for first, begun in definitions.items():
        # each with the names that were not looked at yet: starting over would take the square of their number
        waiting = {first: iter(begun.names)} if _is_terminal(first) and first not in found else {}
        while waiting:
            name, names = next(reversed(waiting.items()))
            missing = (n for n in names if n in definitions and n not in found and n not in waiting)
            below = next(missing, None)
            if below is not None:
                waiting[below] = iter(definitions[below].names)
                continue
            n = definitions[name].n_repeats + sum(found.get(n, 0) for n in definitions[name].names)
            found[name] = min(n, N_REPEATS_MOST + 1)
            del waiting[name]
    yield from found.values()
