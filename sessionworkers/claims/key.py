"""The only form in which an ID reaches a store."""

from __future__ import annotations

import re

_KEY = re.compile(r"[0-9a-f]{32}")


def valid_key(key: str) -> bool:
    """Whether ``key`` is 32 lower-case hex digits."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str) -> str:
    """``key`` itself. ValueError if it is not 32 lower-case hex digits: an ID must never become a file name."""
    if _KEY.fullmatch(key) is None:
        raise ValueError("a claim key is 32 lower-case hex digits")
    return key
