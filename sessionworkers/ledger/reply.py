"""The app's reply on its way out: claims are made before the byte that tells the ID leaves.

``http.response.start`` passes at once unless the ID can stand in the first piece of a short JSON body, in which case it
is held for that piece: an ID minted twice then becomes a 409, not a promise to two clients. A stream is never held.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sessionworkers.affinity.ids import claim_key
from sessionworkers.affinity.ruleset import Learned
from sessionworkers.errors import ClaimConflict, ClaimError, HopBroken
from sessionworkers.ledger.answers import Refused, refuse

if TYPE_CHECKING:
    from sessionworkers.ledger.ledger import Visit

Send = Callable[[Any], Awaitable[None]]


class Reply:
    """Wraps one request's ``send``."""

    __slots__ = ("_held", "_refused", "_send", "through", "visit")

    def __init__(self, visit: Visit, send: Send) -> None:
        self.visit = visit
        self._send = send
        self._held: Any = None
        self._refused = False
        self.through = False
        """What is left of the body tells nothing."""

    def send(self, event: Any) -> Awaitable[None]:
        """Pass ``event`` on when all that it tells is claimed."""
        if self.through and event["type"] == "http.response.body":
            return self._send(event)  # the server's own: a stream of many events pays for the first ones only
        return self._look(event)

    async def _look(self, event: Any) -> None:
        kind = event["type"]
        if kind == "http.response.body":
            await self._body(event)
        elif kind == "http.response.start":
            await self._start(event)
        elif kind == "websocket.send":
            watch = self.visit.watch
            if watch is not None and not watch.done:
                self._learn(watch.message(event.get("text") or event.get("bytes") or b""))
            await self._send(event)
        elif kind == "websocket.accept":
            try:
                self.visit.head(101, event.get("headers") or ())
            except ClaimError as error:
                self._refused = True
                await refuse(self.visit.scope, self._send, _as_refusal(error))
                return
            await self._send(event)
        elif not self._refused:
            if kind == "websocket.close" or kind == "websocket.http.response.start":
                self.visit.outcome(False)
            await self._send(event)

    async def _start(self, event: Any) -> None:
        if not isinstance(event.get("headers", ()), (list, tuple)):
            event = {**event, "headers": list(event["headers"])}  # an iterator gives them once, and we look first
        try:
            self.visit.head(event["status"], event.get("headers") or ())
            event = self._with_cookie(event)
        except ClaimError as error:
            await self._refuse(error)
            return
        watch = self.visit.watch
        if watch is not None and watch.hold and not watch.done:
            self._held = event
            return
        await self._send(event)

    async def _body(self, event: Any) -> None:
        if self._refused:
            return
        watch = self.visit.watch
        if watch is not None and not watch.done:
            try:
                self._learn(watch.body(event.get("body", b""), event.get("more_body", False)))
            except ClaimError as error:
                if self._held is None:
                    raise HopBroken("an ID that another worker holds was already on its way") from error
                await self._refuse(error)
                return
        if self._held is not None:
            held, self._held = self._held, None
            await self._send(held)
        self.through = watch is None or watch.done
        await self._send(event)

    def _learn(self, items: tuple[Learned, ...]) -> None:
        for item in items:
            self.visit.learn(item)

    async def _refuse(self, error: ClaimError) -> None:
        self._refused = True
        self._held = None
        await refuse(self.visit.scope, self._send, _as_refusal(error))

    def _with_cookie(self, event: Any) -> Any:
        """Add the affinity cookie to a page's reply, where it is on and the request brought none that is claimed."""
        visit = self.visit
        cookie = visit.ledger.cookie
        headers = event.get("headers") or ()
        if cookie is None or not cookie.wanted(event["status"], headers):
            return event
        if visit.found is not None and visit.found.rule is cookie.rule:
            if visit.record is not None:
                return event
        elif visit.request.cookies.get(cookie.name):
            return event
        value = cookie.mint()
        visit.learn(Learned(cookie.rule, value, claim_key(cookie.rule.key_space, value), True))
        return {**event, "headers": [*headers, cookie.header(value, secure=visit.scope.get("scheme") == "https")]}


def _as_refusal(error: ClaimError) -> Refused:
    if isinstance(error, ClaimConflict):
        return Refused(409, "session conflict", "this session ID was minted on two workers")
    return Refused(503, "no room for sessions", str(error), retry_after=5)
