"""Merge flag > variable > file > default into a Config, and remember where each value came from.

Rules: the only place that reads configuration files and variables; nothing is silent: an unknown key, a wrong
type or an unfit value is CONFIG_INVALID and names the key and its source.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from uma_core.config import BY_KEY, OPTIONS, Config, conflicts
from uma_core.config_schema import FALSE_WORDS, BadValue, Option, parse_native, parse_text
from uma_core.errors import ErrorCode, UmaError
from uma_core.suggest import suggest

# read elsewhere: by the command line, the native build, clients
FOREIGN_VARIABLES = frozenset({"UMA_CONFIG", "UMA_BACKEND", "UMA_LLAMA_DIR", "UMA_TRUST_UIDS"})
MAX_FILE_BYTES = 1 << 20


class Inputs(NamedTuple):
    """Everything that a Config is made of; a reload loads the same inputs again."""

    flags: Mapping[str, str | bool]  # option key -> text, or True/False for switches
    environ: Mapping[str, str]
    path: str  # of the YAML file; "" without one

    def with_flag(self, key: str, value: str | bool) -> Inputs:
        return self._replace(flags={**self.flags, key: value})


class Sources(NamedTuple):
    """Where the values of a Config came from."""

    inputs: Inputs
    origins: Mapping[str, str]  # option key -> "default", "file PATH", "variable NAME", "flag --NAME"
    warnings: tuple[str, ...]


class Change(NamedTuple):
    """One difference between two configurations."""

    key: str
    old: Any
    new: Any
    reload: str  # "live", "engine" or "restart"

    @property
    def is_reloadable(self) -> bool:
        return self.reload != "restart"


class _Given(NamedTuple):
    opt: Option
    raw: Any
    origin: str
    parse: Callable[[Option, Any], Any]


def load(inputs: Inputs) -> tuple[Config, Sources]:
    """Build the configuration. Blocks: reads the file. Raises CONFIG_INVALID, with every problem in `detail.problems`."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    origins = {opt.key: "default" for opt in OPTIONS}
    for given in (*_from_file(inputs.path, problems), *_from_environ(inputs.environ), *_from_flags(inputs.flags)):
        try:
            values[given.opt.key] = given.parse(given.opt, given.raw)
        except BadValue as error:
            problems.append(f"{given.opt.key} {error} ({given.origin})")
        origins[given.opt.key] = given.origin
    if not problems:
        config = _build(values, origins)
        problems = [f"{key} {complaint} ({origins[key]})" for key, complaint in conflicts(config)]
    if problems:
        raise UmaError(ErrorCode.CONFIG_INVALID, "; ".join(problems), problems=problems)
    return config, Sources(inputs, origins, tuple(_unknown_variables(inputs.environ)))


def diff(old: Config, new: Config) -> list[Change]:
    """List what differs, in the order of declaration. Pure."""
    return [Change(opt.key, old.get(opt), value, opt.reload) for opt, value in new.items() if old.get(opt) != value]


def _build(values: Mapping[str, Any], origins: dict[str, str]) -> Config:
    sections: dict[str, dict[str, Any]] = {section.name: {} for section in dataclasses.fields(Config)}
    for key, value in values.items():
        sections[BY_KEY[key].section][BY_KEY[key].name] = value
    config = Config(**{item.name: item.default_factory(**sections[item.name]) for item in dataclasses.fields(Config)})  # type: ignore
    return _lower_defaults(config, origins)


def _lower_defaults(config: Config, origins: dict[str, str]) -> Config:
    """Lower defaults to the caps that the user chose: who sets n_batch need not set n_ubatch too."""
    for opt, value in config.items():
        cap = opt.extra.get("cap", "")
        if cap and origins[opt.key] == "default" and value > config.get(BY_KEY[cap]):
            section = dataclasses.replace(getattr(config, opt.section), **{opt.name: config.get(BY_KEY[cap])})
            config = dataclasses.replace(config, **{opt.section: section})
            origins[opt.key] = f"default, lowered to {cap}"
    return config


def _from_flags(flags: Mapping[str, str | bool]) -> Iterator[_Given]:
    for key, raw in flags.items():
        opt = BY_KEY[key]
        yield _Given(opt, raw, f"flag {opt.flag}", parse_native if isinstance(raw, bool) else parse_text)


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Given]:
    for opt in OPTIONS:
        switch, meaning = opt.extra.get("env_switch", ("", ""))
        if opt.env in environ:
            yield _Given(opt, environ[opt.env], f"variable {opt.env}", parse_text)
        elif environ.get(switch, "").strip().lower() not in FALSE_WORDS:
            yield _Given(opt, meaning, f"variable {switch}", parse_text)


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = {opt.env for opt in OPTIONS} | {opt.extra["env_switch"][0] for opt in OPTIONS if "env_switch" in opt.extra} | FOREIGN_VARIABLES
    for name in sorted(environ):
        if name.startswith("UMA_") and name not in known:
            yield f"the variable {name} is not an option{suggest(name, known)}"


def _from_file(path: str, problems: list[str]) -> Iterator[_Given]:
    if not path:
        return
    for key, value in _flatten(_read_yaml(path), path, problems):
        yield _Given(BY_KEY[key], value, f"file {path}", parse_native)


def _flatten(tree: Mapping[Any, Any], path: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    sections = {section.name for section in dataclasses.fields(Config)}
    for name, value in tree.items():
        if name not in sections:
            entries: list[tuple[str, Any]] = [(str(name), value)]
        elif value is None or isinstance(value, dict):
            entries = [(f"{name}.{key}", item) for key, item in (value or {}).items()]
        else:
            problems.append(f"{name} must be a section with options in it, not {value!r} (file {path})")
            continue
        for key, item in entries:
            if key in BY_KEY:
                yield key, item
            else:
                problems.append(f"{key} is not an option{suggest(key, [*BY_KEY, *sections])} (file {path})")


def _read_yaml(path: str) -> Mapping[Any, Any]:
    try:
        tree = yaml.load(_read_file(path), _StrictLoader)
    except OSError as error:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"cannot read {path}: {error.strerror}", path=path) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: bytes that are not UTF-8, impossible dates
        text = " ".join(str(error).split())
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{path} is not YAML: {text}", path=path) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{path} must contain sections, not {type(tree).__name__}", path=path)
    return tree


def _read_file(path: str) -> str:
    """A pipe or a device could block its reader for ever, or never end. Raises: CONFIG_INVALID, OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UmaError(ErrorCode.CONFIG_INVALID, f"cannot read {path}: not a regular file", path=path)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{path} is larger than a configuration can be", path=path)
    return data.decode()


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is written twice, where YAML would keep the last one without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} appears twice", node.start_mark)
        return super().construct_mapping(node, deep)
