"""The chat library through ctypes: JSON out, JSON back, errors as exceptions.

Rules: only this file uses the shared object, which is loaded on first use, in the gateway's process, never in the
engine's. Every call but one releases the interpreter lock. A template handle may be used by several threads, a parser
handle by one at a time.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson

from uma_gateway.chat.errors import ChatCode, ChatError

INTERFACE = 4  # as in native/chat/chat.cpp
LIBRARY = (
    Path(__file__).resolve().parent.parent
    / "lib"
    / ("libuma_chat.dylib" if sys.platform == "darwin" else "libuma_chat.so")
)
_REBUILD = "run `make build`, or install UMA Serve again"

_KINDS = {
    "request": ChatCode.BAD_REQUEST,
    "depth": ChatCode.TOO_DEEP,
    "schema": ChatCode.SCHEMA_UNSUPPORTED,
    "template": ChatCode.TEMPLATE_FAILED,
    "time": ChatCode.TEMPLATE_UNSAFE,
    "answer": ChatCode.INTERNAL,  # the parser returns such an answer unchanged
    "memory": ChatCode.OVERLOADED,
    "internal": ChatCode.INTERNAL,
}
_PREFIX = "Unable to generate parser for this template. Automatic parser generation failed: "
MAX_MESSAGE = 500  # characters of an error; llama.cpp repeats whole requests in some errors


class LibraryError(ChatError):
    """An error that the library returned. `log`: what llama.cpp logged during the call."""

    def __init__(self, kind: str, message: str, log: str) -> None:
        # in one place llama.cpp throws a copy of the base class, so only its log has the reason
        super().__init__(
            _KINDS.get(kind, ChatCode.INTERNAL), _readable(log if message == "std::exception" else message)
        )
        self.kind = kind
        self.log = log


def _readable(message: str) -> str:
    """Return llama.cpp's message without the parts that only its developers need: the place in the template, whole
    requests.
    """
    message = message.rpartition("Jinja Exception: ")[2].removeprefix(_PREFIX).strip()
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"


@functools.cache
def load() -> ctypes.CDLL:
    """Load the shared object, once. Raises: ChatError if it is missing or has another version."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        found = library.uma_chat_interface()
    except (OSError, AttributeError) as error:
        raise ChatError(ChatCode.UNAVAILABLE, f"the chat library cannot be loaded: {error}; {_REBUILD}") from error
    if found != INTERFACE:
        raise ChatError(
            ChatCode.UNAVAILABLE, f"the chat library has interface {found}, {INTERFACE} is needed; {_REBUILD}"
        )
    if sys.platform == "darwin" and not threading.stack_size():
        # the same stack as on Linux; with the 512 KB of macOS requests could be nested 15 levels deep at most
        threading.stack_size(8 << 20)
    text, handle, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
    answer = ctypes.c_void_p  # not c_char_p, because the pointer is needed to free the string
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "uma_chat_free": (None, [answer]),
        "uma_chat_templates_new": (answer, [text, ctypes.POINTER(handle)]),
        "uma_chat_templates_delete": (None, [handle]),
        "uma_chat_apply": (answer, [handle, text]),
        "uma_chat_parser_new": (answer, [text, ctypes.POINTER(handle)]),
        "uma_chat_parser_delete": (None, [handle]),
        "uma_chat_parser_feed": (answer, [handle, text, size, ctypes.c_int]),
        "uma_chat_parser_rewind": (None, [handle, size]),
        "uma_chat_check_schema": (answer, [text]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def passer() -> Callable[[ctypes.c_void_p, bytes, int], int]:
    """Return `uma_chat_parser_pass`, which keeps the interpreter lock: the call is shorter than releasing the lock and
    waiting for it again.
    """
    load()
    function = ctypes.PyDLL(str(LIBRARY)).uma_chat_parser_pass
    function.restype, function.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    return cast("Callable[[ctypes.c_void_p, bytes, int], int]", function)


def encode(value: Any, what: str) -> bytes:
    """Write JSON for the library. Raises: ChatError if the value, or a name in it, cannot be JSON.

    Writing and reading JSON holds the interpreter lock throughout, and a conversation may be megabytes.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        if "Recursion" in str(error):
            raise ChatError(ChatCode.TOO_DEEP, f"{what} is nested too deep") from None
        raise ChatError(ChatCode.BAD_REQUEST, f"{what} cannot be written as JSON: {error}") from None


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the library and return its result. Raises: LibraryError."""
    library = load()
    pointer = getattr(library, name)(*arguments)
    if not pointer:
        raise LibraryError("memory", "out of memory", "")
    try:
        answer = orjson.loads(ctypes.string_at(pointer))
    finally:
        library.uma_chat_free(pointer)
    error = answer.get("error")
    if error is not None:
        # llama.cpp's template engine wraps C++ exceptions in its own error
        is_short = "std::bad_alloc" in error["message"]
        raise LibraryError("memory" if is_short else error["kind"], error["message"], error["log"])
    return answer["ok"]


class Handle:
    """An object of the library, freed with its Python owner."""

    def __init__(self, kind: str, request: bytes) -> None:
        self._delete = getattr(load(), f"uma_chat_{kind}_delete")
        self.pointer = ctypes.c_void_p()
        self.facts = call(f"uma_chat_{kind}_new", request, ctypes.byref(self.pointer))

    def __del__(self) -> None:
        pointer = getattr(self, "pointer", None)
        if pointer:
            self._delete(pointer)
