"""API keys: which account a request belongs to, and what and how much each key may do.

The file is a list:

    - name: alice                      # the account: fair shares, `uma-ctl sessions`
      hash: sha256:9f86d081884c7d65…   # hash of the key; `uma-gateway key alice` creates both
      priority: interactive            # highest priority allowed; background: never before interactive requests
      rate: 60                         # requests a minute; 0 or absent: no limit
      max_in_flight: 4                 # requests answered at once; 0 or absent: no limit
      admin: false                     # may drain and reload

Rules: keys are never stored, logged or compared as text; a comparison takes the same time whichever key matches.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from uma_core.config.merge import read_yaml_list
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import PRIORITIES
from uma_gateway.errors import GatewayError, Kind

KEY_PREFIX = "uma-"
MINUTE_S = 60.0
LONGEST_NAME = 64
LEAST_RATE = 1e-6  # requests a minute: one in two years
NAME_RULE = f"must be a text of 1 to {LONGEST_NAME} printable characters"
YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # words that YAML does not read as text
_FIELDS = {"name", "hash", "priority", "rate", "max_in_flight", "admin"}


@dataclass(frozen=True)
class Key:
    """One account."""

    name: str
    digest: bytes  # sha256 of the key
    priority: str = "interactive"
    rate: float = 0.0  # requests a minute; 0: any
    max_in_flight: int = 0  # 0: any
    is_admin: bool = False

    @property
    def burst(self) -> float:
        """Number of requests that may arrive at once: those of a minute, but at least one."""
        return max(1.0, self.rate)


class Caller:
    """The account that a request belongs to, and what is left of its rate. One per key, for the gateway's life."""

    def __init__(self, key: Key, clock: Callable[[], float]) -> None:
        self.key = key
        self.n_in_flight = 0
        self._clock = clock
        self._tokens = key.burst
        self._t_filled = clock()

    @property
    def account(self) -> str:
        return self.key.name

    def become(self, key: Key) -> None:
        """Adopt new values after the file was read again."""
        self._fill()
        self._tokens = min(self._tokens, key.burst) if self.key.rate else key.burst
        self.key = key

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self.key.burst, self._tokens + (now - self._t_filled) * self.key.rate / MINUTE_S)
        self._t_filled = now

    def enter(self) -> None:
        """Count a request that begins. Raises: GatewayError (429), with the time after which to retry."""
        key = self.key
        if key.max_in_flight and self.n_in_flight >= key.max_in_flight:
            message = f"this key has {key.max_in_flight} requests in flight, which is its limit"
            raise GatewayError(Kind.RATE_LIMIT, message, code="too_many_requests")
        if key.rate:
            self._fill()
            if self._tokens < 1.0:
                wait_ms = int((1.0 - self._tokens) * MINUTE_S / key.rate * 1000) + 1
                raise GatewayError(
                    Kind.RATE_LIMIT,
                    f"this key may send {key.rate:g} requests a minute",
                    code="rate_limit_exceeded",
                    retry_after_ms=wait_ms,
                )
            self._tokens -= 1.0
        self.n_in_flight += 1

    def leave(self) -> None:
        self.n_in_flight -= 1

    def rate_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that report the rate, as OpenAI's API does."""
        if not self.key.rate:
            return []
        reset_s = (self.key.burst - self._tokens) * MINUTE_S / self.key.rate
        return [
            (b"x-ratelimit-limit-requests", f"{self.key.rate:g}".encode()),
            (b"x-ratelimit-remaining-requests", str(int(self._tokens)).encode()),
            (b"x-ratelimit-reset-requests", f"{reset_s:.3f}s".encode()),
        ]


ANYBODY = Key("http", b"", is_admin=True)  # the account if no keys are required


class Keys:
    """All keys. If there are none, everybody uses the account `http`."""

    def __init__(self, path: str, single: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Blocks: reads the file. Raises: UmaError (CONFIG_INVALID)."""
        self._path = path
        self._single = Key("api-key", digest_of(single), is_admin=True) if single else None
        self._clock = clock
        self._callers: dict[str, Caller] = {}
        self.anybody = Caller(ANYBODY, clock)
        self.reload()

    @property
    def is_open(self) -> bool:
        """Whether no key is required."""
        return not self._path and self._single is None

    def reload(self) -> int:
        """Read the file again and return the number of keys. Raises: UmaError, and keeps the old keys."""
        keys = load_keys(self._path) if self._path else []
        if self._single is not None:
            keys.append(self._single)
        names: set[str] = set()
        for key in keys:  # check all keys before the first one takes effect
            if key.name in names:
                raise _bad(self._path, f"the name {key.name!r} appears twice")
            names.add(key.name)
        callers: dict[str, Caller] = {}
        for key in keys:
            caller = self._callers.get(key.name)
            if caller is None:
                caller = Caller(key, self._clock)
            else:
                caller.become(key)
            callers[key.name] = caller
        self._callers = callers
        return len(callers)

    def find(self, presented: str) -> Caller | None:
        """Return the account of a key; None: there is no such key. If no keys are required: the common account."""
        if self.is_open:
            return self.anybody
        digest, found = digest_of(presented), None
        for caller in self._callers.values():  # compare with all, so that the time reveals nothing
            if hmac.compare_digest(digest, caller.key.digest):
                found = caller
        return found


def digest_of(key: str) -> bytes:
    """Hash a key. Keys are random and long, so a fast hash is as safe as a slow one."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def entry(name: str, key: str) -> str:
    """Return the lines of the file for a new key. Raises: UmaError (CONFIG_INVALID) for a name that the file does not
    allow.
    """
    if not _is_name(name):
        raise UmaError(ErrorCode.CONFIG_INVALID, f"the name of a key {NAME_RULE}")
    return f"- name: {_scalar(name)}\n  hash: sha256:{digest_of(key).hex()}\n  priority: interactive\n"


def _scalar(text: str) -> str:
    """Return the text as a YAML scalar: plain, or in quotes if YAML could read it as something else, such as `12`,
    `no` or `a: b`.
    """
    is_plain = re.fullmatch(r"[A-Za-z][\w.-]*", text, re.ASCII) and text.lower() not in YAML_WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def load_keys(path: str) -> list[Key]:
    """Read the key file. Raises: UmaError (CONFIG_INVALID) that names the entry at fault."""
    return [_key(path, number, item) for number, item in enumerate(read_yaml_list(path), 1)]


def _key(path: str, number: int, item: Any) -> Key:
    if not isinstance(item, Mapping):
        raise _bad(path, f"entry {number} must be a map with name and hash")
    unknown = sorted(str(name) for name in item.keys() - _FIELDS)
    if unknown:
        raise _bad(path, f"entry {number}: {unknown[0]!r} is not one of {', '.join(sorted(_FIELDS))}")
    name = item.get("name")
    if not _is_name(name):
        raise _bad(path, f"entry {number}: name {NAME_RULE}")
    return Key(
        name,
        _digest(path, name, item.get("hash")),
        _priority(path, name, item.get("priority", "interactive")),
        _rate(path, name, item.get("rate", 0)),
        _whole(path, name, "max_in_flight", item.get("max_in_flight", 0)),
        _flag(path, name, item.get("admin", False)),
    )


def _digest(path: str, name: str, value: Any) -> bytes:
    kind, _, digits = value.partition(":") if isinstance(value, str) else ("", "", "")
    try:
        digest = bytes.fromhex(digits)
    except ValueError:
        digest = b""
    if kind != "sha256" or len(digest) != hashlib.sha256().digest_size:
        raise _bad(path, f"{name}: hash must be sha256: and 64 hexadecimal digits (`uma-gateway key {name}` makes one)")
    if digest == digest_of(""):  # a script hashed a variable that was not set: requests without a key would be let in
        raise _bad(path, f"{name}: hash is that of an empty key (`uma-gateway key {name}` makes one)")
    return digest


def _priority(path: str, name: str, value: Any) -> str:
    if value not in PRIORITIES:
        raise _bad(path, f"{name}: priority must be one of {', '.join(PRIORITIES)}")
    return str(value)


def _number(path: str, name: str, field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise _bad(path, f"{name}: {field} must be a number, 0 for no limit")
    return float(value)


def _rate(path: str, name: str, value: Any) -> float:
    rate = _number(path, name, "rate", value)
    if 0 < rate < LEAST_RATE:  # the time to retry would not be finite
        raise _bad(path, f"{name}: rate must be at least {LEAST_RATE:g}, or 0 for no limit")
    return rate


def _whole(path: str, name: str, field: str, value: Any) -> int:
    number = _number(path, name, field, value)
    if not number.is_integer():
        raise _bad(path, f"{name}: {field} must be a whole number, 0 for no limit")
    return int(number)


def _flag(path: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad(path, f"{name}: admin must be true or false")
    return value


def _bad(path: str, message: str) -> UmaError:
    return UmaError(ErrorCode.CONFIG_INVALID, f"{path}: {message}", path=path)
