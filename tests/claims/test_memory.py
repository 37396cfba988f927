from __future__ import annotations

import itertools

import pytest

from sessionworkers.claims import ClaimStore, MemoryStore

from .contract import Contract, Make


class TestMemory(Contract):
    @pytest.fixture
    def make(self) -> Make:
        shared: dict[str, str] = {}
        numbers = itertools.count()

        def make() -> ClaimStore:
            return MemoryStore(f"{next(numbers):024x}", shared)

        return make


def test_alone_it_needs_no_dict() -> None:
    a, b = MemoryStore("a"), MemoryStore("b")
    a.claim("0" * 32)
    assert b.owner("0" * 32) is None
