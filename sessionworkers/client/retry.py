"""When to try again: pure, randomness comes in.

A request is sent again only where it cannot have run: no connection was made, or the server said 429 or 503. Waits grow
to five seconds with jitter, and are never shorter than what Retry-After asks for.
"""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Mapping
from typing import Final

RETRIED: Final = frozenset({429, 503})
TRIES: Final = 8
"""How often one request is sent at the most; about 25 s of waiting."""
LONGEST: Final = 5.0
MOST_ASKED: Final = 60.0
"""Seconds of a Retry-After that are believed."""


def pause(attempt: int, asked: float | None, random: float) -> float:
    """Seconds before try ``attempt + 1``. ``asked``: Retry-After in seconds; ``random`` in [0, 1)."""
    grown = min(LONGEST, 0.25 * 2.0 ** (attempt - 1))
    wait = grown * (0.5 + 0.5 * random)
    return wait if asked is None else max(min(asked, MOST_ASKED) * (1 + 0.1 * random), wait)


def retry_after(headers: Mapping[str, str], now: datetime.datetime | None = None) -> float | None:
    """Retry-After in seconds, of either form; None if there is none that can be read."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.timezone.utc)
    current = now if now is not None else datetime.datetime.now(datetime.timezone.utc)
    return max(0.0, (when - current).total_seconds())
