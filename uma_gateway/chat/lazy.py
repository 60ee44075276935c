"""An attribute that is computed when it is first read, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class lazy(Generic[Value]):
    """`functools.cached_property` without the lock that it has in Python before 3.12. That lock serves all objects of
    the class and is held while a value is computed. Parts of a grammar ask each other for values, so the threads of two
    requests waited for each other for ever. Without it two threads may both compute a value, so the result must be the
    same each time.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        value = self._make(instance)
        instance.__dict__[self._name] = value  # found before this descriptor from now on
        return value
