"""Sizes and durations as people write them: ``64MiB``, ``1.5GB``, ``300``, ``5m``."""

from __future__ import annotations

import math
import re

SIZE_ALLOWED = "bytes, or a number with KiB, MiB, GiB, kB, MB or GB"
DURATION_ALLOWED = "seconds, or a number with ms, s, m, h or d"
LIMIT_ALLOWED = DURATION_ALLOWED + "; inf for no limit"

_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_WORD = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")


def parse_size(value: object) -> int:
    """Bytes from an int or a text such as ``"64MiB"``. Raises ValueError for anything else, negative included."""
    number = _number(value, _SIZES)
    if number is None or number != int(number):
        raise ValueError("not a size")
    return int(number)


def parse_duration(value: object) -> float:
    """Seconds from a number or a text such as ``"5m"``. Raises ValueError for anything else, negative included."""
    number = _number(value, _SECONDS)
    if number is None:
        raise ValueError("not a duration")
    return number


def parse_limit(value: object) -> float:
    """As :func:`parse_duration`, and ``inf`` for no limit."""
    if value == math.inf or (isinstance(value, str) and value.strip().lower() == "inf"):
        return math.inf
    return parse_duration(value)


def size_text(value: int) -> str:
    """``67108864`` as ``64MiB``: the largest binary unit that says it exactly."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def _number(value: object, units: dict[str, int] | dict[str, float]) -> float | None:
    if isinstance(value, bool):
        return None  # True is an int to Python, never a size
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) and value >= 0 else None
    match = _WORD.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    factor = units.get(match[2].lower())
    return None if factor is None else float(match[1]) * factor
