"""The short way of a request whose session this worker holds already and whose reply will most likely teach nothing.

Most requests are so. They are counted in and out and pay for little else: the reply's header names are looked up once,
and a JSON body is passed over once for strings that could be an ID. Only where there is one the whole of `Reply` takes
over, with the same head and body, so that nothing is missed that it would have learned.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from sessionworkers.affinity.auto import MAX_REPLY
from sessionworkers.affinity.ids import looks_random
from sessionworkers.affinity.lifecycle import Event, State
from sessionworkers.affinity.ruleset import Found
from sessionworkers.affinity.views import RequestView
from sessionworkers.ledger.book import Book, Record
from sessionworkers.ledger.current import _visit
from sessionworkers.ledger.ledger import Ledger, Scope, Visit
from sessionworkers.ledger.reply import Reply

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def event_may_teach(piece: bytes, own: bytes) -> bool:
    """The same for the first piece of a stream of events, of which only the first is read: whole ones, with JSON."""
    if not piece.endswith(b"\n\n") or not piece.startswith((b"data: {", b"data:{")) or b"\r" in piece:
        return True
    first = piece[: piece.index(b"\n\n")]
    return first.count(b"\n") > 0 or may_teach(first, own)


class Remembering(Protocol):
    """The router. ``remembers``: what it decided before still stands."""

    @property
    def remembers(self) -> bool: ...

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]: ...


_STRINGS = re.compile(rb'"([^"\s]{14,})"').findall
"""JSON strings long enough for an ID (`looks_random` wants 16). Where a match is none, as in ``":1234567890123,"``, it
is at least never the request's own ID, so that the body is then read in earnest."""
_TELLING = ("json", "events")
"""Kinds of bodies in which `auto` finds IDs."""
_MANY = 4
"""More of them are looked at by the whole machinery."""


def may_teach(body: bytes, own: bytes) -> bool:
    """False if a JSON ``body`` holds no string that could be an ID, but ``own``, which the request named itself."""
    strings = _STRINGS(body)
    if not strings:
        return False
    if len(strings) > _MANY:
        return True
    for each in strings:
        if each != own and (b"/" in each or b"\\" in each or looks_random(each.decode("latin-1"))):
            return True
    return False


class Known(Visit):
    """One plain request of the session ``record``, or of none (``found`` and ``record`` None), as an ASGI app.

    ``otherwise`` is the app to run if that is no longer so when the request begins. `Ledger.serve` does the same for
    any request.
    """

    kind = ""
    """Of a body that may tell an ID."""
    _head: Any = None
    _full: Reply | None = None
    watches = True
    """Off: the host looks at the reply itself, by `look`."""
    request: RequestView = None  # type: ignore[assignment] # made if the reply turns out to need it

    def __init__(self, ledger: Ledger, found: Found | None, record: Record | None, otherwise: Remembering) -> None:
        # Not Visit's, which would be a call more.
        self.ledger = ledger
        self.found = found
        self.record = record
        self.otherwise = otherwise
        if record is not None and record.handle is not None:
            self._session = record.handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        record = self.record
        ledger = self.ledger
        if record is None:
            if not self.otherwise.remembers:
                return await self.otherwise(scope, receive, send)
        else:
            found = self.found
            assert found is not None
            primary = found.primary
            how = record.keys.get(primary.key)
            if how is None:
                return await self.otherwise(scope, receive, send)
            record.in_use += 1
            record.requests += 1
            if record.state is State.LEARNED:
                record.step(Event.USED)
            if how or not record.carriers >> primary.carrier & 1:
                ledger.book.sent_back(record, primary.key, primary.carrier)
        if self.watches:  # else it would be a cycle of references: what the host looks by knows the request
            self._send = send
            send = self.send
        _visit.set(self)
        try:
            await ledger.app(scope, receive, send)
            _visit.set(None)  # not after a failure: the host answers it, and logs it, in the name of this request
        finally:
            record = self.record
            if record is not None:
                leave(ledger.book, record)

    # A plain function that gives the server's own awaitable; no frame of ours waits.
    def send(self, event: Any) -> Awaitable[None]:
        """Pass ``event`` on when all that it tells is claimed."""
        full = self.look(event, self._send)
        return self._send(event) if full is None else full.send(event)

    def look(self, event: Any, send: Send) -> Reply | None:
        """What has to have ``event`` in place of ``send``; None: it tells nothing, and goes there."""
        if self._full is not None:
            return self._full
        try:
            return self._look(event, send)
        except (TypeError, ValueError, AttributeError, LookupError):
            return None  # no ASGI message: the host finds the words for it

    def _look(self, event: Any, send: Send) -> Reply | None:
        kind = event["type"]
        if kind == "http.response.start":
            body_kind = self.ledger.rules.untelling(event.get("headers") or ())
            if body_kind is None:
                return self._grow(send)
            self.heard(event, body_kind)
        elif self.kind and kind == "http.response.body":
            found = self.found
            own = found.primary.value.encode() if found is not None else b""
            body = event.get("body", b"")
            if self.kind == "events":
                teaches = event_may_teach(body, own)
            else:
                teaches = event.get("more_body", False) or (len(body) <= MAX_REPLY and may_teach(body, own))
            if teaches:
                full = self._grow(send)
                self.head(self._head["status"], self._head.get("headers") or ())  # it left, and told nothing
                return full
            self.kind = ""
        return None

    def heard(self, start: Any, body_kind: str) -> None:
        """The reply's head told nothing. ``body_kind``: of the body that follows."""
        if body_kind in _TELLING and self.ledger.rules.auto is not None:
            self.kind = body_kind
            self._head = start

    def _grow(self, send: Send) -> Reply:
        """From here on the whole machinery."""
        self.request = RequestView.from_scope(self.scope)
        self.watch = self.ledger.rules.watch(self.request, self.found)
        self._full = Reply(self, send)
        return self._full


def leave(book: Book, record: Record) -> None:
    """The request is over."""
    record.in_use -= 1
    record.last = now = book.clock()
    # A session in the middle of its life only ever ends later than was thought: the sweeper finds out when it looks.
    if record.term is None and (
        record.state is State.OPEN or (record.state is State.IMPLICIT and record.heap_at <= now + record.rule.idle)
    ):
        return
    book.settle(record)
