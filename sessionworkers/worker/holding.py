"""Looking for a session that holds a draining worker back, among up to a million, without stalling the loop.

One session that does is enough, and most often it is still the one of the last look. Only when that has let go another
one is looked for, a piece of the book at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

from sessionworkers.ledger.book import Book, Record
from sessionworkers.worker.drain import session_holds

PIECE = 20_000
"""Sessions looked at in one go: some 10 ms."""


class Holding:
    """Until when the sessions of ``book`` hold their worker back, as far as is known. ``idle``: of a drain, seconds."""

    def __init__(self, book: Book, idle: float, clock: Callable[[], float]) -> None:
        self._book = book
        self._idle = idle
        self._clock = clock
        self._one: Record | None = None
        self._rest: Iterator[Record] | None = None
        self._passed = False
        """A whole pass has found nobody, while requests went on; a second one makes sure."""

    def until(self) -> float:
        """When a session lets go that holds now; a moment from now while that is not known; ``-inf``: none does.

        Another session may hold for longer: ask again then.
        """
        now = self._clock()
        if self._one is not None:
            until = self._holds(self._one)
            if until > now:
                return until
            self._one = None
        whole = self._rest is None
        rest = self._book.passing() if self._rest is None else self._rest
        count = 0
        for record in islice(rest, PIECE):
            count += 1
            until = self._holds(record)
            if until > now:
                self._one, self._rest, self._passed = record, None, False
                return until
        if count == PIECE:
            self._rest = rest
            return now + 1.0
        self._rest = None
        if whole or self._passed:
            self._passed = False
            return -math.inf
        self._passed = True
        return now + 1.0

    def _holds(self, record: Record) -> float:
        if not record.keys:
            return -math.inf
        return session_holds(
            record.state,
            record.rule,
            in_use=record.in_use > 0,
            made=record.made,
            last=record.last,
            idle=self._idle,
        )
