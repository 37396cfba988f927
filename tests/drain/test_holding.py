"""Whether any of many sessions holds a worker back."""

from __future__ import annotations

import math

import pytest

from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.lifecycle import Event, State
from sessionworkers.affinity.words import parse_rule
from sessionworkers.claims.memory import MemoryStore
from sessionworkers.ledger.book import Book
from sessionworkers.worker import holding
from sessionworkers.worker.holding import Holding

RULE = parse_rule("path:/s/{id}", "r", retry_window=300.0, return_window=300.0, idle=3_600.0)


class World:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.book = Book(MemoryStore("me"), clock=lambda: self.now)
        self.holding = Holding(self.book, 120.0, lambda: self.now)

    def open(self, count: int) -> None:
        for _ in range(count):
            record = self.book.open(RULE, State.IMPLICIT, claim_key("r", str(len(self.book))))
            self.book.settle(record)


def test_no_session_holds_nothing() -> None:
    assert World().holding.until() == -math.inf


def test_the_last_one_that_holds_decides() -> None:
    world = World()
    world.open(3)
    first, second, third = world.book.records()
    assert world.holding.until() == 1_120.0
    world.now = 1_100.0
    third.last = world.now
    world.now = 1_130.0
    assert world.holding.until() == 1_220.0
    second.in_use = 1
    world.now = 1_230.0
    assert world.holding.until() == math.inf
    second.in_use = 0
    second.last = world.now
    second.step(Event.ENDED_BY_APP)
    assert world.holding.until() == 1_350.0
    for record in (first, second, third):
        world.book.forget(record)
    assert world.holding.until() == -math.inf


def test_many_are_looked_at_in_pieces_and_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "PIECE", 10)
    world = World()
    world.open(25)
    records = list(world.book.records())
    world.now = 2_000.0  # all have let go
    answers = [world.holding.until() for _ in range(6)]
    assert answers == [2_001.0] * 5 + [-math.inf], "two passes of three pieces"
    world.holding.until()
    records[3].last = world.now  # used behind the look's back
    found = [world.holding.until() for _ in range(5)]
    assert 2_120.0 in found and -math.inf not in found
