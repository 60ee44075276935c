"""Builds matchers for requests' constraints, on the intake's threads. Caches vocabularies and compiled grammars."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import MutableMapping

from uma_core.constraint.grammar import Grammar, refused
from uma_core.constraint.matcher import Matcher
from uma_core.constraint.pattern import PatternError
from uma_core.constraint.schema import measure
from uma_core.constraint.triggers import Scanner, rules_of
from uma_core.constraint.vocabulary import Text, Vocabulary
from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics import catalog as metrics
from uma_core.metrics.catalog import Registry
from uma_core.types import Constraint

N_KEPT_MOST = 64  # grammars cached per model
N_BYTES_KEPT_MOST = 1 << 20  # total size of their sources, because the size of compiled grammars was not measured

Key = tuple[str, str, str]


class _Model:
    """The objects cached for one model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.vocabulary: Vocabulary | None = None
        self.grammars: OrderedDict[Key, Grammar] = OrderedDict()  # least recently used first


class Compiler:
    """For any thread."""

    def __init__(self, registry: Registry) -> None:
        self._lock = threading.Lock()
        self._models: MutableMapping[Text, _Model] = weakref.WeakKeyDictionary()
        self._hits = registry.counter(metrics.CONSTRAINT_CACHE, result="hit")
        self._misses = registry.counter(metrics.CONSTRAINT_CACHE, result="miss")
        self._time = registry.histogram(metrics.CONSTRAINT_COMPILE)

    def compile(self, text: Text, constraint: Constraint) -> Matcher:
        """Return a matcher for one answer of the model that reads `text`.

        Blocks: 0.3 to 3 ms for a new grammar; for a model's first one, also the time to build its vocabulary. Raises:
        CONSTRAINT_REFUSED, CONSTRAINTS_UNAVAILABLE.
        """
        with self._lock:
            model = self._models.setdefault(text, _Model())
        with model.lock:
            if model.vocabulary is None:
                model.vocabulary = Vocabulary(text)
        scanner = _scanner(constraint, model.vocabulary)
        return Matcher(self._grammar(model, model.vocabulary, constraint), scanner)

    def _grammar(self, model: _Model, vocabulary: Vocabulary, constraint: Constraint) -> Grammar:
        key = (constraint.kind, _text(constraint), constraint.prefix)
        with model.lock:
            kept = model.grammars.get(key)
            if kept is not None and not kept.is_spoilt:
                model.grammars.move_to_end(key)
                self._hits.add()
                return kept
        self._misses.add()
        begun_ns = time.monotonic_ns()
        grammar = Grammar(vocabulary, constraint)
        self._time.observe(time.monotonic_ns() - begun_ns)
        if grammar.is_done:
            if constraint.prefix:  # a cluster learns so that the answer that it continues has its end already
                raise refused(constraint, "the text that begins the answer is all of it already", is_complete=True)
            raise refused(constraint, "it allows only the empty answer")
        with model.lock:
            model.grammars[key] = grammar
            _trim(model.grammars)
        return grammar


def _trim(grammars: OrderedDict[Key, Grammar]) -> None:
    n_bytes = sum(grammar.n_bytes for grammar in grammars.values())
    while len(grammars) > N_KEPT_MOST or n_bytes > N_BYTES_KEPT_MOST:
        n_bytes -= grammars.popitem(last=False)[1].n_bytes


def _text(constraint: Constraint) -> str:
    if isinstance(constraint.value, str):
        return constraint.value
    measure(constraint.value)
    return json.dumps(constraint.value, ensure_ascii=False)


def _scanner(constraint: Constraint, vocabulary: Vocabulary) -> Scanner | None:
    if not constraint.triggers:
        return None
    try:
        rules = rules_of(constraint.triggers, vocabulary.id_of)
    except (PatternError, ValueError) as error:
        field = "constraint.triggers"
        raise UmaError(ErrorCode.CONSTRAINT_REFUSED, f"`{field}`: {error}", field=field) from None
    return Scanner(rules, vocabulary.spell, vocabulary.tokens_of)
