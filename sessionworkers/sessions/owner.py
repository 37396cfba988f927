"""The owner's side of explicit sessions: opening, requests, the end, what is published.

A session ends once, by whoever pops it from the table first: end, webhook, the app, expiry, or this worker's stop. From
that moment its requests are answered 410. Its claim lives on for the retry window, in which a second end is told 410
and not 400. Then, in this order: its requests are cut off, its close callbacks start, its hook is posted. Nobody waits
for any of that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from sessionworkers.affinity.carriers import parse_carrier
from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.lifecycle import Event, State
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.rules import Mint, RequestPattern, Rule
from sessionworkers.affinity.ruleset import Found, Named
from sessionworkers.affinity.views import RequestView
from sessionworkers.errors import ClaimError
from sessionworkers.ledger.answers import Refused
from sessionworkers.ledger.current import Session
from sessionworkers.ledger.ledger import Ledger
from sessionworkers.members.load import Load
from sessionworkers.sessions.costs import too_long
from sessionworkers.sessions.hooks import Hooks
from sessionworkers.sessions.messages import Credentials, Wanted, digest, hook_body, same
from sessionworkers.sessions.meter import Meter
from sessionworkers.sessions.running import Receive, Running, Send, ended
from sessionworkers.sessions.table import Explicit, Table, mint

log = logging.getLogger("sessionworkers")

RULE_NAME = "worker-sessions"


HEAD_START = 0.1
"""Seconds that an end waits for its hook at the most."""


class Published(Protocol):
    """Where the figures go (`members.load.Page`)."""

    def publish(self, load: Load) -> None:
        """Write them."""


class Full(Exception):
    """No room for another session here: nothing was done."""


def session_rule(prefix: str, retry_window: float) -> Rule:
    """The rule under which explicit sessions are claimed. No request is read by it: the front finds the ID."""
    return Rule(
        RULE_NAME,
        (parse_carrier("header:x-session-id"),),
        starts=(RequestPattern(PathTemplate(f"{prefix}/create"), frozenset({"POST"})),),
        ends=(RequestPattern(PathTemplate(f"{prefix}/end"), frozenset({"POST"})),),
        mint=Mint.APP,
        retry_window=retry_window,
    )


class Owner:
    """The explicit sessions of this worker."""

    def __init__(
        self,
        ledger: Ledger,
        rule: Rule,
        hooks: Hooks,
        meter: Meter,
        page: Published,
        *,
        most: int,
        extend: str,
        max_age: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = ledger
        self.rule = rule
        self.hooks = hooks
        self.meter = meter
        self.table = Table(most)
        self.draining = False
        self.rejected = 0
        self._until = 0.0
        self._page = page
        self._extend = extend
        self._max_age = max_age or math.inf
        self._wall = wall

    def key(self, session_id: str) -> str:
        """The claim key of an explicit session's ID."""
        return claim_key(self.rule.key_space, session_id)

    # opening

    def open(self, wanted: Wanted, session_id: str | None = None) -> tuple[Explicit, dict[str, Any]]:
        """Open a session; what create answers. ``session_id``: minted, and claimed for this worker, by the acceptor.

        Raises `Full`; `Refused` (422) for a hook that may not be posted, 503 if nothing can be claimed.
        """
        if self.draining or self.table.full:
            raise Full
        if wanted.on_close_route is not None:
            self.check_hook(wanted.on_close_route)
        session_id = session_id or mint()
        answer: dict[str, Any] = {"session_id": session_id}
        auth: Any = wanted.auth_data
        if auth is None:
            auth = answer["session_auth"] = {"token": secrets.token_urlsafe(32)}
        key = self.key(session_id)
        book = self.ledger.book
        try:
            record = book.open(self.rule, State.OPEN, key)
        except ClaimError as error:
            raise Refused(error.status, "no room for sessions", str(error), retry_after=5) from None
        now = book.clock()
        session = Explicit(
            session_id,
            key,
            digest(auth),
            wanted.auth_data,
            wanted.lifetime,
            wanted.cost,
            wanted.on_close_route,
            wanted.on_close_payload,
            made=now,
            offset=self._wall() - now,
            extend=self._extend,
            limit=now + self._max_age,
        )
        session.record = record
        session.on_end = self.close
        record.term = session
        record.handle = handle = Session(self.ledger)
        handle.id, handle.key = session_id, key
        self.table.add(session)
        book.settle(record)
        self._changed()
        return session, {**answer, "expiration": self.expiration(session)}

    def check_hook(self, route: str) -> None:
        """Raises `Refused` (422) for a hook that may not be posted."""
        try:
            self.hooks.target(route)
        except ValueError as error:
            raise Refused(422, "on_close_route is not valid", str(error)) from None

    # routes

    def find(self, session_id: str) -> Explicit | None:
        """The open session of that ID; one whose deadline is past is closed here and now."""
        session = self.table.get(self.key(session_id))
        if session is None or session.record is None:
            return None
        record = session.record
        if session.deadline(record.in_use > 0, record.last) <= self.ledger.book.clock():
            self.close(session, "expired")
            return None
        return session

    async def end(self, asked: Credentials, reason: str = "ended") -> dict[str, Any]:
        """End by credentials. Raises `Refused`: 400 unknown, 401, 410 ended already.

        The hook runs by itself; one that takes no longer than `HEAD_START` has run when this returns.
        """
        session = self.find(asked.session_id)
        if session is None:
            raise self.unknown(asked.session_id)
        if not same(asked.auth, session.auth):
            raise bad_auth()
        self.close(session, reason)
        if session.hook is not None:
            await asyncio.wait((session.hook,), timeout=HEAD_START)
        return {"ended": True, "removed_session": session.id}

    def unknown(self, session_id: str) -> Refused:
        """Why an end has nothing to end: 410 within the retry window of the first end, else 400."""
        if self.ledger.book.get(self.key(session_id)) is not None:
            return Refused(410, "session already closed", "this session has ended")
        return not_found()

    def get(self, asked: Credentials) -> dict[str, Any]:
        """What the page's get answers. Does not move the deadline. Raises `Refused`: 400, 401."""
        session = self.find(asked.session_id)
        if session is None:
            raise Refused(400, "session does not exist", "the session has ended, or never was")
        if not same(asked.auth, session.auth):
            raise bad_auth()
        return {
            "session_id": session.id,
            "auth_data": session.auth_data,
            "lifetime": session.lifetime,
            "expiration": self.expiration(session),
            "created_at": session.made + session.offset,
            "on_close_route": session.on_close_route,
            "on_close_payload": session.on_close_payload,
        }

    def health(self, asked: Credentials) -> dict[str, Any]:
        """``ok`` false for a session that is not open, whatever the credential. Raises `Refused`: 401."""
        session = self.find(asked.session_id)
        if session is None:
            return {"ok": False}
        if not same(asked.auth, session.auth):
            raise bad_auth()
        return {"ok": True}

    def expiration(self, session: Explicit) -> float:
        """The deadline in seconds of the epoch."""
        record = session.record
        assert record is not None
        return session.expiration(record.in_use > 0, record.last, self.ledger.book.clock())

    # requests

    async def use(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
        session_id: str,
        auth: bytes | None,
    ) -> None:
        """Run a request of a session. ``auth``: the digest of the credential that its envelope carries, if it does.

        Raises `Refused` before the app has seen anything: 410, 401, 429. Only what is let in moves the deadline.
        """
        session = self.find(session_id)
        if session is None:
            raise ended()
        if auth is not None and not same(auth, session.auth):
            raise bad_auth()
        if scope["type"] == "http":
            retry_after = self.meter.refuses()
            if retry_after is not None:
                self.publish()
                raise too_long(retry_after)
        session.allowed()
        found = Found(self.rule, Named(session.id, session.key, 0))
        request = RequestView.from_scope(scope)
        running = Running(scope, receive, send)
        session.requests.add(running)
        try:
            await running.run(lambda receive, send: self.ledger.serve(scope, receive, send, request, found))
        finally:
            session.requests.discard(running)

    # the end

    def close(self, session: Explicit, reason: str) -> None:
        """The end of a session, once; for any reason."""
        if not self.table.pop(session):
            return
        session.closed = reason
        record = session.record
        assert record is not None
        record.step(Event.ENDED_BY_APP)
        record.last = self.ledger.book.clock()
        for running in session.requests:
            running.cut()
        if record.handle is not None and record.handle.has_callbacks:
            record.handle.close()
        if session.on_close_route is not None:
            session.hook = self.hooks.post(
                session.on_close_route, hook_body(session.on_close_payload, session.id), session.id
            )
        session.auth_data = session.on_close_payload = None  # the record stays for the retry window, these need not
        self.ledger.book.settle(record)
        self._changed()

    def drain(self) -> None:
        """Take no new sessions from now on."""
        self.draining = True
        self.publish()

    async def stop(self, grace: float) -> None:
        """This worker stops: every session ends, and their hooks get ``grace`` seconds in all."""
        self.drain()
        for session in self.table:
            self.close(session, "stopped")
        if self.hooks.tasks:
            await asyncio.wait(self.hooks.tasks, timeout=grace)
        if self.hooks.tasks:
            log.warning("%d close hooks did not finish within %g s", len(self.hooks.tasks), grace)
        for task in list(self.hooks.tasks):
            task.cancel()

    # figures

    def _changed(self) -> None:
        self._until = self.table.next_deadline() if self.table.full else 0.0
        self.publish()

    def publish(self) -> None:
        """Put this worker's figures on the board."""
        self._page.publish(self.figures())

    def figures(self) -> Load:
        """This worker's figures now."""
        table, meter = self.table, self.meter
        return Load(
            sessions=len(table),
            held=table.load,
            in_flight=meter.in_flight,
            work=meter.work,
            cap=table.most,
            rejected=self.rejected + meter.rejected,
            draining=self.draining,
            until=self._until,
            wait=meter.wait(),
        )


def bad_auth() -> Refused:
    """401: the credential is not the session's."""
    return Refused(401, "session_auth is not valid", "the credential is not this session's")


def not_found() -> Refused:
    """400: there is no such session, as far as anyone remembers."""
    return Refused(400, "session not found", "there is no session of that ID")
