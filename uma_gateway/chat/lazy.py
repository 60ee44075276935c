"""A value of an object that is made at its first reading and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class lazy(Generic[Value]):
    """`functools.cached_property` without its lock, which Python has before 3.12: one for all objects of the class,
    held while the value is made. Parts of a grammar ask each other, and the threads of two requests waited for each
    other for good. Two threads may make a value twice, so it must be the same each time.
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
