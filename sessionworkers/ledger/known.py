"""The short way of a request whose session this worker holds already and whose reply will most likely teach nothing.

Most requests are so. They are counted in and out and pay for little else: the reply's header names are looked up once,
and a JSON body is passed over once for strings that could be an ID. Only where there is one the whole of `Reply` takes
over, with the same head and body, so that nothing is missed that it would have learned.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from sessionworkers.affinity.auto import MAX_REPLY
from sessionworkers.affinity.ids import looks_random
from sessionworkers.affinity.lifecycle import Event, State
from sessionworkers.affinity.ruleset import Found
from sessionworkers.affinity.views import RequestView
from sessionworkers.ledger.book import Record
from sessionworkers.ledger.current import _visit
from sessionworkers.ledger.ledger import Ledger, Scope, Visit
from sessionworkers.ledger.reply import Reply

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_STRINGS = re.compile(rb'"([^"\s]{14,})"').findall
"""JSON strings long enough for an ID (`looks_random` wants 16). Where a match is none, as in ``":1234567890123,"``, it
is at least never the request's own ID, so that the body is then read in earnest."""
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
    """One request, and its ``send``: a plain function that gives the server's own awaitable; no frame of ours waits."""

    __slots__ = ("_full", "_head", "_kind", "_send")

    def __init__(self, ledger: Ledger, scope: Scope, found: Found | None, record: Record | None, send: Send) -> None:
        # As Visit's own, which would be a call more; the request's view is made if the reply turns out to need it.
        self.ledger = ledger
        self.scope = scope
        self.request = None  # type: ignore[assignment]
        self.found = found
        self.start_rule = self.watch = self.pending = None
        self.outcome_known = self.sighted = False
        self.record = record
        self._session = record.handle if record is not None else None
        self._send = send
        self._kind = ""  # of a body that may tell an ID
        self._head: Any = None
        self._full: Reply | None = None

    def send(self, event: Any) -> Awaitable[None]:
        """Pass ``event`` on when all that it tells is claimed."""
        if self._full is not None:
            return self._full.send(event)
        kind = event["type"]
        if kind == "http.response.start":
            rules = self.ledger.rules
            in_head, body_kind = rules.reply_interest.glance(event.get("headers") or ())
            if in_head or (rules.body_learners and rules.body_learners.get(body_kind)):
                return self._grow().send(event)
            if rules.auto is not None and (body_kind == "json" or body_kind == "events"):
                self._kind = body_kind
                self._head = event
        elif self._kind and kind == "http.response.body":
            found = self.found
            own = found.primary.value.encode() if found is not None else b""
            body = event.get("body", b"")
            if self._kind == "events" or event.get("more_body", False) or (
                len(body) <= MAX_REPLY and may_teach(body, own)
            ):  # fmt: skip
                full = self._grow()
                self.head(self._head["status"], self._head.get("headers") or ())  # it left, and told nothing
                return full.send(event)
            self._kind = ""
        return self._send(event)

    def _grow(self) -> Reply:
        """From here on the whole machinery."""
        self.request = RequestView.from_scope(self.scope)
        self.watch = self.ledger.rules.watch(self.request, self.found)
        self._full = Reply(self, self._send)
        return self._full


async def serve_known(
    ledger: Ledger, record: Record | None, found: Found | None, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run the app for a plain request of the session ``record``, or for one that names none (both None).

    `Ledger.serve` does the same for any request.
    """
    visit = Known(ledger, scope, found, record, send)
    if record is not None and found is not None:
        record.in_use += 1
        record.requests += 1
        if record.state is State.LEARNED:
            record.step(Event.USED)
        primary = found.primary
        if record.keys[primary.key] or not record.carriers >> primary.carrier & 1:
            ledger.book.sent_back(record, primary.key, primary.carrier)
    _visit.set(visit)
    try:
        await ledger.app(scope, receive, visit.send)
    finally:
        _visit.set(None)
        leave(ledger, visit)


def leave(ledger: Ledger, visit: Visit) -> None:
    """The request is over."""
    record = visit.record
    if record is None:
        return
    book = ledger.book
    record.in_use -= 1
    record.last = now = book.clock()
    # A session in the middle of its life only ever ends later than was thought: the sweeper finds out when it looks.
    if record.term is None and (
        record.state is State.OPEN or (record.state is State.IMPLICIT and record.heap_at <= now + record.rule.idle)
    ):
        return
    book.settle(record)
