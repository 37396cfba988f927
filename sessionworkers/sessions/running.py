"""One request of an explicit session, which the session's end may cut off.

The handler runs in a task of its own, so that the client has its answer at once whatever the handler does with its
cancellation. Cut off before its reply began, the client gets the 410; after, the connection ends with FIN, since what
was sent cannot be taken back; a WebSocket is closed. Never a reset: what the client still sends is read for a while.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sessionworkers.ledger.answers import Refused, refuse
from sessionworkers.sessions.costs import discard

CLOSE_CODE: Final = 4410
"""WebSocket close code of a session that is over: 410 in the range that RFC 6455 leaves to applications."""
DRAIN: Final = 1.0
"""Seconds in which the rest of a body is read before the connection is ended."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_running: contextvars.ContextVar[Running | None] = contextvars.ContextVar("sessionworkers_running", default=None)


def ended() -> Refused:
    """The answer to a request of a session that is not open, or not any more."""
    return Refused(410, "invalid session", "the session has ended, or there never was one of that ID")


class SessionOver(OSError):
    """What an app gets that sends on a WebSocket of a session that is over; an OSError, as ASGI 2.4 asks for."""


class Running:
    """Runs ``serve(receive, send)`` so that `cut` can end it."""

    def __init__(self, scope: Any, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._websocket = scope["type"] == "websocket"
        self._cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = False
        self._accepted = False
        self._body_read = self._websocket

    @classmethod
    def current(cls) -> Running | None:
        """The one that the calling code runs in."""
        return _running.get()

    def cut(self) -> None:
        """The session is over. The request that ended it itself goes on to its end."""
        if _running.get() is not self and not self._cut.done():
            self._cut.set_result(None)

    async def run(self, serve: Callable[[Receive, Send], Awaitable[None]]) -> None:
        """Run it to its end, or to the session's. What ``serve`` raises passes through."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        context.run(_running.set, self)
        handler: asyncio.Task[None] = context.run(loop.create_task, _as_coroutine(serve, self.receive, self.send))
        try:
            await asyncio.wait((handler, self._cut), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            handler.cancel()
            await asyncio.wait((handler,))
            raise
        if handler.done():
            if not handler.cancelled():
                handler.result()
            return
        handler.cancel()
        handler.add_done_callback(_seen)
        await self._end()

    async def receive(self) -> Any:
        """The app's ``receive``."""
        event = await self._receive()
        if event["type"] == "http.request" and not event.get("more_body", False):
            self._body_read = True
        return event

    async def send(self, event: Any) -> None:
        """The app's ``send``: nothing passes once the session is over."""
        if self._cut.done():
            if self._websocket:
                raise SessionOver("the session is over")
            return
        self._begun = True
        if self._websocket:
            self._accepted = event["type"] == "websocket.accept" or (
                self._accepted and event["type"] != "websocket.close"
            )
        await self._send(event)

    async def _end(self) -> None:
        if self._accepted:
            await self._send({"type": "websocket.close", "code": CLOSE_CODE, "reason": "session ended"})
            return
        if not self._body_read:
            await discard(self._receive, seconds=DRAIN)
        if not self._begun:
            await refuse(self._scope, self._send, ended())
        # Begun and not complete: the host ends the connection with FIN when this returns.


async def _as_coroutine(serve: Callable[[Receive, Send], Awaitable[None]], receive: Receive, send: Send) -> None:
    await serve(receive, send)


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # of a handler that nobody waits for any more
