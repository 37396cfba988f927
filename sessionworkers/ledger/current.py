"""What an app may ask of its session: `current_session`, `live_sessions`, `claim`, close callbacks.

All optional: an unmodified app never imports this. Close callbacks run in a fresh context, in the background, when the
session is over: at its end, at its expiry, or when its worker stops. One that raises keeps the session's record and is
tried again a retry window later; one that has run is never run again (the general form of NeMo Gym's rule for
sessions that nobody closed).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sessionworkers.affinity.ids import mask
from sessionworkers.affinity.lifecycle import Event, State

if TYPE_CHECKING:
    from sessionworkers.ledger.ledger import Ledger, Visit

log = logging.getLogger("sessionworkers")

CloseCallback = Callable[[], Awaitable[None] | None]

_visit: contextvars.ContextVar[Visit | None] = contextvars.ContextVar("sessionworkers_visit", default=None)
_here: Ledger | None = None
"""The ledger of this process: one app, one ledger. For `claim` outside of a request."""


def set_here(ledger: Ledger | None) -> None:
    """Name the ledger that `claim` uses outside of a request."""
    global _here
    _here = ledger


class Session:
    """The session of the current request, as its app sees it.

    ``state`` is a dict of the app's own that lives as long as the session. ``id`` is None until a reply names the
    session, when the app mints the ID in this very request.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._callbacks: list[CloseCallback] = []
        self._closing: asyncio.Task[bool] | None = None
        self.id: str | None = None
        self.key: str | None = None
        self.state: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<Session {mask(self.id) if self.id else 'unnamed'}>"

    @property
    def owner(self) -> str:
        """The uid of the worker that holds the session: this one."""
        return self._ledger.book.store.me

    @property
    def ended(self) -> bool:
        """True once the session is over; its claim may live on for the retry window."""
        record = self._ledger.book.get(self.key) if self.key else None
        return self.key is not None and (record is None or record.state in (State.ENDED, State.DROPPED))

    def on_close(self, callback: CloseCallback) -> None:
        """Run ``callback()`` (sync or async) once when the session is over, for any reason."""
        self._callbacks.append(callback)

    def touch(self) -> None:
        """Count as a request that ends now: the session's time begins anew. For work that no request waits for."""
        record = self._ledger.book.get(self.key) if self.key else None
        if record is not None and not self.ended:
            record.last = self._ledger.book.clock()

    def end(self) -> None:
        """End the session now: late starts are refused for the retry window where the rule says so."""
        self._ledger.end_by_app(self, Event.ENDED_BY_APP)

    def discard(self) -> None:
        """Say that this start made nothing: the claim ends when the request returns, and no callback runs."""
        self._callbacks.clear()
        self._ledger.end_by_app(self, Event.DISCARDED)

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    def close(self) -> asyncio.Task[bool]:
        """Run the callbacks in a background task with a fresh context; True if none raised."""
        if self._closing is None or self._closing.done():
            context = contextvars.Context()
            self._closing = context.run(asyncio.get_running_loop().create_task, self._run())
        return self._closing

    async def _run(self) -> bool:
        while self._callbacks:
            callback = self._callbacks[0]
            try:
                result = callback()
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("a close callback of session %s raised; it is tried again", mask(self.id or ""))
                return False
            self._callbacks.pop(0)
        return True


def visit_now() -> Visit | None:
    """The request that is being handled in this context."""
    return _visit.get()


def current_session() -> Session | None:
    """The session of the request that is being handled, or None outside of one that can have a session.

    In a request that starts a session whose ID the app has not minted yet, the session has no ``id`` until the
    reply's head or body names it; callbacks and state set before are kept.
    """
    visit = _visit.get()
    return visit.session() if visit is not None else None


def live_sessions() -> list[Session]:
    """The open sessions of this worker that the app can know: explicit ones, and those it has asked for itself."""
    if _here is None:
        return []
    handles = (record.handle for record in _here.book.records())
    return [handle for handle in handles if handle is not None and handle.key is not None and not handle.ended]


def claim(id: str, *, rule: str | None = None) -> None:
    """Claim ``id`` for this worker, for IDs that cannot be read from a reply (protobuf, encrypted fields).

    ``rule`` names the rule by which requests will carry it; without it the ID is claimed under every rule and for
    `auto`. Raises `ClaimConflict` if another worker holds it, `ClaimsFull` at the cap, ``ValueError`` if it is no
    valid ID or there is no such rule, ``RuntimeError`` where no worker of sessionworkers runs.
    """
    visit = _visit.get()
    ledger = visit.ledger if visit is not None else _here
    if ledger is None:
        raise RuntimeError("sessionworkers.claim() was called outside of a sessionworkers worker")
    ledger.claim_for_app(id, rule, visit)
