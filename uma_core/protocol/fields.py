"""Message fields: how they are declared, and the only place that checks values against the declaration."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from uma_core.errors import ErrorCode, UmaError
from uma_core.suggest import nearest, suggest

OWN_PREFIX = "x_"  # names with this prefix are the client's own; they are ignored
TAG_NAME, TAG_TEXT = 64, 512  # longest name and value of a tag, in characters
N_BIASES_MOST = 20_000  # in `logit_bias`: a sampler reads them on the compute thread, 1.5 ms for this many
SHOWN_NAME = 64  # characters of an unknown name that an error message repeats


class Kind(str, Enum):
    """JSON type of a field. The value is its name in documentation and error messages."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"  # free-form in replies; in requests `fields` declares its contents
    TAGS = "object of strings, numbers and booleans"
    ID = "string or integer"
    STRINGS = "string or array of strings"
    INTEGERS = "array of integers"
    MIXED = "string or array of strings and token ids"
    INPUTS = "text, array of token ids, or array of texts and arrays of token ids"
    MESSAGES = "array of objects with `role` and `content`"
    BIASES = "array of [id or text, number or false]"
    OBJECTS = "array of objects"
    SCHEMA = "object or boolean"  # a JSON Schema
    LIST = "array"  # replies only


class Field(NamedTuple):
    name: str
    kind: Kind
    help: str
    default: Any = None  # None: absent
    low: float | None = None  # minimum value, or minimum length of strings and arrays
    high: float | None = None  # maximum value, or maximum length
    choices: tuple[str, ...] = ()  # allowed values of a string, or of each string of an array
    is_required: bool = False
    fields: tuple[Field, ...] = ()  # of an OBJECT, or of each entry of OBJECTS
    is_open_low: bool = False  # the value must be greater than `low`
    each_high: int | None = None  # maximum length of each string of an array


def bad_field(path: str, message: str) -> UmaError:
    """Return a BAD_REQUEST error that names the field."""
    return UmaError(ErrorCode.BAD_REQUEST, f"`{path}` {message}", field=path)


def check_fields(fields: tuple[Field, ...], values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Check known fields and fill in defaults; null counts as absent. Raises: BAD_REQUEST with `detail.field`."""
    return {field.name: check_value(field, values, prefix) for field in fields}


def check_value(field: Field, values: dict[str, Any], prefix: str = "") -> Any:
    """Check one field of an object. Raises: BAD_REQUEST with `detail.field`."""
    value = values.get(field.name)
    path = prefix + field.name
    if value is not None:
        return _CHECKS[field.kind](field, value, path)
    if field.is_required:
        raise bad_field(path, "is required")
    return field.default


def refuse_unknown(fields: tuple[Field, ...], values: dict[str, Any], prefix: str = "") -> None:
    """Refuse the first name that is neither declared nor the client's own, and suggest the nearest declared one.

    Raises: BAD_REQUEST with `detail.field`, and with `detail.nearest` if a declared name is close.
    """
    known = {field.name for field in fields}
    for name in values:
        if name in known or name.startswith(OWN_PREFIX):
            continue
        shown = prefix + name[:SHOWN_NAME]
        near = nearest(shown, _paths(fields, prefix))
        detail = {"field": shown, "nearest": near} if near else {"field": shown}
        hint = f"; did you mean `{near}`?" if near else ""
        raise UmaError(ErrorCode.BAD_REQUEST, f"`{shown}` is not a known field{hint}", **detail)


def _paths(fields: tuple[Field, ...], prefix: str) -> list[str]:
    paths = []
    for field in fields:
        paths += [prefix + field.name, *_paths(field.fields, f"{prefix}{field.name}.")]
    return paths


def _expect(field: Field, value: Any, path: str, *types: type) -> None:
    if type(value) not in types:  # not isinstance: true is not an integer here
        noun = field.kind.value
        raise bad_field(path, f"must be {'an' if noun[0] in 'aeio' else 'a'} {noun}")


def _in_range(field: Field, amount: float, path: str, phrase: str = "must be {}") -> None:
    low, high = field.low, field.high
    if low is not None and (amount < low or (field.is_open_low and amount == low)):
        raise bad_field(path, phrase.format(f"{'more than' if field.is_open_low else 'at least'} {low}"))
    if high is not None and amount > high:
        raise bad_field(path, phrase.format(f"at most {high}"))


def _has_length(field: Field, n: int, path: str, noun: str) -> None:
    if not n and field.low:
        raise bad_field(path, "must not be empty")
    _in_range(field, n, path, f"must have {{}} {noun}")


def _check_string(field: Field, value: Any, path: str) -> Any:
    _expect(field, value, path, str)
    if field.choices and value not in field.choices:
        raise bad_field(path, f"must be one of {', '.join(field.choices)}")
    _has_length(field, len(value), path, "characters")
    return value


def _check_integer(field: Field, value: Any, path: str) -> Any:
    _expect(field, value, path, int)
    _in_range(field, value, path)
    return value


def _check_number(field: Field, value: Any, path: str) -> float:
    _expect(field, value, path, int, float)
    _in_range(field, value, path)
    return float(value)


def _check_boolean(field: Field, value: Any, path: str) -> Any:
    _expect(field, value, path, bool)
    return value


def _check_object(field: Field, value: Any, path: str) -> Any:
    _expect(field, value, path, dict)
    if not field.fields:
        return value
    refuse_unknown(field.fields, value, path + ".")
    return check_fields(field.fields, value, path + ".")


def _check_tags(field: Field, value: Any, path: str) -> Any:
    _expect(field, value, path, dict)
    _has_length(field, len(value), path, "entries")
    for name, tag in value.items():
        if len(name) > TAG_NAME:
            raise bad_field(path, f"must have names of at most {TAG_NAME} characters")
        if type(tag) not in (str, int, float, bool) or (type(tag) is str and len(tag) > TAG_TEXT):
            raise bad_field(
                f"{path}.{name}", f"must be a string of at most {TAG_TEXT} characters, a number or a boolean"
            )
    return value


def _check_id(field: Field, value: Any, path: str) -> Any:
    _expect(field, value, path, str, int)
    if isinstance(value, str):
        _has_length(field, len(value), path, "characters")
    elif not -(1 << 63) <= value < 1 << 63:
        raise bad_field(path, "must fit in 64 bits")
    return value


def _check_strings(field: Field, value: Any, path: str) -> tuple[str, ...]:
    items = [value] if type(value) is str else value
    _expect(field, items, path, list)
    _has_length(field, len(items), path, "items")
    if not all(type(item) is str and item for item in items):
        raise bad_field(path, "must contain only non-empty strings")
    for i, item in enumerate(items):
        if field.each_high is not None and len(item) > field.each_high:
            raise bad_field(f"{path}[{i}]", f"must have at most {field.each_high} characters")
        if field.choices and item not in field.choices:
            raise bad_field(path, f"must contain only {', '.join(field.choices)}{suggest(item, field.choices)}")
    return tuple(items)


def _check_integers(field: Field, value: Any, path: str) -> tuple[int, ...]:
    _expect(field, value, path, list)
    _has_length(field, len(value), path, "items")
    if not all(_is_id(item) for item in value):
        raise bad_field(path, "must contain only integers from 0 to 2147483647")
    return tuple(value)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _check_biases(field: Field, value: Any, path: str) -> tuple[tuple[int | str, float | bool], ...]:
    _expect(field, value, path, list)
    if len(value) > N_BIASES_MOST:
        raise bad_field(path, f"must have at most {N_BIASES_MOST} items")
    for i, pair in enumerate(value):
        at = f"{path}[{i}]"
        if type(pair) is not list or len(pair) != 2:
            raise bad_field(at, "must be an array of two items")
        token, bias = pair
        if not _is_id(token) and not (type(token) is str and token):
            raise bad_field(at, "must begin with a token id or a non-empty string")
        if bias is not False:
            if type(bias) not in (int, float):
                raise bad_field(at, "must end with a number or false")
            _in_range(field, bias, at, "must end with {}")
    return tuple((token, bias if bias is False else float(bias)) for token, bias in value)


def _check_mixed(field: Field, value: Any, path: str) -> str | tuple[str | int, ...]:
    _expect(field, value, path, str, list)
    if isinstance(value, str):
        _has_length(field, len(value), path, "characters")
        return value
    if not value:
        raise bad_field(path, "must not be empty")
    for i, part in enumerate(value):
        if type(part) is not str and not _is_id(part):
            raise bad_field(f"{path}[{i}]", "must be a string or a token id")
    return tuple(value)


def _check_inputs(field: Field, value: Any, path: str) -> tuple[str | tuple[int, ...], ...]:
    """Return the inputs as a tuple, even if there is only one. An array of numbers is one input."""
    _expect(field, value, path, str, list)
    items = [value] if type(value) is str or (value and type(value[0]) is int) else value
    _has_length(field, len(items), path, "items")
    return tuple(_input(item, path if items is not value else f"{path}[{i}]") for i, item in enumerate(items))


def _input(item: Any, path: str) -> str | tuple[int, ...]:
    if type(item) is str:
        if not item:
            raise bad_field(path, "must not be empty")
        return item
    if type(item) is not list:
        raise bad_field(path, "must be a string or an array of token ids")
    if not item:
        raise bad_field(path, "must not be empty")
    if not all(_is_id(token) for token in item):
        raise bad_field(path, "must contain only token ids from 0 to 2147483647")
    return tuple(item)


def _check_messages(field: Field, value: Any, path: str) -> tuple[dict[str, Any], ...]:
    _expect(field, value, path, list)
    if not value:
        raise bad_field(path, "must not be empty")
    for i, message in enumerate(value):
        if type(message) is not dict:
            raise bad_field(f"{path}[{i}]", "must be an object")
        if type(message.get("role")) is not str:
            raise bad_field(f"{path}[{i}].role", "must be a string")
        if type(message.get("content")) not in (str, list, type(None)):
            raise bad_field(f"{path}[{i}].content", "must be a string or an array")
    return tuple(value)


def _check_objects(field: Field, value: Any, path: str) -> tuple[dict[str, Any], ...]:
    _expect(field, value, path, list)
    _has_length(field, len(value), path, "items")
    for i, item in enumerate(value):
        if type(item) is not dict:
            raise bad_field(f"{path}[{i}]", "must be an object")
        refuse_unknown(field.fields, item, f"{path}[{i}].")
    return tuple(check_fields(field.fields, item, f"{path}[{i}].") for i, item in enumerate(value))


def _check_schema(field: Field, value: Any, path: str) -> Any:
    _expect(field, value, path, dict, bool)
    return value


_CHECKS: dict[Kind, Callable[[Field, Any, str], Any]] = {
    Kind.STRING: _check_string,
    Kind.INTEGER: _check_integer,
    Kind.NUMBER: _check_number,
    Kind.BOOLEAN: _check_boolean,
    Kind.OBJECT: _check_object,
    Kind.TAGS: _check_tags,
    Kind.ID: _check_id,
    Kind.STRINGS: _check_strings,
    Kind.INTEGERS: _check_integers,
    Kind.MIXED: _check_mixed,
    Kind.INPUTS: _check_inputs,
    Kind.MESSAGES: _check_messages,
    Kind.BIASES: _check_biases,
    Kind.OBJECTS: _check_objects,
    Kind.SCHEMA: _check_schema,
}
