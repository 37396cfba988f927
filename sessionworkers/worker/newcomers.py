"""New sessions: on which worker they begin.

1. A request is new if it names no claimed session. Placed are the starts that a rule recognises; of a worker that
   gives way (a restart, a drain) all new requests.
2. The choice is pure (`affinity.placement`) over the load board: what all workers published and what is on its way.
   This worker stays the choice while it is within one of the emptiest: a hop costs more than that is worth. A start
   whose connection stays open is placed only where the host can move the connection after it: else every later
   request of the session would hop.
3. An ID that the client named is claimed for the target before the hop: claim and reservation in one. Otherwise the
   reservation stands on the board until the first byte of the reply.
4. A target that refuses before its app saw anything (it drains by now, or died) is passed over for the next one.
5. With nobody left it begins here; in a server that stops, a start is refused: 503 with Retry-After.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sessionworkers.affinity.decide import claims_on_sight
from sessionworkers.affinity.found import Found
from sessionworkers.affinity.placement import Policy, Standing, places
from sessionworkers.affinity.views import RequestView
from sessionworkers.errors import AppFailed, ClaimError, HopBroken, HopError, NotMine, OwnerBusy, OwnerGone
from sessionworkers.ledger.answers import Refused, app_failed
from sessionworkers.ledger.elsewhere import BELONGS, Elsewhere
from sessionworkers.ledger.ledger import Ledger, Receive, Scope, Send
from sessionworkers.members.load import LoadBoard
from sessionworkers.worker.passport import encode_placed

RETRY_AFTER = 5
"""Seconds: a load balancer has noticed by then, or the next server is up."""
REQUEST_COST = 0.0
"""What a placed start reserves in load: its session counts, its request is over soon."""


class Newcomers:
    """Places new sessions for one worker's router. ``note(found, way)`` goes to the access log."""

    def __init__(
        self,
        ledger: Ledger,
        links: Elsewhere | None,
        board: LoadBoard | None,
        policy: Policy,
        note: Callable[[Found, str], None],
    ) -> None:
        self._ledger = ledger
        self._links = links
        self._board = board
        self._policy = policy
        self._note = note
        self.open_channel: Callable[[str], object] | None = None
        """Set by a host that can hand connections over: makes ready to hand one to this worker."""
        self.away = False
        """This worker takes no new sessions while another does."""
        self.closing = False
        """The whole server stops: nobody takes any."""

    @property
    def concerned(self) -> bool:
        """False if every new session simply begins where it arrives."""
        return self.away or self.closing or (self._policy is not Policy.ACCEPT and self._board is not None)

    def targets(self) -> list[str]:
        """The other workers that take new sessions, best first."""
        if self._board is None:
            return []
        return [uid for uid in places(self._standing(), self._board.uid, self._policy) if uid != self._board.uid]

    async def take(
        self, scope: Scope, receive: Receive, send: Send, request: RequestView, found: Found | None
    ) -> Receive | None:
        """Answer a new request elsewhere: None. Or give the ``receive`` with which it goes on here.

        Raises `NotMine` if its ID turns out to be claimed, `Refused` for what cannot begin anywhere.
        """
        start = found.start if found is not None else self._ledger.rules.start_without_id(request) is not None
        if not (start or self.away or self.closing):
            return receive
        stays = not _passing(scope)
        moves = start and stays and self.open_channel is not None and scope["type"] == "http"
        if stays and not (moves or self.away or self.closing):
            return receive
        for target in self._order():
            on = await self._on(target, scope, receive, send, request, found, moves)
            if on is None:
                return None
            receive = on
        if start and self.closing:
            raise Refused(503, "shutting down", "this server takes no new sessions any more", retry_after=RETRY_AFTER)
        return receive

    def _order(self) -> list[str]:
        """Whom to ask, best first, up to this worker itself."""
        board = self._board
        if board is None or self._links is None or self.closing:
            return []
        if self.away:
            return self.targets()
        chosen = places(self._standing(), board.uid, self._policy)
        return chosen[: chosen.index(board.uid)] if board.uid in chosen else chosen

    def _standing(self) -> list[Standing]:
        assert self._board is not None
        return [
            Standing(uid, load.current + load.requests + cost, load.all_sessions + count, 0, load.draining or load.full)
            for uid, load, count, cost in self._board.standing()
        ]

    async def _on(
        self,
        target: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        request: RequestView,
        found: Found | None,
        moves: bool,
    ) -> Receive | None:
        """Begin it on ``target``: None, or the ``receive`` to go on with if that would not have it.

        ``moves``: its connection is to go there, too.
        """
        assert self._links is not None and self._board is not None
        claimed = found is not None and claims_on_sight(found, found.primary)
        if claimed:  # 3
            assert found is not None
            try:
                owner = self._ledger.book.store.claim(found.primary.key, target)
            except ClaimError as error:
                raise Refused(error.status, "no room for sessions", str(error), retry_after=RETRY_AFTER) from None
            if owner != target:
                raise NotMine(owner)
        if found is not None:
            self._note(found, f"placed {target[:8]}")
        reservation = self._board.reserve(target, REQUEST_COST)
        if moves and self.open_channel is not None:
            self.open_channel(target)  # so that it is there when the reply is

        async def released(event: Any) -> None:
            reservation.release()
            if moves and event["type"] == "http.response.start" and event["status"] // 100 == 2:
                scope[BELONGS] = (target, None)
            await send(event)

        try:
            await self._links.carry(target, scope, receive, released, encode_placed(found))
        except AppFailed:
            await app_failed(scope, send)
        except HopBroken:
            pass  # what was sent cannot be taken back: returning ends the connection with FIN
        except (NotMine, OwnerGone, OwnerBusy) as error:  # 4
            if claimed or error.replay is None or getattr(error, "sent", False):
                # The claim names it, or its app may have seen the request: it must not begin a second time.
                raise Refused(
                    503, "worker lost", "the worker that was to hold the session does not answer", retry_after=1
                ) from None
            return error.replay
        except HopError as error:
            raise Refused(502, "hop failed", "the worker that was to hold the session broke off") from error
        finally:
            reservation.release()
        return None


def _passing(scope: Scope) -> bool:
    """True if the connection ends with this request: nothing of the session will come on it."""
    if scope["type"] != "http" or scope["http_version"] not in ("1.0", "1.1"):
        return False
    words = {
        word.strip().lower() for name, value in scope["headers"] if name == b"connection" for word in value.split(b",")
    }
    return b"close" in words or (scope["http_version"] == "1.0" and b"keep-alive" not in words)
