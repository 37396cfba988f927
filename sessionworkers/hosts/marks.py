"""What is remembered to save work, within bounds: past them all of it is forgotten."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Marks:
    """What came once, by its hash: what never comes again is not kept. At most ``most`` of them."""

    __slots__ = ("_most", "_seen")

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def again(self, what: Hashable) -> bool:
        """True if ``what`` was asked about before."""
        mark = hash(what)
        seen = self._seen
        if mark in seen:
            return True
        if len(seen) >= self._most:
            seen.clear()
        seen.add(mark)
        return False


def put(known: dict[K, V], key: K, value: V, most: int) -> None:
    """Keep ``value``, in place of all others when they are as many as ``most``."""
    if len(known) >= most:
        known.clear()
    known[key] = value
