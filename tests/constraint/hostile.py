"""Compiles one constraint, follows the first tokens that it allows, and prints what became of it.

`python -m tests.constraint.hostile EXPRESSION`: the expression's value are a Constraint's arguments.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from uma_core.constraint.compiler import Compiler
from uma_core.engine.fake.engine import FakeEngine
from uma_core.errors import UmaError
from uma_core.metrics.catalog import new_registry
from uma_core.types import Constraint


def run(expression: str) -> None:
    engine = FakeEngine()
    try:
        matcher = Compiler(new_registry()).compile(engine, Constraint(*eval(expression)))
        for _ in range(20 * (matcher.mask is not None)):  # None: any token may come before a trigger
            bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")[:256]
            ids = list(matcher.forced)[:1] or np.flatnonzero(bits)
            if matcher.is_done or not len(ids):
                break
            matcher.accept(int(ids[0]))
        print("harmless")
    except UmaError as error:
        print(error.error.name)


if __name__ == "__main__":
    thread = threading.Thread(target=run, args=(sys.argv[1],))  # with a thread's stack
    thread.start()
    thread.join()
