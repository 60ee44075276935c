"""Formats numbers and texts for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

NOTHING = "-"
SPARKS = "▁▂▃▄▅▆▇█"


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def ms(value: Any) -> str:
    """Milliseconds, or seconds from a thousand on, with three significant digits."""
    if not is_number(value):
        return NOTHING
    if value == 0:
        return "0 ms"
    if abs(value) >= 10_000:
        return f"{value / 1000:.1f} s"
    if abs(value) >= 1000:
        return f"{value / 1000:.2f} s"
    if abs(value) >= 100:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms" if abs(value) >= 10 else f"{value:.2f} ms"


def size(value: Any) -> str:
    """Bytes in binary units."""
    if not is_number(value):
        return NOTHING
    amount = float(value)
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def span(seconds: Any) -> str:
    """A duration in its two largest units."""
    if not is_number(seconds):
        return NOTHING
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    minutes, secs = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {secs} s"


def count(value: Any) -> str:
    """A count with thousands separators; other numbers with four significant digits."""
    if not is_number(value):
        return NOTHING
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.4g}"


def counted(value: Any, noun: str) -> str:
    """A count of something: `1 thread`, `2 threads`."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def share(part: Any, whole: Any) -> str:
    if not (is_number(part) and is_number(whole)) or not whole:
        return NOTHING
    return f"{100 * part / whole:.0f} %"


def text(value: Any) -> str:
    """Return any value on one line, without control characters. Whole numbers are unchanged, because they may be
    names.
    """
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return count(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(text(item) for item in value) or NOTHING
    if isinstance(value, Mapping):
        return ", ".join(f"{text(key)} {text(item)}" for key, item in value.items()) or NOTHING
    return printable(str(value)).replace("\n", " ")


def printable(value: str) -> str:
    """Drop control characters: text from a model or a peer must not move the cursor or change colours."""
    return "".join(c for c in value if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160))


def bar(part: Any, whole: Any, width: int) -> str:
    if not (is_number(part) and is_number(whole)) or whole <= 0:
        return "·" * width
    full = min(width, max(0, round(width * part / whole)))
    return "█" * full + "·" * (width - full)


def sparkline(values: list[float], top: float | None = None) -> str:
    """One character per value; `top` (default: the largest value) is the full height."""
    if not values:
        return ""
    ceiling = top or max(values)
    if ceiling <= 0:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[min(7, max(0, int(8 * value / ceiling)))] for value in values)
