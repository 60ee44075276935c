"""Caches results of recent calls by their texts, because a client sends the same tools with every request.

Rules: only the digests of the texts are kept. The texts may be megabytes, and those of refused requests are of no use.
Results are kept up to a number and a size. Any thread may call.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result", str, tuple[str, ...])

N_MOST = 128
N_CHARACTERS_MOST = 8 << 20  # in all results of one function


def kept(make: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap a function that returns texts. An argument is identified by its `str`. Errors are not kept."""
    results: OrderedDict[bytes, Result] = OrderedDict()
    lock = threading.Lock()
    n_characters = 0

    @functools.wraps(make)
    def found(*arguments: object) -> Result:
        nonlocal n_characters
        key = _digest(arguments)
        with lock:
            if key in results:
                results.move_to_end(key)
                return results[key]
        result = make(*arguments)
        with lock:
            if key not in results:
                results[key] = result
                n_characters += _size(result)
            while len(results) > N_MOST or n_characters > N_CHARACTERS_MOST:
                n_characters -= _size(results.popitem(last=False)[1])
        return result

    return found


def _size(result: str | tuple[str, ...]) -> int:
    return sum(map(len, result))


def _digest(arguments: tuple[object, ...]) -> bytes:
    digest = hashlib.sha256()
    for argument in arguments:
        data = str(argument).encode("utf-8", "surrogatepass")
        digest.update(b"%d " % len(data))
        digest.update(data)
    return digest.digest()
