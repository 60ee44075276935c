"""A limit on the time that a chat template computes.

A template is a program that came with a model file, and one with loops inside loops computes for days. It would hold a
thread that reads prompts, and the interpreter lock that the streams need. A thread cannot be ended from outside, so
each turn of a loop and each call of a macro looks at the clock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_thread = threading.local()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Limit the processor time of all that templates do on this thread inside the block."""
    _thread.seconds, _thread.end_s = seconds, time.thread_time() + seconds
    try:
        yield
    finally:
        _thread.end_s = float("inf")


def _step() -> str:
    """Raises: TemplateError when the time is over."""
    if time.thread_time() > getattr(_thread, "end_s", float("inf")):
        raise jinja2.TemplateError(f"it computes for more than {_thread.seconds:g} s")
    return ""


class TimedEnvironment(ImmutableSandboxedEnvironment):
    """An environment whose templates obey `limited`."""

    step = staticmethod(_step)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        timed: nodes.Template = _Steps().visit(super()._parse(source, name, filename))
        return timed


class _Steps(NodeTransformer):
    """Puts a step at the beginning of everything that may be repeated."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_For
