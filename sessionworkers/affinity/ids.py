"""What an ID is: its limits, the key that it is claimed under, how it is shown in logs, what a random one looks like.

No session ID ever reaches a log or a file name as it is: files are named by :func:`claim_key`, logs show :func:`mask`.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from itertools import pairwise

MAX_ID = 512
"""Bytes of an ID. A longer one counts as none: the request is handled where it arrived."""
MAX_TOKEN = 4096
"""Bytes of a signed token or cookie that holds an ID; browsers keep no cookie above 4 KiB (RFC 6265, 6.1)."""

NIL_UUID = "00000000-0000-0000-0000-000000000000"
MAX_RANDOM = 256
"""Longest value that may look random: longer ones are JWTs, encrypted states and data."""

_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])")
_SAFE = re.compile(r"[A-Za-z0-9_\-.:~]+={0,2}")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_NUMBERED_WORD = re.compile(r"[A-Za-z][a-z]+\d{0,6}|\d+[a-z]{4,}")
_PREFIX = re.compile(r"((?:[A-Za-z]+[_\-:.])+)(?=.)")
_WORD = re.compile(r"[A-Za-z]?[a-z]+(?:[_\-.][a-z]+)*")
_LOWER = re.compile(r"[a-z0-9]+")
_UPPER = re.compile(r"[A-Z0-9]+")
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_BASE64URL = re.compile(r"[A-Za-z0-9_\-]+={0,2}")

_mask_key = secrets.token_bytes(16)


def valid_id(value: str, limit: int = MAX_ID) -> bool:
    """True for 1 to ``limit`` visible ASCII characters (0x21 to 0x7e). Anything else is no ID at all."""
    return 0 < len(value) <= limit and value.isascii() and value.isprintable() and " " not in value


def claim_key(space: str, id: str) -> str:
    """32 lower-case hex digits: BLAKE2b-128 of key space, NUL and ID. NUL stands in neither (see :func:`valid_id`)."""
    return blake2b(b"%b\0%b" % (space.encode(), id.encode("utf-8", "surrogatepass")), digest_size=16).hexdigest()


def set_mask_key(key: bytes) -> None:
    """One key for all workers of a server makes their logs agree; up to 64 bytes. The default is random per process."""
    global _mask_key
    _mask_key = key[:64]


def mask(id: str) -> str:
    """12 hex digits that stand for ``id`` in logs: a keyed hash, so that a log tells no ID and checks no guess."""
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=6, key=_mask_key).hexdigest()


def looks_random(value: str) -> bool:
    """True if ``value`` looks like an ID that a random generator made, perhaps behind a prefix such as ``sess_``.

    UUIDs but the nil one; an alphanumeric run of 16 or more with letter and digit (hex, ULID, ObjectId, base62);
    base64url with both cases that changes between character classes as often as random text does. Digits only, words,
    words with a number and words in CamelCase do not.
    """
    size = len(value)
    if size < 16 or size > MAX_RANDOM or _SAFE.fullmatch(value) is None:
        return False
    if _UUID.search(value) is not None:
        return NIL_UUID not in value
    for run in _RUN.findall(value):
        if not run.isalpha() and not run.isdigit() and _NUMBERED_WORD.fullmatch(run) is None:
            return True
    tail = value[match.end() :] if (match := _PREFIX.match(value)) is not None and size - match.end() >= 16 else value
    return _flips(tail)


def is_word(value: str) -> bool:
    """True for what a route's own segment looks like, ``start`` or ``batch-stop``: no ID that an app minted."""
    return _WORD.fullmatch(value) is not None


def _flips(value: str) -> bool:
    """Both cases, and a change of character class at 38 % of the steps or more (random base64url: 64 % on average)."""
    if value.islower() or value.isupper() or _BASE64URL.fullmatch(value) is None:
        return False
    classes = ["u" if c.isupper() else "l" if c.islower() else "d" if c.isdigit() else "-" for c in value]
    flips = sum(a != b for a, b in pairwise(classes))
    return "u" in classes and "l" in classes and flips >= 0.38 * (len(value) - 1)


def shape(value: str) -> str:
    """What values of one minting place have in common: literal prefix, alphabet and length, as in ``uuid``, ``hex32``,
    ``sess_hex24``, ``low20``, ``upp26``, ``b64-22``, ``num-8``. Base64url shows no prefix: it makes up its own."""
    if len(value) == 36 and _UUID.fullmatch(value) is not None:
        return "uuid"
    if (match := _PREFIX.match(value)) is not None and len(value) - match.end() >= 12:
        rest = shape(value[match.end() :])
        if not rest.startswith(("b64", "txt")):
            return match.group(1) + rest
    size = len(value)
    if value.isdigit():
        return f"num-{size}"
    if _HEX.fullmatch(value) is not None:
        return f"hex{size}"
    if _LOWER.fullmatch(value) is not None:
        return f"low{size}"
    if _UPPER.fullmatch(value) is not None:
        return f"upp{size}"
    return f"b64-{size}" if _BASE64URL.fullmatch(value) is not None else f"txt-{size}"
