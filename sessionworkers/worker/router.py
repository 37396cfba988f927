"""The accepting side: finds the session that a request names, decides, and handles it here, hops, or refuses.

One request, step by step (the numbers stand again in the code):

1. Not HTTP or WebSocket, or a path that is not routed: straight to the app.
2. Find the ID. Read the body only where a rule says that the ID may be there.
3. Look up the claim: own sessions from memory, others' from a bounded cache, else one `stat`.
4. Decide, by the table in `sessionworkers.affinity.decide`.
5. Handle here, through the ledger; a new session where `newcomers` places it. A claim lost before the handler ran
   turns into a hop to the winner.
6. Hop. An owner that says "not mine" has the claim read once more; a start gets 409 then.
7. The owner is gone: the rule's gone answer. What may have run is never repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from sessionworkers.affinity.decide import Answer, Arrival, Claim, Names, decide
from sessionworkers.affinity.ids import mask
from sessionworkers.affinity.recall import UNKNOWN, Kept, Key, Recall, plain
from sessionworkers.affinity.rules import Mint
from sessionworkers.affinity.ruleset import Found, NeedBody
from sessionworkers.affinity.views import RequestView
from sessionworkers.errors import AppFailed, HopBroken, HopError, NotMine, OwnerBusy, OwnerGone, StoreUnavailable
from sessionworkers.ledger.answers import Refused, app_failed, gone, refuse
from sessionworkers.ledger.book import Record
from sessionworkers.ledger.elsewhere import Elsewhere
from sessionworkers.ledger.known import Known
from sessionworkers.ledger.ledger import Ledger, Receive, Scope, Send
from sessionworkers.worker.accesslog import note_route
from sessionworkers.worker.body import BodyTooLarge, read_body
from sessionworkers.worker.newcomers import Newcomers
from sessionworkers.worker.passport import decode, encode

log = logging.getLogger("sessionworkers")

CACHE_SIZE = 65_536
"""Owners of other workers' sessions that are remembered; about 10 MB at the most."""


DECIDED = "sessionworkers.decided"
"""Key of an ASGI scope by which the host tells the router what is decided already; the app never sees it. A pair
of `Found` and record: the session is here; of None and None: the request names none, and begins none."""
_NO_SESSION = (None, None)


class Carried:
    """The request came from another worker, as a raw stream. ``meta`` None: its head tells all."""

    meta: dict[str, Any] | None = None

    def refuse(self, owner: str | None) -> None:
        """Another worker holds the claim (None: nobody); the app has not seen the request and will not."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Failed:
    """The request was carried to ``owner``, which did not answer it."""

    found: Found
    owner: str
    error: HopError


class Router:
    """An ASGI app around the ledger. ``links`` is None with a single worker: no claims, no private sockets."""

    def __init__(
        self,
        ledger: Ledger,
        links: Elsewhere | None,
        *,
        max_body: int = 64 * 1024 * 1024,
    ) -> None:
        self.ledger = ledger
        self.rules = ledger.rules
        self.app = ledger.app
        self.links = links
        self.max_body = max_body
        self.newcomers: Newcomers | None = None
        """Places new sessions, where they do not all begin where they arrive."""
        self._owners: dict[str, str] = {}
        self._recall = Recall(self.rules) if ledger.cookie is None else None

    def think(self) -> None:
        """Decide every request anew: what was remembered was decided by a worker that takes new sessions."""
        self._recall = None

    def remember(self) -> None:
        """The end of `think`."""
        self._recall = Recall(self.rules) if self.ledger.cookie is None else None

    @property
    def remembers(self) -> bool:
        """What was decided for one request stands for the next one like it."""
        return self._recall is not None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """The ASGI app. What was decided for the last request like this one is not thought over again."""
        decided = scope.pop(DECIDED, None)
        if type(decided) is tuple:
            return self.known(*decided)(scope, receive, send)
        if self._recall is None or scope["type"] != "http":
            if decided is not None:
                return self._decided(scope, receive, send, decided)
            return self._route(scope, receive, send, None)
        if decided is None:
            key, found = self._recall.find(scope)
        elif isinstance(decided, Carried) and decided.meta is None:
            found = self._recall.find(scope)[1]
            record = self.here(found) if type(found) is Found else None
            if record is not None:
                return self.known(found, record)(scope, receive, send)
            return self._decided(scope, receive, send, decided)
        else:
            return self._decided(scope, receive, send, decided)
        if found is UNKNOWN:
            return self._route(scope, receive, send, key)
        if found is None:
            return self.known(None, None)(scope, receive, send)
        record = self.here(found)
        if record is not None:
            return self.known(found, record)(scope, receive, send)
        return self._answered(scope, receive, send, RequestView.from_scope(scope), found)

    def known(self, found: Found | None, record: Record | None) -> Known:
        """The app for one plain request of the session ``record``, or (both None) of none."""
        return Known(self.ledger, found, record, self)

    def again(self, kept: Kept) -> Found | Any | None:
        """What is found in a request that came before; `UNKNOWN` if that must be thought over."""
        recall = self._recall
        return UNKNOWN if recall is None else recall.again(kept)

    def recalled(self, scope: Scope) -> Found | Any | None:
        """The same for any HTTP request."""
        return UNKNOWN if self._recall is None else self._recall.find(scope)[1]

    def here(self, found: Found) -> Record | None:
        """The session of this worker that ``found`` names."""
        return self.ledger.book.get(found.primary.key)

    def owner(self, found: Found) -> str | None:
        """The other worker that holds the session, where that is remembered."""
        return self._owners.get(found.primary.key)

    def key(self, scope: Scope) -> Key | None:
        """For `again`, to be kept with the head of an HTTP request."""
        return None if self._recall is None else self._recall.key(scope)

    def elsewhere(self, scope: Scope) -> tuple[Found, str] | None:
        """The session of an HTTP request and its owner, if that is another worker and no more has to be thought over.

        For hosts that can carry a request before it becomes an ASGI call; all else takes the usual way.
        """
        recall = self._recall
        if recall is None or self.links is None:
            return None
        key: Key | None = None
        found: Any = UNKNOWN
        http = scope["type"] == "http"
        if http:
            key, found = recall.find(scope)
            if found is None:
                scope[DECIDED] = _NO_SESSION
                return None
        if found is UNKNOWN:
            request = RequestView.from_scope(scope)
            if self.rules.off(request):
                return None
            found = self.rules.find(request)
            if isinstance(found, NeedBody):
                return None
            if key is not None and recall.note(key, request, found) and found is None:
                scope[DECIDED] = _NO_SESSION
        try:
            if found is not None and found.candidates:
                found = self._choose(found)
            if found is None or (found.also and (found.start or found.end)):
                return None
            primary = found.primary.key
            record = self.ledger.book.get(primary)
            if record is not None:
                if http and (found.recalled or plain(found)):
                    scope[DECIDED] = (found, record)
                return None
            owner = self._owners.get(primary)
            if owner is None:
                claim, owner = self._look_up(primary)
                if claim is not Claim.OTHER:
                    return None
        except Refused:
            return None
        return None if owner is None else (found, owner)

    def meta(self, found: Found) -> dict[str, Any] | None:
        """What must travel with a raw stream besides its head."""
        return None if found.recalled or plain(found) else encode(found)

    async def _decided(self, scope: Scope, receive: Receive, send: Send, decided: Any) -> None:
        request = RequestView.from_scope(scope)
        try:
            if type(decided) is Failed:
                await self._hop(scope, receive, send, request, decided.found, decided.owner, decided.error)
            elif isinstance(decided, Carried):
                if decided.meta is not None or self._recall is None or scope["type"] != "http":
                    found = decode(decided.meta or {}, self.rules, request)
                else:
                    key, found = self._recall.find(scope)
                    if found is UNKNOWN:
                        found = decode({}, self.rules, request)
                        self._recall.note(key, request, found)
                        record = self._held(found)
                        if record is not None:
                            await self.known(found, record)(scope, receive, send)
                            return
                if found is not None:
                    note_route(found, "hop")
                try:
                    await self.ledger.serve(scope, receive, send, request, found, Arrival.PRIVATE)
                except NotMine as error:
                    decided.refuse(error.owner)
            else:
                await self._found(scope, receive, send, request, decided)
        except Refused as refused:
            await refuse(scope, send, refused)

    def _held(self, found: Found | None) -> Record | None:
        """The session of this worker that a plain request names."""
        return self.ledger.book.get(found.primary.key) if found is not None and plain(found) else None

    async def _route(self, scope: Scope, receive: Receive, send: Send, key: Key | None) -> None:
        if scope["type"] not in ("http", "websocket"):  # 1
            await self.app(scope, receive, send)
            return
        request = RequestView.from_scope(scope)
        if self.rules.off(request):
            await self.app(scope, receive, send)
            return
        found = self.rules.find(request)  # 2
        if isinstance(found, NeedBody):
            try:
                body, receive = await read_body(scope, receive, self.max_body)
            except BodyTooLarge as large:
                receive = large.receive
                if self.rules.start_or_end(request):
                    await refuse(
                        scope, send, Refused(413, "body too large", "the body that names the session is too large")
                    )
                    return
                body = b""
            request.body = body
            found = self.rules.find(request)
            if isinstance(found, NeedBody):
                raise AssertionError("a rule asked for a body that was read")
        elif key is not None and self._recall is not None:
            self._recall.note(key, request, found)
            record = self._held(found)
            if record is not None and found is not None:
                await self.known(found, record)(scope, receive, send)
                return
        if found is not None and found.candidates:  # 3
            found = self._choose(found)
        await self._answered(scope, receive, send, request, found)

    async def _answered(
        self, scope: Scope, receive: Receive, send: Send, request: RequestView, found: Found | None
    ) -> None:
        try:
            if found is not None:
                await self._found(scope, receive, send, request, found)
                return
            if self.newcomers is not None:
                going_on = await self.newcomers.take(scope, receive, send, request, None)
                if going_on is None:
                    return
                receive = going_on
            await self._here(scope, receive, send, request, None)
        except Refused as refused:
            await refuse(scope, send, refused)

    async def _found(self, scope: Scope, receive: Receive, send: Send, request: RequestView, found: Found) -> None:
        claim, owner = self._look_up(found.primary.key)  # 3
        if claim is Claim.NONE and found.rule.mint is Mint.CLIENT:
            claimed = self._claimed_instead(request, found)
            if claimed is not None:
                found = claimed
                claim, owner = self._look_up(found.primary.key)
        names = Names.AN_ID
        if found.also and (found.start or found.end) and self.links is not None:
            owners = {owner} if owner is not None else set()
            for named in found.also:
                other_claim, other = self._look_up(named.key)
                if other is not None:
                    owners.add(other)
                    claim, owner = (other_claim, other) if owner is None else (claim, owner)
            if len(owners) > 1:
                names = Names.CONFLICT
        answer = decide(Arrival.PUBLIC, names, claim, inferred=found.rule.inferred, start=found.start)  # 4
        if answer is Answer.CONFLICT:
            raise Refused(409, "session mismatch", "the request names two different sessions")
        if answer is Answer.HERE:
            try:
                if claim is Claim.NONE and self.newcomers is not None:
                    going_on = await self.newcomers.take(scope, receive, send, request, found)
                    if going_on is None:
                        return
                    receive = going_on
                await self._here(scope, receive, send, request, found)  # 5
                return
            except NotMine as lost:
                owner = lost.owner
        elif answer is not Answer.HOP:
            raise AssertionError(f"no branch for {answer}")
        if owner is None:
            raise AssertionError("a hop without an owner")
        await self._hop(scope, receive, send, request, found, owner)  # 6

    async def _here(
        self, scope: Scope, receive: Receive, send: Send, request: RequestView, found: Found | None
    ) -> None:
        if found is not None:
            note_route(found, "here")
        await self.ledger.serve(scope, receive, send, request, found)

    async def _hop(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        request: RequestView,
        found: Found,
        owner: str,
        failed: HopError | None = None,
    ) -> None:
        """``failed``: what became of the first attempt, where the host has made it."""
        assert self.links is not None
        key = found.primary.key
        for attempt in (1, 2):
            try:
                if failed is not None:
                    error, failed = failed, None
                    raise error
                note_route(found, f"hop {owner[:8]}")
                await self.links.carry(owner, scope, receive, send, encode(found))
                return
            except NotMine as error:
                self._owners.pop(key, None)
                if error.replay is None:  # too much of the body was read to begin again
                    raise Refused(503, "session moved", "the session moved meanwhile", retry_after=0) from None
                receive = error.replay
                if found.start or attempt == 2:
                    raise Refused(409, "session conflict", "another worker claimed this session meanwhile") from None
                claim, moved = self._look_up(key)
                if claim in (Claim.MINE, Claim.NONE):
                    await self._here(scope, receive, send, request, found)
                    return
                assert moved is not None
                owner = moved
            except OwnerGone as error:
                self._owners.pop(key, None)
                now_owner = self._read_claim(key)
                if now_owner not in (None, owner) and not error.sent and attempt == 1:
                    assert now_owner is not None
                    owner = now_owner  # it moved before its owner left
                    continue
                await self._owner_gone(scope, receive, send, request, found, sent=error.sent)  # 7
                return
            except OwnerBusy:
                raise Refused(
                    503, "owner busy", "the worker that holds this session accepts no connection", retry_after=1
                ) from None
            except AppFailed:
                await app_failed(scope, send)  # logged by its owner; a second traceback here would tell nothing
                return
            except HopBroken as error:
                # What was sent cannot be taken back: returning now lets the host end the connection with FIN.
                log.warning("the reply to a %s request was cut: %s", request.kind, error)
                return
            except HopError as error:
                raise Refused(502, "hop failed", "the worker that holds this session broke off") from error

    async def _owner_gone(
        self, scope: Scope, receive: Receive, send: Send, request: RequestView, found: Found, *, sent: bool
    ) -> None:
        answer = decide(Arrival.PUBLIC, Names.AN_ID, Claim.GONE, inferred=found.rule.inferred, start=found.start)
        if answer is Answer.HERE and not sent:
            await self._here(scope, receive, send, request, None)
            return
        log.debug("session %s is gone: its worker lives no more", mask(found.primary.value))
        note_route(found, "gone")
        await gone(scope, send, found.rule.gone, request)

    def _choose(self, found: Found) -> Found | None:
        """Of several IDs that may be ones, the first that is claimed decides; else what the request names otherwise."""
        for named in found.candidates:
            if self._look_up(named.key)[0] is not Claim.NONE:
                found.primary = named
                return found
        return found.otherwise

    def _claimed_instead(self, request: RequestView, found: Found) -> Found | None:
        """A new ID that a client made up, on a request that names a claimed session too (a new tab, a login's cookie):
        it joins that session's owner."""
        other = self.rules.instead(request, found)
        if other is not None and other.candidates:
            other = self._choose(other)
        if other is None or self._look_up(other.primary.key)[0] is Claim.NONE:
            return None
        return other

    def _look_up(self, key: str) -> tuple[Claim, str | None]:
        """Who holds ``key``. *None* is never cached, and *gone* is found out by the hop, never from the cache."""
        book = self.ledger.book
        if book.get(key) is not None:
            return Claim.MINE, book.store.me
        if self.links is None:
            return Claim.NONE, None
        owner = self._owners.get(key)
        if owner is not None:
            return Claim.OTHER, owner
        owner = self._read_claim(key)
        if owner is None:
            return Claim.NONE, None
        if owner == book.store.me:
            return Claim.MINE, owner
        if len(self._owners) >= CACHE_SIZE:
            self._owners.clear()
        self._owners[key] = owner
        return Claim.OTHER, owner

    def _read_claim(self, key: str) -> str | None:
        try:
            return self.ledger.book.store.owner(key)
        except StoreUnavailable as error:  # neither mine nor unclaimed may be guessed
            raise Refused(error.status, "claims unavailable", str(error), retry_after=1) from error
