"""Creating sessions: which worker gets one, whichever accepted.

1. Check the body, and the grant where a platform's key is set. Nothing is held yet.
2. Of the workers with room the one with the least load, all reservations counted.
3. Reserve there, mint an ID, claim it for that worker, hop. The owner adopts the claim; the reservation ends as it puts
   the session into its own figures.
4. It may refuse (full, draining, gone) before anything ran: the next one. None left: 429, with when to come back; 503
   if none takes new sessions at all.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any, Final

from sessionworkers.affinity.placement import Standing, by_load
from sessionworkers.affinity.views import RequestView
from sessionworkers.errors import AppFailed, ClaimError, HopBroken, HopError, NotMine, OwnerBusy, OwnerGone
from sessionworkers.ledger.answers import Refused, answer, app_failed
from sessionworkers.ledger.elsewhere import Elsewhere
from sessionworkers.members.load import Load, LoadBoard
from sessionworkers.sessions.costs import Receive, Send, read_whole, replay
from sessionworkers.sessions.grants import GrantKey
from sessionworkers.sessions.messages import Wanted, parse_create
from sessionworkers.sessions.owner import Full, Owner
from sessionworkers.sessions.table import mint

RETRY_LIMIT: Final = 10
"""Seconds; the largest Retry-After of a full server: most sessions end before they run out."""
SETTLE: Final = 0.5
"""Seconds to wait, at the most, where the last free slots are only reserved."""
STEP: Final = 0.01

CREATE: Final = "create"


class Placer:
    """Places creates. ``lifetime`` and ``max_lifetime`` in seconds: the default, and the most that may be asked for."""

    def __init__(
        self,
        owner: Owner,
        board: LoadBoard,
        links: Elsewhere | None,
        *,
        lifetime: float,
        max_lifetime: float,
        grant_key: GrantKey | None,
        note: Callable[[RequestView, str, str], None] = lambda request, session_id, way: None,
    ) -> None:
        self.owner = owner
        self.board = board
        self.links = links
        self.note = note
        self._lifetime = lifetime
        self._max_lifetime = max_lifetime
        self._grant_key = grant_key

    def loads(self) -> dict[str, Load]:
        """What every living worker published."""
        return self.board.loads()

    async def create(self, scope: Any, receive: Receive, send: Send, body: bytes, request: RequestView) -> None:
        """Open a session somewhere. Raises `Refused`: 422, 401, 429, 503."""
        wanted = parse_create(body, lifetime=self._lifetime, max_lifetime=self._max_lifetime)  # 1
        if self._grant_key is not None and not self._grant_key.signed(wanted.auth_data):
            raise Refused(401, "signature is not valid", "the grant is not signed by the platform")
        if wanted.on_close_route is not None:
            self.owner.check_hook(wanted.on_close_route)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + SETTLE
        refused: set[str] = set()
        busy = False
        while True:
            standing = self.board.standing()
            target = self._choose(standing, refused)  # 2
            if target is None:
                reserved_only = any(not load.draining and load.free and count for _, load, count, _ in standing)
                if not reserved_only or loop.time() > give_up:
                    break
                refused.clear()
                await asyncio.sleep(STEP)
                continue
            try:
                again = replay([{"type": "http.request", "body": body, "more_body": False}], receive)
                if await self._try(target, scope, again, send, wanted, request):
                    return
            except OwnerBusy:
                busy = True
            refused.add(target)
        if all(load.draining for _, load, _, _ in standing):  # 4
            raise Refused(503, "the server is stopping", "no worker takes new sessions", retry_after=1)
        if busy:
            raise Refused(503, "no worker can be reached", "the workers with room accept no connection", retry_after=1)
        self.owner.rejected += 1
        self.owner.publish()
        raise Refused(429, "no room for sessions", "every worker is full", retry_after=self._retry_after())

    async def accept(self, scope: Any, receive: Receive, send: Send, session_id: str, acceptor: str) -> None:
        """The owner's side of a create that was placed here. Raises `NotMine`, the claim given up, without room."""
        body, _ = await read_whole(receive, 2**30)
        if body is None:
            self._give_up(session_id)
            return  # the acceptor is gone
        wanted = parse_create(body, lifetime=self._lifetime, max_lifetime=math.inf)
        try:
            _, made = self.owner.open(wanted, session_id)
        except Full:
            self._give_up(session_id)
            raise NotMine(None) from None
        except Refused:
            self._give_up(session_id)
            raise
        self.board.arrived(acceptor, wanted.cost)
        await _created(scope, send, made)

    def _give_up(self, session_id: str) -> None:
        try:
            self.owner.ledger.book.store.release(self.owner.key(session_id))
        except ClaimError:
            pass  # nobody knows the ID: the claim is in nobody's way

    def _choose(self, standing: list[tuple[str, Load, int, float]], refused: set[str]) -> str | None:
        candidates = [
            Standing(uid, load.current + cost, load.sessions + count, load.cap, load.draining or uid in refused)
            for uid, load, count, cost in standing
        ]
        ordered = by_load(candidates, self.board.uid)
        return ordered[0].uid if ordered else None

    async def _try(
        self, target: str, scope: Any, receive: Receive, send: Send, wanted: Wanted, request: RequestView
    ) -> bool:
        """Open it on ``target``; False if that has no room after all, or lives no more. Raises `OwnerBusy`."""
        if target == self.board.uid:
            try:
                session, made = self.owner.open(wanted)
            except Full:
                return False
            self.note(request, session.id, "here")
            await _created(scope, send, made)
            return True
        assert self.links is not None
        session_id = mint()
        reservation = self.board.reserve(target, wanted.cost)  # 3
        self.note(request, session_id, f"placed {target[:8]}")

        async def released(event: Any) -> None:
            if event["type"] == "http.response.start":
                if event["status"] == 201:
                    reservation.arrived()
                else:
                    reservation.release()
            await send(event)

        try:
            self.owner.ledger.book.store.claim(self.owner.key(session_id), target)
            await self.links.carry(target, scope, receive, released, {"session": [CREATE, session_id, self.board.uid]})
        except ClaimError as error:
            raise Refused(error.status, "no room for sessions", str(error), retry_after=5) from None
        except NotMine:
            return False
        except OwnerGone as error:
            if error.sent:  # it may have been opened, but died with its worker: nothing is left of it
                raise Refused(
                    503, "worker lost", "the worker died while it opened the session", retry_after=1
                ) from None
            return False
        except OwnerBusy:
            raise
        except AppFailed:
            await app_failed(scope, send)
        except HopBroken:
            pass
        except HopError as error:
            raise Refused(502, "hop failed", "the worker that was to hold the session broke off") from error
        finally:
            reservation.release()
        return True

    def _retry_after(self) -> int:
        """Seconds until a slot is free at the latest, 1 to 10."""
        until = [load.until for load in self.board.loads().values() if load.until and not load.draining]
        if not until:
            return RETRY_LIMIT
        return min(RETRY_LIMIT, max(1, math.ceil(min(until) - self.owner.ledger.book.clock())))


async def _created(scope: Any, send: Send, made: dict[str, Any]) -> None:
    await answer(scope, send, 201, [(b"content-type", b"application/json")], json.dumps(made).encode())
