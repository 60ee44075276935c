"""A cluster's configuration: the contents of cluster.yaml (docs/CLUSTER.md), checked completely before anything is
started.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from uma_core.config.merge import Inputs, merge, read_yaml
from uma_core.errors import ErrorCode, UmaError
from uma_gateway.config import PREFIX, SCHEMA, Config

WORDS = {int: "an integer", float: "a number", str: "a text", dict: "a mapping"}
MOST_S = 10_000_000.0  # four months; more is a mistake
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ModelSettings:
    """One model."""

    name: str = ""  # name in requests
    daemon: tuple[str, ...] = ()  # flags of `uma-core daemon`, such as --model FILE
    # socket of a daemon that other software keeps running on every node: it is used, but never started
    socket: str = ""
    replicas: int = 1  # nodes that always have it; 0: it is loaded when a request asks for it
    idle_s: float = 600.0  # with `replicas` 0 the model may be evicted after this long without a request
    memory_mb: int = 0  # memory that the model takes; 0: the daemon's estimate


@dataclass(frozen=True)
class ClusterSettings:
    """The whole file."""

    models: tuple[ModelSettings, ...] = ()
    nodes: int = 0  # nodes that get daemons; 0: all that the Ray cluster has
    address: str = ""  # address of the Ray cluster; empty: this machine's, which is started if necessary
    gateways: int = 1  # processes that answer HTTP
    host: str = "127.0.0.1"
    port: int = 8080
    memory_mb: int = 0  # memory of a node for models; 0: all that is free
    key: str = ""  # secret of the digests' hashes, in hexadecimal; empty: a new one at each start
    lost_s: float = 10.0  # a daemon that sends nothing for this long counts as lost
    load_s: float = 600.0  # time that a model may take to load
    drain_s: float = 600.0  # time that running answers get before a node leaves
    gateway: dict[str, Any] = field(default_factory=dict)  # options of the gateway, as in its own file


def load(path: str, **given: Any) -> ClusterSettings:
    """Read a file ("": none), then apply the values of the command line. Raises: CONFIG_INVALID."""
    values = dict(read_yaml(path)) if path else {}
    values |= {name: value for name, value in given.items() if value is not None}
    return parse(values, path or "the command line")


def parse(values: dict[str, Any], source: str = "cluster.yaml") -> ClusterSettings:
    """Check the values of a file. Raises: CONFIG_INVALID."""
    settings: ClusterSettings = _built(ClusterSettings, values, source, "")
    models = values.get("models", ())
    if not isinstance(models, list | tuple) or not models:
        raise _invalid(source, "`models` must list at least one model")
    parsed = tuple(_model(value, source, f"models[{i}].") for i, value in enumerate(models))
    names = [model.name for model in parsed]
    if len(set(names)) < len(names):
        raise _invalid(source, "two models have the same name")
    sockets = [model.socket for model in parsed if model.socket]
    if len(set(sockets)) < len(sockets):
        raise _invalid(source, "two models have the same `socket`: a daemon has one model")
    if not any(model.replicas for model in parsed):
        raise _invalid(source, "at least one model must have `replicas`: the first one answers requests that name none")
    key = settings.key.lower() or secrets.token_hex(32)
    if not re.fullmatch(r"([0-9a-f]{2}){16,64}", key):
        raise _invalid(source, "`key` must be 16 to 64 bytes in hexadecimal")
    if min(settings.nodes, settings.port, settings.memory_mb) < 0 or settings.gateways < 1 or settings.port > 65_535:
        text = "`nodes`, `port`, `memory_mb` and `gateways` must be counts, `port` at most 65535, `gateways` at least 1"
        raise _invalid(source, text)
    if (
        not all(0 < time_s <= MOST_S for time_s in (settings.lost_s, settings.load_s))
        or not 0 <= settings.drain_s <= MOST_S
    ):
        raise _invalid(source, f"`lost_s`, `load_s` and `drain_s` must be times in seconds, of at most {MOST_S:.0f}")
    settings = dataclasses.replace(settings, models=parsed, key=key)
    gateway_config(settings)
    return settings


def gateway_config(settings: ClusterSettings) -> Config:
    """Return the gateway's options: its defaults, the variables, the file's section. Raises: CONFIG_INVALID."""
    given = {"serve.host": settings.host, "serve.port": str(settings.port)}
    known = {opt.key: opt for opt in SCHEMA.options}
    for section, options in settings.gateway.items():
        for name, value in (options if isinstance(options, dict) else {} if options is None else {"": options}).items():
            key = f"{section}.{name}".rstrip(".")
            if key not in known:
                raise _invalid("gateway", f"there is no option `{key}`{_hint(key, list(known))}")
            if value is None:
                raise _invalid("gateway", f"`{key}` has no value: give one, or leave the line out")
            if key in ("serve.host", "serve.port"):  # Serve listens at the file's `host` and `port`, not at these
                raise _invalid("gateway", f"the cluster listens where `{name}` says, not `gateway.{key}`")
            text = (
                ",".join(map(str, value))
                if isinstance(value, list)
                else str(value).lower()
                if isinstance(value, bool)
                else str(value)
            )
            given[key] = text
    environ = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
    return merge(SCHEMA, Inputs(given, environ, ""))[0]


def _model(value: Any, source: str, where: str) -> ModelSettings:
    if not isinstance(value, dict):
        raise _invalid(source, f"`{where[:-1]}` must be a mapping")
    model: ModelSettings = _built(ModelSettings, value, source, where)
    if not NAME.fullmatch(model.name):
        raise _invalid(source, f"`{where}name` must be 1 to 64 letters, digits, dots, dashes and underscores")
    flags = value.get("daemon", ())
    flags = flags.split() if isinstance(flags, str) else flags
    if not isinstance(flags, list | tuple):
        raise _invalid(source, f"`{where}daemon` must be a list of flags")
    if model.replicas < 0 or not model.idle_s >= 0 or model.memory_mb < 0:  # written so that NaN fails
        raise _invalid(source, f"`{where}`: counts and times must not be negative")
    if model.socket and flags:  # no daemon would be started with these flags
        raise _invalid(source, f"`{where[:-1]}`: `daemon` or `socket`, not both")
    return dataclasses.replace(model, daemon=tuple(str(flag) for flag in flags))


def _built(kind: type[Any], values: dict[str, Any], source: str, where: str) -> Any:
    """Build a dataclass. Scalars are checked by the type of their default; the caller checks lists and maps."""
    fields = {each.name: each for each in dataclasses.fields(kind)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise _invalid(source, f"there is no `{where}{name}`{_hint(str(name), list(fields))}")
        default = fields[name].default
        if isinstance(default, tuple):
            continue
        wanted = dict if default is dataclasses.MISSING else type(default)
        found[name] = _typed(wanted, value, source, where + name)
    return kind(**found)


def _typed(kind: type[Any], value: Any, source: str, path: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _invalid(source, f"`{path}` must be {WORDS[kind]}")
    return value


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _invalid(source: str, message: str) -> UmaError:
    return UmaError(ErrorCode.CONFIG_INVALID, f"{source}: {message}")
