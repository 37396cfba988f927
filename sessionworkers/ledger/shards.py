"""A dict for a million sessions that never stands still: growing one doubles a table of 1/256 of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")

COUNT = 256


class Shards(Generic[V]):
    """What the book needs of ``dict[str, V]``. One dict of a million entries takes 38 ms to grow, these 0.2 ms."""

    __slots__ = ("_shards", "_size", "get")

    def __init__(self) -> None:
        self._shards: tuple[dict[str, V], ...] = tuple({} for _ in range(COUNT))
        self._size = 0
        shards = self._shards

        def get(key: str) -> V | None:
            return shards[hash(key) & 255].get(key)

        self.get = get
        """The value of a key, or None. A closure: this is on every request's way."""

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: str) -> bool:
        return key in self._shards[hash(key) & 255]

    def __setitem__(self, key: str, value: V) -> None:
        shard = self._shards[hash(key) & 255]
        self._size -= len(shard)
        shard[key] = value
        self._size += len(shard)

    def __delitem__(self, key: str) -> None:
        del self._shards[hash(key) & 255][key]
        self._size -= 1

    def clear(self) -> None:
        for shard in self._shards:
            shard.clear()
        self._size = 0

    def values(self) -> Iterator[V]:
        """All values; nothing may be added or removed meanwhile."""
        for shard in self._shards:
            yield from shard.values()

    def passing(self) -> Iterator[V]:
        """All values that stay meanwhile: it may take its time. What comes meanwhile may be left out."""
        for shard in self._shards:
            yield from list(shard.values())
