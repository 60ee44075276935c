"""How an option is declared, and what is derived from the declaration: names, type, checks.

Rules: knows no particular option, reads no file and no environment. `options.py` declares, `merge.py` merges.
"""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from uma_core.suggest import suggest

if TYPE_CHECKING:
    from typing_extensions import Unpack

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off", ""})


N_BITS_SHOWN = 256  # of a whole number that is shown; Python refuses to write numbers of more than 4,300 digits


class _Shown(reprlib.Repr):
    maxstring = maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= N_BITS_SHOWN else f"a whole number of {x.bit_length()} bits"


shown = _Shown().repr  # a value in an error message: its beginning if it is large


class Extra(TypedDict, total=False):
    """Further properties of a declaration, besides the default and the help text."""

    flag: str  # default: "--" and the attribute's name
    env: str  # default: "UMA_" and the flag's name
    yaml: str  # default: section.attribute
    unit: str
    min: float
    max: float
    choices: tuple[str, ...]  # allowed values: of the option, of a list's items, or of a map's values
    # how a change applies. "live": between two ticks; "engine": by loading a new engine; "restart": not while running;
    # default: the section's RELOAD
    reload: str
    words: Mapping[str, Any]  # words that stand for a value, such as {"auto": -1}
    cap: str  # key of the option that this one must not exceed; a default is lowered to it
    env_switch: tuple[str, str]  # (variable, value): a true variable means that value, unless `env` is set
    is_path: bool  # the text, or a map's value, names a file or folder
    of: type  # type of a list's items or of a map's keys; default str
    values: type  # type of a map's values; default str


@dataclass(frozen=True)
class Option:
    """One declared option. `key` is its place in the YAML file and its name in messages."""

    section: str
    name: str
    key: str
    flag: str
    env: str
    default: Any
    help: str
    extra: Extra

    @property
    def kind(self) -> type:
        return type(self.default)

    @property
    def unit(self) -> str:
        return self.extra.get("unit", "")

    @property
    def choices(self) -> tuple[str, ...]:
        return self.extra.get("choices", ())

    @property
    def reload(self) -> str:
        return self.extra["reload"]


class BadValue(ValueError):
    """A value is not allowed; the text says which values are."""


def option(default: Any, help: str, **extra: Unpack[Extra]) -> Any:
    """Declare an option as a dataclass field."""
    metadata = {"help": help, "extra": extra}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(section: str, cls: type, prefix: str = "UMA_") -> Iterator[Option]:
    """Yield the options that a section's dataclass declares, in order. `prefix` begins the variables' names."""
    for item in dataclasses.fields(cls):
        if "extra" not in item.metadata:
            continue
        extra = cast(Extra, {"reload": getattr(cls, "RELOAD", "restart"), **item.metadata["extra"]})
        default = item.default if item.default is not dataclasses.MISSING else {}
        flag = extra.get("flag") or "--" + item.name.replace("_", "-")
        env = extra.get("env") or prefix + flag[2:].replace("-", "_").upper()
        key = extra.get("yaml") or f"{section}.{item.name}"
        yield Option(section, item.name, key, flag, env, default, item.metadata["help"], extra)


def parse_text(opt: Option, text: str) -> Any:
    """Parse the text of a flag or variable. Raises BadValue."""
    words = opt.extra.get("words", {})
    word = text.strip().lower()
    if word in words:
        return words[word]
    if opt.kind is bool:
        return _bool_word(word)
    if opt.kind is tuple:
        kind = opt.extra.get("of", str)
        return check(opt, [_scalar(opt, part.strip(), kind) for part in text.split(",") if part.strip()])
    if opt.kind is dict:
        return check(opt, _map(_pair(part, opt) for part in text.split(",") if part.strip()))
    return check(opt, _scalar(opt, text if opt.kind is str else text.strip(), opt.kind))


def parse_native(opt: Option, value: Any) -> Any:
    """Convert a YAML value. Raises BadValue."""
    words = opt.extra.get("words", {})
    if value is None:
        raise BadValue("has no value: give one, or leave the line out")
    if isinstance(value, bool) and ("on" if value else "off") in (*opt.choices, *words):
        value = "on" if value else "off"  # YAML 1.1 reads on and off as booleans
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    if isinstance(value, str) and opt.kind in (tuple, dict):
        return parse_text(opt, value)
    return check(opt, value)


def check(opt: Option, value: Any) -> Any:
    """Check a value's type and range, and return it in the option's type. Raises BadValue."""
    if opt.kind is tuple:
        if not isinstance(value, (list, tuple)):
            raise BadValue("must be a list")
        return tuple(_in_range(opt, _one_of(opt, _typed(opt, item, opt.extra.get("of", str)))) for item in value)
    if opt.kind is dict:
        if not isinstance(value, Mapping):
            raise BadValue("must be a map")
        keys, values = opt.extra.get("of", str), opt.extra.get("values", str)
        return {
            _in_range(opt, _typed(opt, key, keys)): _in_range(opt, _one_of(opt, _typed(opt, item, values)))
            for key, item in value.items()
        }
    return _in_range(opt, _one_of(opt, _typed(opt, value, opt.kind)))


def _typed(opt: Option, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return float(value)
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, kind):
        raise BadValue(f"must be {_wanted(opt, kind)}, not {shown(value)}")
    if isinstance(value, str) and "\0" in value:
        raise BadValue("must not contain NUL")
    if isinstance(value, str) and not _can_be_bytes(value):
        raise BadValue(f"must not contain half of a surrogate pair, as {shown(value)} does")
    if isinstance(value, str) and opt.extra.get("is_path") and value.startswith("~"):
        raise BadValue(f"must be a path without ~, which only shells replace, not {shown(value)}")  # not a folder `~`
    return value


def _can_be_bytes(text: str) -> bool:
    """Whether system calls take the text, as they do bytes of a flag or variable that are not UTF-8."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _scalar(opt: Option, text: str, kind: type) -> Any:
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        raise BadValue(f"must be {_wanted(opt, kind)}, not {shown(text)}") from None


def _wanted(opt: Option, kind: type) -> str:
    """Return what a value of this type should be: its type, its range if it is a number, and the words for it."""
    parts = [_TYPE_WORDS[kind], range_text(opt) if kind in (int, float) else ""]
    return " or ".join([", ".join(filter(None, parts)), *opt.extra.get("words", ())])


def _bool_word(word: str) -> bool:
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise BadValue(f"must be true or false, not {shown(word)}")


def _pair(text: str, opt: Option) -> tuple[Any, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadValue(f"must be a list of key=value, not {shown(text)}")
    kinds = opt.extra.get("of", str), opt.extra.get("values", str)
    return _scalar(opt, key.strip(), kinds[0]), _scalar(opt, value.strip(), kinds[1])


def _map(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Make a map. A key that appears twice is refused: only the last value would count. Raises: BadValue."""
    made: dict[Any, Any] = {}
    for key, value in pairs:
        if key in made:
            raise BadValue(f"has the key {shown(key)} twice")
        made[key] = value
    return made


def _one_of(opt: Option, value: Any) -> Any:
    if not opt.choices or not isinstance(value, str):
        return value
    word = value.lower()
    if word not in opt.choices:
        raise BadValue(f"must be one of {', '.join(opt.choices)}, not {shown(value)}{suggest(word, opt.choices)}")
    return word


def _in_range(opt: Option, value: Any) -> Any:
    if isinstance(value, (bool, str)):
        return value
    low, high = opt.extra.get("min", -math.inf), opt.extra.get("max", math.inf)
    if value != value or value in (math.inf, -math.inf) or not low <= value <= high:
        raise BadValue(f"must be {range_text(opt) or 'a finite number'}, not {shown(value)}")
    return value


def value_text(opt: Option) -> str:
    """Return a placeholder for the value, for help and docs."""
    text = "PATH" if opt.extra.get("is_path") else "TEXT"
    if opt.kind is bool:
        return "true|false"
    if opt.kind is dict:
        key, value = opt.extra.get("of", str), opt.extra.get("values", str)
        return f"{'UID' if key is int else 'ID'}={'|'.join(opt.choices) or ('NUMBER' if value is float else text)},..."
    word = (
        "|".join(opt.choices)
        or {int: "INT", float: "NUMBER", str: text}[opt.extra.get("of", str) if opt.kind is tuple else opt.kind]
    )
    return f"{word},..." if opt.kind is tuple else word


def write_value(value: Any) -> str:
    """Return a value as YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{write_value(key)}: {write_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    # not JSON's escapes: YAML takes a pair such as \ud83d\ude00 for two characters
    return text.replace("\x7f", "\\x7f").encode("ascii", "backslashreplace").decode()


def range_text(opt: Option) -> str:
    """Return the option's range in words; empty if it has none."""
    low, high = opt.extra.get("min"), opt.extra.get("max")
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"at least {low}"
    return f"at most {high}" if high is not None else ""


_TYPE_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
