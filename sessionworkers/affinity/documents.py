"""JSON as the rules need it: parsed whole or one field at a time, never raising, a repeated ID key seen as ambiguous.

msgspec parses; where it refuses what Python's own parser accepts (NaN, lone surrogates, a byte order mark), that one
decides, for bodies up to 256 KiB, since the app will most likely read them with it.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""No such field, or no JSON at all."""
AMBIGUOUS: Final = _Missing()

_SLOW_LIMIT = 256 * 1024
_decode = msgspec.json.decode


def decode(data: bytes) -> object:
    """The document in ``data``, or MISSING. Never raises."""
    try:
        return _decode(data)
    except Exception:
        return _slow(data)


def _slow(data: bytes, hook: Any = None) -> object:
    if len(data) > _SLOW_LIMIT or not data:
        return MISSING
    try:
        return json.loads(data, object_pairs_hook=hook)
    except (ValueError, RecursionError):
        return MISSING


class FieldReader:
    """Reads one dotted field, building no object for the rest of the document: megabytes pass at parser speed.

    A name stands for a key of an object; a key that itself holds dots cannot be named. A key that stands twice in its
    object, with whatever values, makes the field MISSING: nobody can say which one the app reads.
    """

    __slots__ = ("_decoder", "_needles", "path")

    def __init__(self, path: str) -> None:
        self.path = tuple(path.split("."))
        if not all(self.path):
            raise ValueError(f"{path!r}: a field is written as names joined by dots, as in params.session_id")
        kind: Any = msgspec.Raw
        for name in reversed(self.path):
            kind = msgspec.defstruct("Field", [("value", kind, msgspec.UNSET)], rename={"value": name}, gc=False)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._needles = tuple(json.dumps(name, ensure_ascii=False).encode() for name in self.path)

    def read(self, data: bytes) -> object:
        """The string, number, true, false or null that the field holds, else MISSING. Never raises."""
        needles = self._needles
        escaped = b"\\u" in data
        if not escaped:
            for needle in needles:
                if needle not in data:
                    return MISSING
        if escaped or any(data.count(needle) > 1 for needle in needles):
            return self._careful(data)
        try:
            value = self._decoder.decode(data)
            for _ in needles:
                value = value.value
                if value is msgspec.UNSET:
                    return MISSING
            raw = bytes(value)
            return MISSING if raw[:1] in (b"{", b"[") else _decode(raw)
        except msgspec.ValidationError:
            return MISSING
        except Exception:
            return self._careful(data)

    def _careful(self, data: bytes) -> object:
        """Slowly, with every object checked for repeated keys along the path."""
        if len(data) > _SLOW_LIMIT:
            return MISSING
        value = _slow(data, _mark_repeated)
        for name in self.path:
            if not isinstance(value, dict) or name not in value:
                return MISSING
            value = value[name]
            if value is AMBIGUOUS:
                return MISSING
        return MISSING if isinstance(value, (dict, list)) else value


def _mark_repeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                result[name] = AMBIGUOUS
            seen.add(name)
    return result


def as_id(value: object) -> str | None:
    """A JSON value as the text of an ID: strings as they are, whole numbers in decimal, all else None."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None
