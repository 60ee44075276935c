"""Merges flag > variable > file > preset > default into a program's configuration, and records each value's origin.

Rules: the only place that reads configuration files and variables. Nothing is ignored silently: an unknown key, a wrong
type or an invalid value raises CONFIG_INVALID, which names the key and its source. Knows no particular option.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import yaml

from uma_core.config.schema import FALSE_WORDS, BadValue, Option, parse_native, parse_text, shown
from uma_core.errors import ErrorCode, UmaError
from uma_core.regular import read_regular
from uma_core.suggest import suggest

MAX_FILE_BYTES = 1 << 20
N_PROBLEMS_MOST = 50  # of a file's keys; limited because each unknown key is compared with all options
N_TEXT_MOST = 500  # characters of one problem

C = TypeVar("C")


@dataclass(frozen=True)
class Schema(Generic[C]):
    """All options of one program. `config` is a dataclass whose fields are the sections, dataclasses of options."""

    config: type[C]
    options: tuple[Option, ...]
    conflicts: Callable[[C], Iterator[tuple[str, str]]]  # (key, complaint) for values that do not fit together
    prefix: str  # of the names of the program's variables
    is_foreign: Callable[[str], bool]  # whether a variable with that prefix belongs to another program
    # value of the option `preset` -> option key -> value
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def by_key(self) -> dict[str, Option]:
        return {opt.key: opt for opt in self.options}

    @cached_property
    def sections(self) -> tuple[str, ...]:
        return tuple(item.name for item in dataclasses.fields(self.config))  # type: ignore[arg-type]

    def get(self, config: C, opt: Option) -> Any:
        return getattr(getattr(config, opt.section), opt.name)

    def items(self, config: C) -> Iterator[tuple[Option, Any]]:
        """Yield every option with its value, in order of declaration."""
        return ((opt, self.get(config, opt)) for opt in self.options)


class Inputs(NamedTuple):
    """Everything that a Config is built from; a reload uses the same inputs again."""

    flags: Mapping[str, str | bool]  # option key -> text, or True/False for switches
    environ: Mapping[str, str]
    path: str  # of the YAML file; "": there is none

    def with_flag(self, key: str, value: str | bool) -> Inputs:
        return self._replace(flags={**self.flags, key: value})


class Sources(NamedTuple):
    """The origins of a Config's values."""

    inputs: Inputs
    origins: Mapping[str, str]  # option key -> "default", "preset NAME", "file PATH", "variable NAME", "flag --NAME"
    warnings: tuple[str, ...]


class _Given(NamedTuple):
    opt: Option
    raw: Any
    origin: str
    parse: Callable[[Option, Any], Any]


def merge(schema: Schema[C], inputs: Inputs) -> tuple[C, Sources]:
    """Build the configuration.

    Blocks: reads the file. Raises CONFIG_INVALID, with every problem in `detail.problems`.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    origins = {opt.key: "default" for opt in schema.options}
    given_values = (
        *_from_file(schema, inputs.path, problems),
        *_from_environ(schema, inputs.environ),
        *_from_flags(schema, inputs.flags),
    )
    for given in given_values:
        try:
            values[given.opt.key] = given.parse(given.opt, given.raw)
        except BadValue as error:
            problems.append(f"{given.opt.key} {str(error)[:N_TEXT_MOST]} ({given.origin})")
        origins[given.opt.key] = given.origin
    for key, value in schema.presets.get(values.get("preset", ""), {}).items():
        if key not in values:
            values[key], origins[key] = value, f"preset {values['preset']}"
    if not problems:
        config = _build(schema, values, origins)
        complaints = (*_over_caps(schema, config), *schema.conflicts(config))
        problems = [f"{key} {complaint[:N_TEXT_MOST]} ({origins[key]})" for key, complaint in complaints]
    if problems:
        raise UmaError(ErrorCode.CONFIG_INVALID, "; ".join(problems), problems=problems)
    return config, Sources(inputs, origins, tuple(_unknown_variables(schema, inputs.environ)))


def _build(schema: Schema[C], values: Mapping[str, Any], origins: dict[str, str]) -> C:
    sections: dict[str, dict[str, Any]] = {section: {} for section in schema.sections}
    for key, value in values.items():
        sections[schema.by_key[key].section][schema.by_key[key].name] = value
    made = {item.name: item.default_factory(**sections[item.name]) for item in dataclasses.fields(schema.config)}  # type: ignore
    return _lower_defaults(schema, schema.config(**made), origins)


def _lower_defaults(schema: Schema[C], config: C, origins: dict[str, str]) -> C:
    """Lower defaults and preset values to the caps that the user set, so that a user who sets n_batch need not set
    n_ubatch.
    """
    for opt in schema.options:
        cap = opt.extra.get("cap", "")
        if not cap or not origins[opt.key].startswith(("default", "preset ")):
            continue
        most = schema.get(config, schema.by_key[cap])
        if schema.get(config, opt) > most:
            section = dataclasses.replace(getattr(config, opt.section), **{opt.name: most})
            config = dataclasses.replace(config, **{opt.section: section})  # type: ignore[type-var]
            origins[opt.key] += f", lowered to {cap}"
    return config


def _over_caps(schema: Schema[C], config: C) -> Iterator[tuple[str, str]]:
    for opt, value in schema.items(config):
        cap = opt.extra.get("cap", "")
        if cap and value > (most := schema.get(config, schema.by_key[cap])):
            yield opt.key, f"must be at most {cap} ({most}), not {value}"


def _from_flags(schema: Schema[C], flags: Mapping[str, str | bool]) -> Iterator[_Given]:
    for key, raw in flags.items():
        opt = schema.by_key[key]
        yield _Given(opt, raw, f"flag {opt.flag}", parse_native if isinstance(raw, bool) else parse_text)


def _from_environ(schema: Schema[C], environ: Mapping[str, str]) -> Iterator[_Given]:
    for opt in schema.options:
        switch, meaning = opt.extra.get("env_switch", ("", ""))
        if opt.env in environ:
            yield _Given(opt, environ[opt.env], f"variable {opt.env}", parse_text)
        elif environ.get(switch, "").strip().lower() not in FALSE_WORDS:
            yield _Given(opt, meaning, f"variable {switch}", parse_text)


def _unknown_variables(schema: Schema[C], environ: Mapping[str, str]) -> Iterator[str]:
    known = {opt.env for opt in schema.options} | {
        opt.extra["env_switch"][0] for opt in schema.options if "env_switch" in opt.extra
    }
    for name in sorted(environ):
        if name.startswith(schema.prefix) and name not in known and not schema.is_foreign(name):
            yield f"the variable {name} is not an option{suggest(name, known)}"


def _from_file(schema: Schema[C], path: str, problems: list[str]) -> Iterator[_Given]:
    if not path:
        return
    seen: set[str] = set()  # an option has two spellings: in its section, and with a dotted key
    for key, value in _flatten(schema, read_yaml(path), path, problems):
        if key in seen:
            problems.append(f"{key} appears twice (file {path})")
        seen.add(key)
        yield _Given(schema.by_key[key], value, f"file {path}", parse_native)


def _flatten(schema: Schema[C], tree: Mapping[Any, Any], path: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    sections = schema.sections
    for name, value in tree.items():
        if name not in sections:
            entries: list[tuple[str, Any]] = [(_key_text(name), value)]
        elif value is None or isinstance(value, dict):
            entries = [(f"{name}.{_key_text(key)}", item) for key, item in (value or {}).items()]
        else:
            problems.append(f"{name} must be a section with options in it, not {shown(value)} (file {path})")
            continue
        for key, item in entries:
            if key in schema.by_key:
                yield key, item
            elif len(problems) >= N_PROBLEMS_MOST:
                problems.append(f"and more ({path})")
                return
            else:
                problems.append(f"{key} is not an option{suggest(key, [*schema.by_key, *sections])} (file {path})")


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) and len(key) <= N_TEXT_MOST else shown(key)


def read_yaml(path: str) -> Mapping[Any, Any]:
    """Read a strict YAML file that holds one map. Raises: CONFIG_INVALID."""
    tree = _read_yaml(path)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{path} must contain sections, not {type(tree).__name__}", path=path)
    return tree


def read_yaml_list(path: str) -> list[Any]:
    """Read a strict YAML file that holds one list. Raises: CONFIG_INVALID."""
    tree = _read_yaml(path)
    if tree is None:
        return []
    if not isinstance(tree, list):
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{path} must contain a list, not {type(tree).__name__}", path=path)
    return tree


def _read_yaml(path: str) -> Any:
    try:
        return yaml.load(_read_file(path), _StrictLoader)
    except OSError as error:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"cannot read {path}: {error.strerror}", path=path) from error
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: bytes that are not UTF-8, impossible dates
        text = " ".join(str(error).split())[:N_TEXT_MOST]
        text = text.replace('in "<unicode string>", line', "in line")  # the message names the file already
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{path} is not YAML: {text}", path=path) from error


def _read_file(path: str) -> str:
    """Return a file's text. Raises: CONFIG_INVALID, OSError, ValueError."""
    data = read_regular(path, MAX_FILE_BYTES)
    if len(data) > MAX_FILE_BYTES:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"{path} is larger than a configuration can be", path=path)
    return data.decode()


class _StrictLoader(yaml.SafeLoader):
    """Refuses two things that YAML accepts silently: a repeated key (only the last value would count), and aliases,
    with which a few hundred bytes can expand to any number of values. Numbers with colons are read as strings.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"the alias {shown('*' + event.anchor)}: write the value itself", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError) as error:  # what PyYAML's constructors raise for such as `!!bool maybe`
            kind = node.tag.rpartition(":")[2]
            text = f"{shown(node.value)} is not {'an' if kind.startswith(tuple('aeiou')) else 'a'} {kind}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                text = f"the key {shown(key.value)} appears twice"
                raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _resolvers(first: str) -> list[tuple[str, re.Pattern[str]]]:
    """Return how to read a scalar that starts with this character. YAML 1.1 reads 1:30 as ninety, and 1e-05, which JSON
    writes, as a string; both are changed here.
    """
    return [
        (tag, _NUMBERS.get(tag, pattern)) for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(first, ())
    ]


_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0b[0-1_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)\Z"),
    "tag:yaml.org,2002:float": re.compile(
        r"([-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+|[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
    ),
}
_StrictLoader.yaml_implicit_resolvers = {first: _resolvers(first) for first in yaml.SafeLoader.yaml_implicit_resolvers}
