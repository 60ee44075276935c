"""A compiled grammar, and the translation of a request's constraint into llguidance's own languages."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from uma_core.constraint import bounds, escapes, gbnf, lark, schema
from uma_core.constraint.lexemes import to_lark
from uma_core.constraint.lib import ffi, load
from uma_core.constraint.vocabulary import Vocabulary
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import Constraint, TokenId

N_REGEX_BYTES_MOST = 16 << 10  # compiling an expression takes up to the square of its length: at most 0.7 s here
# JSON allows any amount of white space between two tokens, and a small model may never stop writing it. So only a
# space, or a newline with an indentation, is allowed, as people and programs write it.
WHITE_SPACE = r" |\n( {0,32}|\t{0,8})"
_PUNCTUATION = frozenset("\\.+*?()|[]{}^$#&-~/")  # must be escaped in llguidance's regular expressions

# Limits of one grammar. A step computes one token's mask, on the compute thread. llguidance handles 14,000 lexer units
# and 20,000 items per millisecond, so no mask takes longer than about 4 ms. Ordinary masks (up to 1.3 ms
# at 152k tokens, for a string with a length limit) stay well below. A lexer state has 0.1 to 0.5 KB. The items and
# states that a schema may take are checked before it is compiled (bounds.py), with a margin.
LIMITS = {
    "max_items_in_row": 2_400,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 50_000,
    "max_lexer_states": 100_000,
    "max_grammar_size": 200_000,
    "precompute_large_lexemes": True,
    "verbose_errors": False,
}

N_FORCED_MOST = 256  # tokens that a grammar forces at a time; further ones are found later


class Source(NamedTuple):
    """What llguidance compiles."""

    kind: bytes  # json_schema, regex, lark
    text: bytes


def source_of(constraint: Constraint, vocabulary: Vocabulary) -> Source:
    """Translate a constraint. Raises: CONSTRAINT_REFUSED."""
    value = constraint.value
    if constraint.kind == "json_schema":
        return _schema_source(value)
    if constraint.kind == "choices":
        return _sized(Source(b"regex", "|".join(map(_literal, value)).encode()), constraint)
    if constraint.kind == "gbnf":
        _sized(Source(b"gbnf", value.encode()), constraint)
        try:
            written = to_lark(gbnf.parse(value, vocabulary.id_of, vocabulary.names_in(value)))
        except gbnf.GbnfError as error:
            raise refused(constraint, str(error)) from None
        return _sized(Source(b"lark", written.encode()), constraint)
    if constraint.kind == "regex" and len(value) > N_REGEX_BYTES_MOST:
        raise refused(constraint, f"it has {len(value)} characters, the limit is {N_REGEX_BYTES_MOST}")
    if constraint.kind == "regex" and bounds.pattern_states(value) > bounds.N_STATES_MOST:
        raise refused(constraint, "its counted repetitions add up to too many characters")
    return _sized(Source(constraint.kind.encode(), value.encode()), constraint)


def _schema_source(value: Any) -> Source:
    found = schema.checked(value)
    guidance = {"whitespace_pattern": WHITE_SPACE}
    if found.tells_names:
        guidance["json_allowed_escapes"] = escapes.SHORT
    text = json.dumps({"x-guidance": guidance, **found.schema}, ensure_ascii=False)
    if len(text) > schema.N_BYTES_MOST:
        raise schema.refused(f"the schema has {len(text)} characters, the limit is {schema.N_BYTES_MOST}")
    return Source(b"json_schema", text.encode())


def _sized(source: Source, constraint: Constraint) -> Source:
    try:
        lark.check_size(source.text)
        if source.kind == b"lark":
            lark.check(source.text.decode())
    except lark.TooLarge as error:
        raise refused(constraint, str(error)) from None
    return source


def _literal(text: str) -> str:
    return "".join("\\" + c if c in _PUNCTUATION else c for c in text)


def refused(constraint: Constraint, reason: str, **detail: Any) -> UmaError:
    field = f"constraint.{constraint.kind}"
    return UmaError(ErrorCode.CONSTRAINT_REFUSED, f"`{field}`: {reason}", field=field, **detail)


class Grammar:
    """Owns an LlgMatcher that is never advanced, only copied. Copies share what the lexer has learned, under a lock."""

    def __init__(self, vocabulary: Vocabulary, constraint: Constraint) -> None:
        """Blocks: for 0.3 to 3 ms, up to about a second for the largest. Raises: CONSTRAINT_REFUSED."""
        self._lib = load()
        self.vocabulary = vocabulary
        self._out = ffi.new("uint32_t[]", N_FORCED_MOST)
        self.is_spoilt = False  # a copy has failed, and the lexer that all copies share may be full
        source = source_of(constraint, vocabulary)
        self.n_bytes = len(source.text)
        init = ffi.new("LlgConstraintInit *", {"tokenizer": vocabulary.handle, "limits": LIMITS})
        self.handle: Any = ffi.gc(self._lib.llg_new_matcher(init, source.kind, source.text), self._lib.llg_free_matcher)
        self._check(constraint)
        if constraint.prefix:
            self._skip(constraint)
        self.is_done: bool = self._lib.llg_matcher_is_stopped(self.handle)
        self.forced = [] if self.is_done else self.forced_by(self.handle)
        self.mask = np.zeros(vocabulary.n_words, np.uint32)
        pointer = ffi.from_buffer("uint32_t *", self.mask)
        if not self.is_done and self._lib.llg_matcher_compute_mask_into(self.handle, pointer, self.mask.nbytes):
            self._check(constraint)

    def _check(self, constraint: Constraint) -> None:
        error = self._lib.llg_matcher_get_error(self.handle)
        if error:
            raise _explained(constraint, reason_of(ffi.string(error)))

    def _skip(self, constraint: Constraint) -> None:
        tokens = self.vocabulary.read(constraint.prefix)
        if self._lib.llg_matcher_consume_tokens(self.handle, tokens, len(tokens)):
            field = "constraint.prefix"
            raise UmaError(
                ErrorCode.CONSTRAINT_REFUSED, f"`{field}`: the grammar does not allow this beginning", field=field
            )

    def forced_by(self, matcher: Any) -> list[TokenId]:
        """Return the next tokens if the grammar leaves no choice, as the model's tokeniser splits that text; [] if
        there is a choice.
        """
        if not self.vocabulary.is_exact:
            return []
        n = self._lib.llg_matcher_compute_ff_tokens(matcher, self._out, N_FORCED_MOST)
        found = ffi.unpack(self._out, max(0, n)) if n else []
        ends = [i for i, token in enumerate(found) if token in self.vocabulary.eog]
        return found[: ends[0]] if ends else found

    def copy(self) -> Any:
        """Return a copy of the LlgMatcher."""
        return ffi.gc(self._lib.llg_clone_matcher(self.handle), self._lib.llg_free_matcher)


def reason_of(message: bytes) -> str:
    """Return llguidance's message, without its placeholders for omitted parts."""
    text = message.decode("utf-8", "replace").replace("<non-verbose/>", "").strip()
    return NO_WAY if text.startswith("NoExtensionBias") else text[:400]


NO_WAY = "no token can follow, and the grammar is not complete"


def _explained(constraint: Constraint, reason: str) -> UmaError:
    error = refused(constraint, reason)
    if constraint.kind == "json_schema":
        keyword = _keyword_in(reason, constraint.value)
        error.detail.update({"keyword": keyword} if keyword else {})
    return error


def _keyword_in(reason: str, value: Any) -> str:
    """Return the keyword that llguidance's message is about: the message names it, or quotes its value."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            for keyword in sorted(schema.KEYWORDS & item.keys(), key=len, reverse=True):
                quoted = keyword == "pattern" and isinstance(item[keyword], str) and item[keyword] in reason
                if quoted or keyword in reason:
                    return keyword
            todo += item.values()
        elif isinstance(item, list):
            todo += item
    return ""
