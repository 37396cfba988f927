"""The sessions that this worker holds, as data: who they are, what they weigh, when they end. No I/O and no clock.

Every time is on one monotonic clock, seconds, and ``now`` is an argument. A session's claim, its place in the heap of
deadlines and its requests in use are the ledger's (`sessionworkers.ledger.book`): an explicit session is a claimed
session whose record has a deadline, and `Explicit.deadline` is that deadline.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from sessionworkers.ledger.book import Record
    from sessionworkers.sessions.running import Running

_MINTED: Final = re.compile(r"sw_[A-Za-z0-9_-]{43}")

IDLE, ADD = "idle", "add"
"""How a request moves the deadline: to ``lifetime`` after its end, or (as the page's own code) by ``lifetime`` more."""


def mint() -> str:
    """A session ID that nobody guesses: ``sw_`` and 43 characters, 256 bits."""
    return "sw_" + secrets.token_urlsafe(32)


def minted(value: object) -> bool:
    """True for text of the shape that `mint` makes."""
    return isinstance(value, str) and _MINTED.fullmatch(value) is not None


@dataclass(eq=False, slots=True)
class Explicit:
    """One explicit session.

    ``auth`` is the digest of its credential; ``auth_data`` that credential itself, kept only where the client brought
    it and the page wants it back. ``made``, ``limit`` and ``until`` are monotonic; ``offset`` added to one of them
    gives seconds of the epoch.
    """

    id: str
    key: str
    auth: bytes
    auth_data: dict[str, Any] | None
    lifetime: float
    cost: float
    on_close_route: str | None
    on_close_payload: Any
    made: float
    offset: float
    extend: str = IDLE
    limit: float = math.inf
    """When the session ends whatever happens: its absolute lifetime."""
    until: float = 0.0
    closed: str | None = None
    """Why it was closed; None while it is open."""
    requests: set[Running] = field(default_factory=set)
    record: Record | None = None
    on_end: Callable[[Explicit, str], None] | None = None
    hook: asyncio.Task[None] | None = None
    """The close hook, once it is being posted."""

    def __post_init__(self) -> None:
        self.until = self.made + self.lifetime

    def allowed(self) -> None:
        """A request was let in: with ``add`` it moves the deadline by a whole lifetime, at once."""
        if self.extend == ADD:
            self.until += self.lifetime

    def deadline(self, in_use: bool, last: float) -> float:
        """When it ends: never while a request runs but for ``limit``, else a lifetime after the ``last`` one's end."""
        if in_use:
            return self.limit
        return min(self.limit, max(self.until, last + self.lifetime))

    def expiration(self, in_use: bool, last: float, now: float) -> float:
        """The deadline as seconds of the epoch; while a request runs, as if it ended ``now``."""
        return self.deadline(False, now if in_use else last) + self.offset

    def end(self, reason: str) -> None:
        """The ledger says that it is over: its deadline is past, or the app ended it."""
        if self.closed is None and self.on_end is not None:
            self.on_end(self, reason)


class Table:
    """The open sessions by key. ``most``: how many there may be, 0 for any number."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.load = 0.0
        """The sum of their costs."""
        self._open: dict[str, Explicit] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Explicit]:
        return iter(list(self._open.values()))

    @property
    def full(self) -> bool:
        """True if no session more may be opened."""
        return bool(self.most) and len(self._open) >= self.most

    def get(self, key: str) -> Explicit | None:
        """The open session of that key."""
        return self._open.get(key)

    def add(self, session: Explicit) -> None:
        """Hold ``session``; the caller has looked at `full`."""
        self._open[session.key] = session
        self.load += session.cost

    def pop(self, session: Explicit) -> bool:
        """Hold it no more. True once for each session, whoever asks."""
        if self._open.pop(session.key, None) is None:
            return False
        self.load = self.load - session.cost if self._open else 0.0
        return True

    def next_deadline(self) -> float:
        """The earliest deadline of all open sessions: when a slot comes free at the latest. Looks at every session."""
        return min((_deadline(each) for each in self._open.values()), default=math.inf)


def _deadline(session: Explicit) -> float:
    record = session.record
    return session.deadline(record.in_use > 0, record.last) if record is not None else session.until
