"""The owner's book: which sessions this worker holds, by which IDs, and when each claim ends.

The only writer of this worker's claims. It calls the store, which is one system call a claim, and takes ``now`` from
its clock; everything that decides is in `sessionworkers.affinity.lifecycle`. No await: a step is never half done.

A session has one key per ID (see `claim_key`). Keys bound by the request that made the session are *founding*: they end
with it. A key learned later names the same session, but its life may part from it: an end that names it ends that key
alone, and when the session ends a later key that clients use lives on by itself.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from sessionworkers.affinity import lifecycle
from sessionworkers.affinity.lifecycle import Event, State
from sessionworkers.affinity.rules import Rule
from sessionworkers.claims.store import ClaimStore
from sessionworkers.errors import ClaimConflict, ClaimsFull, StoreUnavailable
from sessionworkers.ledger.shards import Shards

if TYPE_CHECKING:
    from sessionworkers.ledger.current import Session as Handle

log = logging.getLogger("sessionworkers")

FOUNDING, LATER, UNSENT = 0, 1, 2
"""How a key is bound: by the session's first request; later and sent back; later and not sent back yet."""

_OVER = (State.ENDED, State.FAILED, State.ENDING, State.DROPPED)
"""States of what is no live session, though its claim lives on."""


class Term(Protocol):
    """A deadline of a session's own (`sessionworkers.sessions`): for as long as it is open, in place of its rule's."""

    def deadline(self, in_use: bool, last: float) -> float:
        """When it ends, on the book's clock. It may end in use."""
        ...

    def end(self, reason: str) -> None:
        """Its time has come, or the app ends it. Called any number of times; only the first one counts."""
        ...


class Record(msgspec.Struct, gc=False, eq=False):
    """One session; ``made`` and ``last`` on the book's clock. A worker may hold a million.

    The garbage collector does not look at records (``gc=False``): with a million of plain objects a full collection
    holds the loop for 100 ms. So a record must not be part of a cycle once it is forgotten, see ``_unbind``.
    """

    rule: Rule
    state: State
    made: float
    keys: dict[str, int] = msgspec.field(default_factory=dict)
    carriers: int = 0
    """Bit set of the rule's carriers by which clients named the session: tells two typed IDs apart."""
    in_use: int = 0
    requests: int = 0
    last: float = 0.0
    heap_at: float = math.inf
    handle: Handle | None = None
    term: Term | None = None
    counted: bool = False
    """It is one of the book's live sessions."""

    def __post_init__(self) -> None:
        self.last = self.made

    def deadline(self) -> float:
        """When the claim ends (or an open session of its own deadline); ``inf`` while in use or open."""
        if self.term is not None and self.state is State.OPEN:
            return self.term.deadline(self.in_use > 0, self.last)
        return lifecycle.deadline(self.state, self.rule, in_use=self.in_use > 0, made=self.made, last=self.last)

    def step(self, event: Event) -> None:
        """Move by the table of `lifecycle`."""
        self.state = lifecycle.step(self.state, event, has_lifetime=self.rule.has_lifetime)


class Book:
    """Sessions by key, and their deadlines in a heap. ``max_claims`` 0 means no cap."""

    def __init__(self, store: ClaimStore, *, max_claims: int = 0, clock: Callable[[], float]) -> None:
        self.store = store
        self.max_claims = max_claims
        self.clock = clock
        self._by_key: Shards[Record] = Shards()
        self.get: Callable[[str], Record | None] = self._by_key.get
        """The session that ``key`` names here, or None. No I/O: the hot path of an owner."""
        self._heap: list[tuple[float, int, Record]] = []
        self._unsent: list[tuple[float, str]] = []
        self._unreleased: list[str] = []
        self._order = 0
        self.live = 0
        """Sessions that have not ended."""
        self.on_live: Callable[[], None] | None = None
        """Called when `live` has changed."""
        self.on_earlier: Callable[[], None] | None = None
        """Called when a deadline earlier than all others was set, so that a sleeping sweeper can wake."""

    def __len__(self) -> int:
        return len(self._by_key)

    def passing(self) -> Iterator[Record]:
        """All sessions, some several times, for a look that may take its time."""
        return self._by_key.passing()

    def records(self) -> Iterator[Record]:
        """Each session once."""
        return iter({id(record): record for record in self._by_key.values()}.values())

    # claims

    def claim(self, key: str) -> None:
        """Make ``key`` this worker's.

        Raises `ClaimConflict` if another worker holds it, `ClaimsFull` at the cap, `StoreUnavailable` if the store
        failed; nothing is claimed then.
        """
        if self.max_claims and len(self._by_key) >= self.max_claims:
            raise ClaimsFull(f"this worker holds {self.max_claims} claims, which is its cap")
        owner = self.store.claim(key)
        if owner != self.store.me:
            raise ClaimConflict("another worker holds the claim", owner)

    def open(self, rule: Rule, state: State, key: str, *, carrier: int = -1) -> Record:
        """Claim ``key`` and start a session by it. Raises as `claim`."""
        self.claim(key)
        record = Record(rule, state, self.clock())
        self._bind(record, key, FOUNDING, carrier)
        return record

    def alias(self, record: Record, key: str, how: int, *, carrier: int = -1) -> None:
        """Claim ``key`` as one more name of ``record``. Raises as `claim`."""
        self.claim(key)
        self._bind(record, key, how, carrier)
        if how == UNSENT:
            until = self.clock() + lifecycle.return_window(record.rule)
            heapq.heappush(self._unsent, (until, key))
            self._wake(until)

    def sent_back(self, record: Record, key: str, carrier: int) -> None:
        """A client named the session by ``key``."""
        if record.keys.get(key) == UNSENT:
            record.keys[key] = LATER
        if carrier >= 0:
            record.carriers |= 1 << carrier

    def _bind(self, record: Record, key: str, how: int, carrier: int) -> None:
        fresh = not record.keys
        record.keys[key] = how
        if carrier >= 0:
            record.carriers |= 1 << carrier
        self._by_key[key] = record
        if fresh:
            self._count(record, True)

    def forget(self, record: Record) -> None:
        """End all claims of ``record``."""
        for key in list(record.keys):
            self._unbind(record, key)

    def _unbind(self, record: Record, key: str) -> None:
        record.keys.pop(key, None)
        if not record.keys:
            record.term = None  # which knows its record
        if self._by_key.get(key) is record:
            del self._by_key[key]
            self._release(key)
        if not record.keys:
            self._count(record, False)

    def _count(self, record: Record, counts: bool) -> None:
        if record.counted is not counts:
            record.counted = counts
            self.live += 1 if counts else -1
            if self.on_live is not None:
                self.on_live()

    def _release(self, key: str) -> None:
        try:
            self.store.release(key)
        except StoreUnavailable as error:
            self._unreleased.append(key)  # tried again by the next sweep: nothing is left behind for want of a disk
            if len(self._unreleased) == 1:
                log.warning("a claim could not be ended yet: %s", error)

    # life

    def end(self, record: Record, key: str, event: Event) -> Record:
        """Apply an end that named ``key``; returns the session that ended (a later key ends alone)."""
        if record.keys.get(key) in (LATER, UNSENT) and record.state is not State.ENDED:
            record = self._split(record, key, record.state)
        elif record.state is not State.ENDED:
            for other, how in list(record.keys.items()):
                if how == LATER and other != key:
                    self.settle(self._split(record, other, State.IMPLICIT))
        record.step(event)
        return record

    def _split(self, record: Record, key: str, state: State) -> Record:
        del record.keys[key]
        own = Record(record.rule, state, record.made)
        own.last = self.clock()
        own.carriers = record.carriers
        own.requests = record.requests
        self._bind(own, key, FOUNDING, -1)
        self._schedule(own, own.deadline())
        return own

    def settle(self, record: Record) -> None:
        """Schedule ``record`` by its present deadline; drop it at once if that is past."""
        if not record.keys:
            return
        self._count(record, record.state not in _OVER)
        until = record.deadline()
        if until == -math.inf:
            self.forget(record)
        else:
            self._schedule(record, until)

    def _schedule(self, record: Record, until: float) -> None:
        if until < record.heap_at:  # a later deadline is found when the earlier entry comes up
            record.heap_at = until
            self._order += 1
            heapq.heappush(self._heap, (until, self._order, record))
            self._wake(until)

    def _wake(self, until: float) -> None:
        if self.on_earlier is not None and until <= self.next_deadline():
            self.on_earlier()

    def next_deadline(self) -> float:
        """The earliest time at which something may expire; ``inf`` if nothing can."""
        first = self._heap[0][0] if self._heap else math.inf
        return min(first, self._unsent[0][0] if self._unsent else math.inf)

    def expired(self, now: float, limit: int = 2_000) -> list[Record]:
        """Take up to ``limit`` sessions whose time has come off the heap; keys never sent back are ended here.

        The caller closes each session and calls `forget`, or `settle` to keep it for another window.
        """
        while self._unsent and self._unsent[0][0] <= now and limit:
            limit -= 1
            _, key = heapq.heappop(self._unsent)
            record = self._by_key.get(key)
            if record is not None and record.keys.get(key) == UNSENT:
                self._unbind(record, key)
        late, self._unreleased = self._unreleased, []
        for key in late:
            if key not in self._by_key:
                self._release(key)
        due: list[Record] = []
        while self._heap and self._heap[0][0] <= now and limit:
            limit -= 1
            at, _, record = heapq.heappop(self._heap)
            if at != record.heap_at or not record.keys:
                continue  # an entry that a later one replaced, or a session already gone
            record.heap_at = math.inf
            until = record.deadline()
            if until <= now:
                due.append(record)
            elif until != math.inf:
                self._schedule(record, until)
        return due
