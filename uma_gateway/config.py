"""Every option of the gateway, declared once: flags, variables, YAML keys, checks and the tables of docs/GATEWAY.md
are derived from it.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field

from uma_core.config.merge import Schema
from uma_core.config.schema import Option, option, options_of

PREFIX = "UMA_GATEWAY_"
_HOUR_S = 3600.0
_DAY_S = 86_400.0
FILES = "file://"  # the origin that desktop programs made with Electron send for their pages; a browser's is null


@dataclass(frozen=True)
class ServeOptions:
    """Where the gateway listens, and which daemon it serves."""

    socket: str = option(
        "", "path of the daemon's Unix socket; empty: search for it as every client does", is_path=True
    )
    host: str = option("127.0.0.1", "address to listen on; an address other than loopback needs keys, or --insecure")
    port: int = option(8080, "port to listen on; 0: any free port, which the log names", min=0, max=65_535)
    tls_cert: str = option("", "file with the TLS certificate chain, PEM; empty: plain HTTP", is_path=True)
    tls_key: str = option("", "file with the certificate's private key, PEM", is_path=True)
    insecure: bool = option(False, "allow an address that others can reach, without any key")
    model_alias: str = option("", "name that clients see for the model; empty: the daemon's name for it")


@dataclass(frozen=True)
class AccessOptions:
    """Who may send requests."""

    api_key_file: str = option(
        "", "YAML file of API keys (docs/GATEWAY.md); read again at SIGHUP; empty: no keys from a file", is_path=True
    )
    api_key: str = option("", "one key that may do everything; prefer the variable, because every user can see flags")
    allowed_hosts: tuple[str, ...] = option(
        (), "further host names that requests may be sent to; `*`: any (no guard against DNS rebinding)"
    )
    cors_origins: tuple[str, ...] = option(
        (), "exact origins whose web pages may send requests, such as https://chat.example.org"
    )


@dataclass(frozen=True)
class LimitOptions:
    """What one client may use."""

    max_body_mb: float = option(32.0, "largest request body", unit="MiB", min=0.001, max=1024)
    max_header_kb: int = option(64, "largest request line and headers together", unit="KiB", min=1, max=1024)
    max_json_depth: int = option(128, "deepest nesting of a body's JSON", min=8, max=256)
    header_timeout_s: float = option(
        10.0, "time that a client has to send a request's headers", unit="s", min=0.1, max=_HOUR_S
    )
    body_timeout_s: float = option(
        60.0, "time that a client has to send a request's body", unit="s", min=0.1, max=_HOUR_S
    )
    write_timeout_s: float = option(
        60.0, "drop a client that reads nothing for this long", unit="s", min=0.1, max=_HOUR_S
    )
    keep_alive_s: float = option(75.0, "close a connection that is idle for this long", unit="s", min=1, max=_HOUR_S)
    max_connections: int = option(
        1024, "most open HTTP connections; further ones are closed at once", min=1, max=100_000
    )
    max_in_flight: int = option(
        512,
        "most requests that are answered at once, of all clients together; further ones get 503",
        min=1,
        max=100_000,
    )
    drain_s: float = option(
        30.0, "time for running answers to end when the gateway is told to stop", unit="s", min=0, max=_DAY_S
    )


@dataclass(frozen=True)
class AnswerOptions:
    """Defaults for fields that requests leave out, and how streams are kept alive."""

    temperature: float = option(0.8, "sampling temperature for requests without one; 0: greedy", min=0, max=100)
    top_k: int = option(40, "keep this many of the likeliest tokens; 0: all", min=0, max=1 << 30)
    top_p: float = option(0.95, "keep the likeliest tokens that sum to this probability", min=0.000001, max=1)
    min_p: float = option(
        0.05, "drop tokens whose probability is below this share of the likeliest token's", min=0, max=1
    )
    max_tokens: int = option(
        0,
        "most tokens of an answer, for requests without a limit; 0: as many as the daemon allows",
        unit="tokens",
        min=0,
        max=1 << 24,
    )
    ping_s: float = option(
        15.0,
        "interval between blank lines in a silent stream, without which proxies and clients would close it",
        unit="s",
        min=0.05,
        max=_HOUR_S,
    )
    responses_kept_s: float = option(
        3600.0,
        "how long a response or conversation can be continued by its id; 0: not at all",
        unit="s",
        min=0,
        max=_DAY_S,
    )
    responses_kept_mb: float = option(
        64.0,
        "memory for kept responses and conversations; the oldest are dropped first",
        unit="MiB",
        min=0,
        max=1 << 20,
    )


@dataclass(frozen=True)
class LogOptions:
    """What is written to stderr. Prompts and answers never are."""

    level: str = option(
        "info",
        "least severe lines that are written",
        flag="--log-level",
        choices=("debug", "info", "warning", "error"),
        words={"warn": "warning"},
    )
    format: str = option(
        "text", "concise text, or one JSON object per line", flag="--log-format", choices=("text", "json")
    )
    access: bool = option(True, "write a line for every request", flag="--log-access")

    @property
    def prompts(self) -> bool:
        return False


@dataclass(frozen=True)
class Config:
    serve: ServeOptions = field(default_factory=ServeOptions)
    access: AccessOptions = field(default_factory=AccessOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    answers: AnswerOptions = field(default_factory=AnswerOptions)
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def max_body_bytes(self) -> int:
        return int(self.limits.max_body_mb * (1 << 20))


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, complaint) for values that do not fit together."""
    serve, access = config.serve, config.access
    if bool(serve.tls_cert) != bool(serve.tls_key):
        yield (
            "serve.tls_key" if serve.tls_cert else "serve.tls_cert",
            "is missing: TLS needs the certificate and its key",
        )
    has_keys = bool(access.api_key or access.api_key_file)
    if not is_loopback(serve.host) and not has_keys and not serve.insecure:
        yield (
            "serve.host",
            f"{serve.host} can be reached by others: give keys (UMA_GATEWAY_API_KEY_FILE, access.api_key_file), or "
            "UMA_GATEWAY_INSECURE=true to serve everybody",
        )
    for origin in access.cors_origins:
        is_exact = "://" in origin and not origin.endswith("/")
        if not is_exact and origin != FILES:
            yield "access.cors_origins", f"must be exact origins such as https://chat.example.org, not {origin!r}"


OPTIONS: tuple[Option, ...] = tuple(
    opt
    for section in dataclasses.fields(Config)
    for opt in options_of(section.name, section.default_factory, PREFIX)  # type: ignore[arg-type]
)
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
FOREIGN = frozenset({CONFIG_VARIABLE, f"{PREFIX}LIFELINE"})  # read elsewhere: the command line, the server
SCHEMA = Schema(Config, OPTIONS, conflicts, PREFIX, lambda name: name in FOREIGN)
